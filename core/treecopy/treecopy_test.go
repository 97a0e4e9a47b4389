package treecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

func clonePaths(t testing.TB, ctx context.Context, src, dst string, opts Options) (Result, error) {
	t.Helper()
	s, err := os.Open(src)
	require.NoError(t, err)
	defer s.Close()
	d, err := os.Open(dst)
	require.NoError(t, err)
	defer d.Close()
	return Clone(ctx, s, d, opts)
}

// describe says everything about a tree that a clone keeps, a line per entry.
// Hard links are told by the first path of their inode.
func describe(t *testing.T, root string) (out []string) {
	t.Helper()
	first := map[uint64]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(path, &st))
		rel := strings.TrimPrefix(path, root)
		line := fmt.Sprintf("%q %o %d:%d %d.%d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		if rel == "" {
			line = fmt.Sprintf("root %d.%d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			line += fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(data))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			require.NoError(t, err)
			line += " -> " + target
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = rel
		}
		out = append(out, line+" = "+first[st.Ino])
		return nil
	}))
	return out
}

func write(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.NoError(t, os.Chmod(path, mode))
}

// buildTree makes one of everything.
func buildTree(t *testing.T, dir string) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	big := make([]byte, 3<<20+17)
	_, _ = random.Read(big)
	write(t, filepath.Join(dir, "f"), []byte("f"), 0o644)
	write(t, filepath.Join(dir, "empty"), nil, 0o600)
	write(t, filepath.Join(dir, "script"), []byte("#!/bin/sh\n"), 0o755)
	write(t, filepath.Join(dir, "setid"), []byte("s"), 0o755|os.ModeSetuid|os.ModeSetgid)
	write(t, filepath.Join(dir, "readonly"), []byte("r"), 0o444)
	write(t, filepath.Join(dir, "big"), big, 0o640)
	write(t, filepath.Join(dir, "edge"), big[:reflinkSize], 0o640)
	write(t, filepath.Join(dir, "bad\xff\n"), []byte("b"), 0o644)
	write(t, filepath.Join(dir, "node_modules/foo/cli"), []byte("c"), 0o755)
	for i := range 3 * batchFiles {
		write(t, filepath.Join(dir, "many", strconv.Itoa(i)), []byte(strconv.Itoa(i)), 0o644)
	}
	for path, target := range map[string]string{
		"node_modules/.bin/foo": "../foo/cli", "abs": "/workspace/f", "dangling": "nowhere",
		"loop": "loop", "strange": "a\xfe b\n", "long": strings.Repeat("l/", 500),
	} {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.Symlink(target, path))
	}
	for path, other := range map[string]string{"hard/a": "f", "hard/b": "f", "hard/big": "big", "hard/link": "dangling"} {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.Link(filepath.Join(dir, other), path))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	require.NoError(t, os.Chmod(filepath.Join(dir, "fifo"), 0o622))
	sparse, err := os.OpenFile(filepath.Join(dir, "sparse"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	require.NoError(t, err)
	for _, off := range []int64{1 << 20, 9 << 20} {
		_, err = sparse.WriteAt(big[:70<<10], off)
		require.NoError(t, err)
	}
	require.NoError(t, sparse.Truncate(20<<20))
	require.NoError(t, sparse.Close())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty-dir"), 0o755))
	write(t, filepath.Join(dir, "closed/in/f"), []byte("x"), 0o400)
	require.NoError(t, os.Chmod(filepath.Join(dir, "closed"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o755) })
	if os.Geteuid() == 0 {
		require.NoError(t, os.Lchown(filepath.Join(dir, "script"), 12345, 54321))
		require.NoError(t, os.Lchown(filepath.Join(dir, "setid"), 12345, 54321))
		require.NoError(t, os.Chmod(filepath.Join(dir, "setid"), 0o755|os.ModeSetuid))
		require.NoError(t, os.Lchown(filepath.Join(dir, "abs"), 12345, 54321))
		require.NoError(t, os.Lchown(filepath.Join(dir, "many"), 12345, 54321))
	}
	// Times that are not now, with nanoseconds, children before parents.
	var paths []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	for i := len(paths) - 1; i >= 0; i-- {
		at := unix.Timespec{Sec: 1_000_000_000 + int64(i), Nsec: 123_456_789}
		require.NoError(t, linux.Lutimensat(unix.AT_FDCWD, paths[i], at, at))
	}
}

// temporary is a directory whose removal does not fail on modes.
func temporary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	return dir
}

func TestClone_KeepsEverything(t *testing.T) {
	for _, workers := range []int{0, 1, 8} {
		t.Run(strconv.Itoa(workers), func(t *testing.T) {
			src, dst := temporary(t), temporary(t)
			buildTree(t, src)
			require.NoError(t, os.Chmod(dst, 0o700))
			before := describe(t, src)
			old := unix.Umask(0o077)
			result, err := clonePaths(t, t.Context(), src, dst, Options{Workers: workers})
			unix.Umask(old)
			require.NoError(t, err)
			require.Contains(t, []Strategy{Copy, Reflink}, result.Strategy)
			require.Empty(t, result.Skipped)
			require.Equal(t, before, describe(t, dst))
			require.Equal(t, before, describe(t, src), "the source changed")
			st, err := os.Stat(dst)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o700), st.Mode().Perm())
			requireHoles(t, src, dst)
		})
	}
}

func requireHoles(t *testing.T, src, dst string) {
	t.Helper()
	var a, b unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(src, "sparse"), &a))
	require.NoError(t, unix.Stat(filepath.Join(dst, "sparse"), &b))
	if a.Blocks*512 < a.Size {
		require.LessOrEqual(t, b.Blocks, a.Blocks+64, "the holes were filled")
	}
}

func TestClone_Empty(t *testing.T) {
	result, err := clonePaths(t, t.Context(), t.TempDir(), t.TempDir(), Options{})
	require.NoError(t, err)
	require.Equal(t, Result{Strategy: Empty}, result)
}

func TestClone_LeavesOutSocketsAndDevices(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(src, "d"), 0o755))
	write(t, filepath.Join(src, "d/f"), []byte("f"), 0o644)
	t.Chdir(filepath.Join(src, "d"))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "s"}))
	require.NoError(t, unix.Close(fd))
	want := []string{"d/s"}
	if unix.Mknod("zero", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) == nil {
		want = append(want, "d/zero")
	}
	result, err := clonePaths(t, t.Context(), src, dst, Options{})
	require.NoError(t, err)
	require.Equal(t, Copy, result.Strategy)
	require.ElementsMatch(t, want, result.Skipped)
	entries, err := os.ReadDir(filepath.Join(dst, "d"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// Deeper than a path can be long, and than descriptors reach; at the bottom is
// a hard link to a file at the bottom of another branch.
func TestClone_DeepTree(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	const depth = 700
	name := "deepdeep"
	var ends []int
	for _, branch := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(filepath.Join(src, branch), 0o755))
		fd, err := linux.Openat(unix.AT_FDCWD, filepath.Join(src, branch), unix.O_PATH, 0)
		require.NoError(t, err)
		for i := range depth {
			require.NoError(t, linux.Mkdirat(fd, name, 0o755))
			if i%20 == 0 { // to come back to
				require.NoError(t, linux.Mkdirat(fd, "side", 0o755))
			}
			next, err := linux.Openat(fd, name, unix.O_PATH, 0)
			require.NoError(t, err)
			require.NoError(t, linux.Close(fd))
			fd = next
		}
		ends = append(ends, fd)
	}
	fd, err := linux.Openat(ends[0], "f", unix.O_WRONLY|unix.O_CREAT, 0o644)
	require.NoError(t, err)
	require.NoError(t, linux.Close(fd))
	require.NoError(t, linux.Linkat(ends[0], "f", ends[1], "g"))
	for _, fd := range ends {
		require.NoError(t, linux.Close(fd))
	}

	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	small := limit
	small.Cur = uint64(len(open) + 2*heldLevels + 40)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &small))
	_, err = clonePaths(t, t.Context(), src, dst, Options{})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)

	root, err := os.Open(dst)
	require.NoError(t, err)
	defer root.Close()
	var stats []unix.Stat_t
	for _, end := range []struct{ branch, name string }{{"a", "f"}, {"b", "g"}} {
		dir, err := openDeep(int(root.Fd()), end.branch+strings.Repeat("/"+name, depth))
		require.NoError(t, err)
		st, err := linux.Lstatat(dir, end.name)
		require.NoError(t, err)
		require.NoError(t, linux.Close(dir))
		stats = append(stats, st)
	}
	require.Equal(t, stats[0].Ino, stats[1].Ino)
	// os.RemoveAll in the clean-up manages depths only within its own limits.
	for _, dir := range []string{src, dst} {
		require.NoError(t, exec.Command("rm", "-rf", dir).Run())
	}
}

func TestClone_Cancelled(t *testing.T) {
	src := t.TempDir()
	for i := range 500 {
		write(t, filepath.Join(src, strconv.Itoa(i%10), strconv.Itoa(i)), []byte("x"), 0o644)
	}
	reason := errors.New("enough")
	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(reason)
		_, err := clonePaths(t, ctx, src, t.TempDir(), Options{})
		require.ErrorIs(t, err, reason)
	})
	t.Run("during", func(t *testing.T) {
		for range 20 {
			ctx, cancel := context.WithCancelCause(t.Context())
			timer := time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() { cancel(reason) })
			_, err := clonePaths(t, ctx, src, t.TempDir(), Options{})
			timer.Stop()
			if err != nil {
				require.ErrorIs(t, err, reason)
			}
			cancel(nil)
		}
	})
}

func TestClone_FailureNamesThePlace(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "d/f"), []byte("new"), 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dst, "d"), 0o755))
	_, err := clonePaths(t, t.Context(), src, dst, Options{})
	require.ErrorIs(t, err, fs.ErrExist)
	require.EqualError(t, err, `"d": file exists`)
	require.NotContains(t, err.Error(), src)
}

func TestClone_UnreadableFails(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root reads everything: the case needs an ordinary user")
		return
	}
	for _, path := range []string{"d", "d/f"} {
		src := t.TempDir()
		write(t, filepath.Join(src, "d/f"), []byte("new"), 0o644)
		require.NoError(t, os.Chmod(filepath.Join(src, path), 0))
		_, err := clonePaths(t, t.Context(), src, t.TempDir(), Options{})
		require.ErrorIs(t, err, fs.ErrPermission)
		require.ErrorContains(t, err, strconv.Quote(path))
		require.NoError(t, os.Chmod(filepath.Join(src, path), 0o700))
	}
}

func TestClone_FullDisk(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "f"), bytes.Repeat([]byte("x"), 4<<20), 0o644)
	if err := unix.Mount("tmpfs", dst, "tmpfs", 0, "size=1m"); err != nil {
		require.NotZero(t, os.Geteuid(), "root mounts: %v", err)
		t.Log("only root mounts a small file system")
		return
	}
	defer func() { require.NoError(t, unix.Unmount(dst, unix.MNT_DETACH)) }()
	_, err := clonePaths(t, t.Context(), src, dst, Options{})
	require.ErrorIs(t, err, unix.ENOSPC)
}

func TestClone_LeaksNoDescriptor(t *testing.T) {
	src := temporary(t)
	buildTree(t, src)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	before := count()
	_, err := clonePaths(t, t.Context(), src, temporary(t), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = clonePaths(t, ctx, src, temporary(t), Options{})
	require.Error(t, err)
	require.Equal(t, before, count())
}

func TestClone_Reflink(t *testing.T) {
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
			require.NoError(t, os.Mkdir(mnt, 0o755))
			require.NoError(t, os.WriteFile(image, nil, 0o600))
			require.NoError(t, os.Truncate(image, 400<<20))
			if exec.Command("mkfs."+kind, "-q", image).Run() != nil || exec.Command("mount", "-o", "loop", image, mnt).Run() != nil {
				t.Skipf("needs a file system with reflinks: root, loop devices and mkfs.%s", kind)
			}
			defer func() { require.NoError(t, exec.Command("umount", mnt).Run()) }()
			src, dst := filepath.Join(mnt, "src"), filepath.Join(mnt, "dst")
			require.NoError(t, os.Mkdir(src, 0o755))
			require.NoError(t, os.Mkdir(dst, 0o755))
			buildTree(t, src)
			result, err := clonePaths(t, t.Context(), src, dst, Options{})
			require.NoError(t, err)
			require.Equal(t, Reflink, result.Strategy)
			require.Equal(t, describe(t, src), describe(t, dst))
			requireHoles(t, src, dst)
		})
	}
}

func BenchmarkClone(b *testing.B) {
	src := b.TempDir()
	data := bytes.Repeat([]byte("x"), 3000)
	for i := range 3000 {
		path := filepath.Join(src, strconv.Itoa(i%400), strconv.Itoa(i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	root := b.TempDir()
	for i := 0; b.Loop(); i++ {
		dst := filepath.Join(root, strconv.Itoa(i))
		if err := os.Mkdir(dst, 0o755); err != nil {
			b.Fatal(err)
		}
		if _, err := clonePaths(b, b.Context(), src, dst, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
