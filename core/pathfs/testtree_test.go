package pathfs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// world is a sandbox root on the host: /workspace, which the tree is given, and
// what lies around it, which only the opener reaches.
type world struct {
	*Tree
	dir       string // the sandbox's "/"
	workspace string
	opener    *inRoot
}

// newWorld builds the entries, given as sandbox paths: "dir /d", "file /f
// content", "link /l target", "fifo /p", "socket /s". Parents are made.
func newWorld(t *testing.T, entries ...string) *world {
	t.Helper()
	return buildWorld(t, entries...)
}

func buildWorld(t testing.TB, entries ...string) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{dir: dir, workspace: filepath.Join(dir, "workspace")}
	w.add(t, append([]string{"dir /workspace", "dir /tmp", "file /etc/hostname sandbox\n"}, entries...)...)
	root, err := os.Open(w.workspace)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	fd, err := os.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = fd.Close() })
	w.opener = &inRoot{root: fd}
	w.Tree = &Tree{Root: root, Mount: "/workspace", Opener: w.opener}
	// Before t.TempDir's own removal, which cannot enter such directories.
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(path, 0o700) //nolint:gosec // our own temporary directory
			}
			return nil
		})
	})
	return w
}

func (w *world) add(t testing.TB, entries ...string) {
	t.Helper()
	for _, entry := range entries {
		kind, rest, _ := strings.Cut(entry, " ")
		path, arg, _ := strings.Cut(rest, " ")
		host := w.host(path)
		require.NoError(t, os.MkdirAll(filepath.Dir(host), 0o755))
		switch kind {
		case "dir":
			require.NoError(t, os.MkdirAll(host, 0o755))
		case "file":
			require.NoError(t, os.WriteFile(host, []byte(arg), 0o644))
		case "link":
			require.NoError(t, os.Symlink(arg, host))
		case "fifo":
			require.NoError(t, unix.Mkfifo(host, 0o644))
		case "socket":
			// Bound by a short relative name: addresses hold 108 bytes.
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			t.Chdir(filepath.Dir(host))
			require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Base(host)}))
			require.NoError(t, unix.Close(fd))
		default:
			t.Fatalf("unknown entry %q", entry)
		}
	}
}

// host returns where a sandbox path lies on the host.
func (w *world) host(path string) string { return w.dir + path }

// content returns a file's content, read on the host.
func (w *world) content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(w.host(path))
	require.NoError(t, err)
	return string(data)
}

// requireClean fails if a temporary file was left anywhere.
func (w *world) requireClean(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(w.dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			require.NotContains(t, filepath.Base(path), ".sbx-", "temporary file left")
		}
		return nil
	}))
}

// inRoot is an opener that resolves in a directory as chroot would.
type inRoot struct {
	root  *os.File
	calls int
}

const resolveInRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

func (o *inRoot) open(path string, flags int) (*os.File, error) {
	for {
		fd, err := linux.Openat2(int(o.root.Fd()), path, flags, 0, resolveInRoot)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !isErrno(err, unix.EAGAIN) {
			return nil, err
		}
	}
}

func (o *inRoot) Open(_ context.Context, path string) (*os.File, error) {
	o.calls++
	return o.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
}

func (o *inRoot) Parent(_ context.Context, path string, follow, makeParents bool) (*os.File, string, error) {
	o.calls++
	for range maxLinks {
		above, name, _ := last(path)
		if makeParents {
			parts := split(above)
			for i := range parts {
				if up, err := o.open("/"+strings.Join(parts[:i], "/"), unix.O_PATH|unix.O_DIRECTORY); err == nil {
					_ = linux.Mkdirat(int(up.Fd()), parts[i], 0o755)
					_ = up.Close()
				}
			}
		}
		dir, err := o.open(above, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil || !follow {
			return dir, name, err
		}
		target, err := linux.Readlinkat(int(dir.Fd()), name)
		if err != nil {
			return dir, name, nil //nolint:nilerr // no link: the name stands for itself
		}
		_ = dir.Close()
		if path = target; !strings.HasPrefix(target, "/") {
			path = above + "/" + target
		}
	}
	return nil, "", unix.ELOOP
}

func isErrno(err error, want syscall.Errno) bool {
	var errno syscall.Errno
	return asErrno(err, &errno) && errno == want
}
