package rmtree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

func remove(t *testing.T, ctx context.Context, dir, name string) error {
	t.Helper()
	fd, err := linux.Openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, linux.Close(fd)) }()
	return Remove(ctx, fd, name)
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestRemove_WideTree(t *testing.T) {
	dir := t.TempDir()
	for i := range 500 {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "t", strconv.Itoa(i%5), strconv.Itoa(i)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "t", strconv.Itoa(i%5), "f\xff"+strconv.Itoa(i)), nil, 0o644))
	}
	before := openFiles(t)
	require.NoError(t, remove(t, t.Context(), dir, "t"))
	require.NoFileExists(t, filepath.Join(dir, "t"))
	require.Equal(t, before, openFiles(t))
	require.ErrorIs(t, remove(t, t.Context(), dir, "t"), fs.ErrNotExist)
}

// Deeper than a path can be long, and than descriptors reach.
func TestRemove_DeepTree(t *testing.T) {
	dir := t.TempDir()
	depth := 3000
	fd, err := linux.Openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	for i := range depth {
		require.NoError(t, linux.Mkdirat(fd, "dd", 0o755))
		next, err := linux.Openat(fd, "dd", unix.O_PATH|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		// Now and then one that cannot be entered from below or above.
		if i%500 == 70 {
			require.NoError(t, linux.ChmodPath(fd, 0o500))
		}
		require.NoError(t, linux.Close(fd))
		fd = next
	}
	require.NoError(t, linux.Close(fd))

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	small := limit
	small.Cur = uint64(openFiles(t) + heldLevels + 8)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &small))
	err = remove(t, t.Context(), dir, "dd")
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, "dd"))
}

func TestRemove_Modes(t *testing.T) {
	for _, mode := range []os.FileMode{0, 0o100, 0o200, 0o333, 0o444, 0o500, 0o555, 0o600} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "t/m/s"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "t/m/f"), nil, 0))
			require.NoError(t, os.Chmod(filepath.Join(dir, "t/m"), mode))
			require.NoError(t, remove(t, t.Context(), dir, "t"))
			require.NoFileExists(t, filepath.Join(dir, "t"))
		})
	}
}

func TestRemove_Cancelled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "t/u"), 0o755))
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	require.ErrorIs(t, remove(t, ctx, dir, "t"), reason)
	require.DirExists(t, filepath.Join(dir, "t"))
}

func TestRemove_StickyDirectorySaysWhatItIs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("needs files of two users")
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	// A flag that makes unlink answer EPERM for a file and for a directory.
	for _, name := range []string{"f", "d"} {
		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		const immutable = 0x10
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
			t.Logf("no immutable files here: %v", err)
			return
		}
		err = remove(t, t.Context(), dir, name)
		require.NoError(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0))
		require.NoError(t, f.Close())
		require.ErrorIs(t, err, unix.EPERM, name)
	}
}

func TestRemove_MountPointStays(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "t/mnt"), 0o755))
	if err := unix.Mount("tmpfs", filepath.Join(dir, "t/mnt"), "tmpfs", 0, "size=64k"); err != nil {
		require.NotZero(t, os.Geteuid(), "root mounts: %v", err)
		t.Log("only root mounts")
		return
	}
	defer func() { require.NoError(t, unix.Unmount(filepath.Join(dir, "t/mnt"), unix.MNT_DETACH)) }()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t/mnt/f"), nil, 0o644))
	require.ErrorIs(t, remove(t, t.Context(), dir, "t"), unix.EBUSY)
	require.FileExists(t, filepath.Join(dir, "t/mnt/f"))
}

// Someone fills the tree while it is removed.
func TestRemove_AgainstACreator(t *testing.T) {
	dir := t.TempDir()
	end := make(chan struct{})
	done := make(chan struct{})
	require.NoError(t, os.Mkdir(filepath.Join(dir, "t"), 0o755))
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
				_ = os.Mkdir(filepath.Join(dir, "t", strconv.Itoa(i%50)), 0o755)
				_ = os.WriteFile(filepath.Join(dir, "t", strconv.Itoa(i%50), strings.Repeat("f", 1+i%9)), nil, 0o644)
			}
		}
	}()
	for range 20 {
		if err := remove(t, t.Context(), dir, "t"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			require.ErrorIs(t, err, unix.ENOTEMPTY)
		}
		_ = os.Mkdir(filepath.Join(dir, "t"), 0o755)
	}
	close(end)
	<-done
	require.NoError(t, remove(t, t.Context(), dir, "t"))
}
