//go:build linux && (amd64 || arm64)

package image

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOpen_IsSharedSealedAndUnreadable(t *testing.T) {
	files := make([]*os.File, 8)
	var wait sync.WaitGroup
	for i := range files {
		wait.Go(func() { files[i], _ = Open() })
	}
	wait.Wait()
	for _, f := range files {
		require.NotNil(t, f)
		require.Same(t, files[0], f)
	}
	fd := files[0].Fd()

	seals, err := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.Equal(t, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE, seals)
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	require.NoError(t, err)
	require.Equal(t, unix.O_RDONLY, flags&unix.O_ACCMODE)
	flags, err = unix.FcntlInt(fd, unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	info, err := files[0].Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(mode), info.Mode().Perm())
	if os.Geteuid() != 0 {
		_, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
		require.ErrorIs(t, err, unix.EACCES)
	}
}

func TestWriteFile(t *testing.T) {
	program := []byte("#!/bin/true\n")
	for name, before := range map[string]func(t *testing.T, path string){
		"nothing there": func(*testing.T, string) {},
		"cut short":     func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, program[:3], 0o500)) },
		"other content": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/trux\n"), 0o500))
		},
		"writable by others": func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, program, 0o700)) },
		"a link":             func(t *testing.T, path string) { require.NoError(t, os.Symlink("/bin/true", path)) },
		"a fifo":             func(t *testing.T, path string) { require.NoError(t, unix.Mkfifo(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bin")
			path, err := writeFile(dir, program)
			require.NoError(t, err)
			require.NoError(t, os.Remove(path))
			before(t, path)

			again, err := writeFile(dir, program)
			require.NoError(t, err)
			require.Equal(t, path, again)
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o500), info.Mode())
			require.True(t, present(path, program))

			_, err = writeFile(dir, program)
			require.NoError(t, err)
			after, err := os.Lstat(path)
			require.NoError(t, err)
			require.True(t, os.SameFile(info, after), "a right file was replaced")
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1)
		})
	}
}
