package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func openDir(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := Openat(unix.AT_FDCWD, path, flags|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = Close(fd) })
	return fd
}

func TestEntries(t *testing.T) {
	dir := t.TempDir()
	want := map[string]uint8{"bad\xff\n": unix.DT_REG, "d": unix.DT_DIR, "l": unix.DT_LNK, "p": unix.DT_FIFO}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad\xff\n"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "l")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "p"), 0o600))
	for i := range 400 { // more than one buffer
		name := fmt.Sprintf("%d%s", i, strings.Repeat("x", 200))
		want[name] = unix.DT_REG
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	got := map[string]uint8{}
	for entry, err := range Entries(openDir(t, dir, unix.O_RDONLY)) {
		require.NoError(t, err)
		require.NotContains(t, got, entry.Name)
		got[entry.Name] = entry.Type
	}
	require.Equal(t, want, got)

	for range Entries(openDir(t, dir, unix.O_RDONLY)) {
		break // the loop may end early
	}
	for _, err := range Entries(openDir(t, dir, unix.O_PATH)) {
		require.ErrorIs(t, err, unix.EBADF)
	}
}

func TestHold(t *testing.T) {
	f, err := os.Open(t.TempDir())
	require.NoError(t, err)
	// A Close during the call takes effect afterwards.
	require.NoError(t, Hold(f, func(fd int) error {
		require.NoError(t, f.Close())
		_, err := Fstat(fd)
		return err
	}))
	require.ErrorIs(t, Hold(f, func(int) error { return nil }), os.ErrClosed)
	require.ErrorIs(t, Hold(nil, func(int) error { return nil }), os.ErrInvalid)
}

func TestDescriptorsAreNotInherited(t *testing.T) {
	dir := openDir(t, t.TempDir(), unix.O_RDONLY)
	dup, err := Dup(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, Close(dup)) }()
	fds := []int{dir, dup}
	if fd, err := Openat2(dir, ".", unix.O_PATH, 0, unix.RESOLVE_BENEATH); err == nil {
		defer func() { require.NoError(t, Close(fd)) }()
		fds = append(fds, fd)
	}
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
}

func TestReadlinkat(t *testing.T) {
	path := t.TempDir()
	dir := openDir(t, path, unix.O_PATH)
	for _, target := range []string{"x", strings.Repeat("y", 255), strings.Repeat("y", 256), strings.Repeat("z/", 500), "\xff\n"} {
		require.NoError(t, Symlinkat(target, dir, "l"))
		got, err := Readlinkat(dir, "l")
		require.NoError(t, err)
		require.Equal(t, target, got)
		fd, err := Openat(dir, "l", unix.O_PATH|unix.O_NOFOLLOW, 0)
		require.NoError(t, err)
		got, err = Readlinkat(fd, "")
		require.NoError(t, err)
		require.Equal(t, target, got)
		require.NoError(t, Close(fd))
		require.NoError(t, Unlinkat(dir, "l", 0))
	}
}

func TestChmodPath(t *testing.T) {
	path := t.TempDir()
	dir := openDir(t, path, unix.O_PATH)
	require.NoError(t, Mkdirat(dir, "d", 0))
	fd := openDir(t, filepath.Join(path, "d"), unix.O_PATH)
	require.NoError(t, ChmodPath(fd, 0o751))
	st, err := Lstatat(dir, "d")
	require.NoError(t, err)
	require.Equal(t, uint32(0o751), st.Mode&0o7777)
}

func TestErrorsNameNoMoreThanWasPassed(t *testing.T) {
	dir := openDir(t, t.TempDir(), unix.O_PATH)
	_, err := Openat(dir, "missing", unix.O_RDONLY, 0)
	require.EqualError(t, err, "openat missing: no such file or directory")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.EqualError(t, Renameat2(dir, "a", dir, "b", 0), "renameat b: no such file or directory")
}
