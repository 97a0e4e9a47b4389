package atomicfile

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("ATOMICFILE_WRITE_FOREVER"); dir != "" {
		writeForever(dir)
	}
	os.Exit(m.Run())
}

func openDir(t *testing.T) (string, *os.File) {
	t.Helper()
	path := t.TempDir()
	dir, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	return path, dir
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteFile(t *testing.T) {
	path, dir := openDir(t)
	old := unix.Umask(0o777)
	err := WriteFile(dir, "f", []byte("one"), 0o600)
	unix.Umask(old)
	require.NoError(t, err)
	require.NoError(t, WriteFile(dir, "f", []byte("two"), 0o640))
	data, err := os.ReadFile(filepath.Join(path, "f"))
	require.NoError(t, err)
	require.Equal(t, "two", string(data))
	st, err := os.Stat(filepath.Join(path, "f"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), st.Mode())
	require.Equal(t, []string{"f"}, names(t, path))
}

func TestWriteFile_Failures(t *testing.T) {
	path, dir := openDir(t)
	require.NoError(t, os.Mkdir(filepath.Join(path, "d"), 0o755))
	require.ErrorIs(t, WriteFile(dir, "d", nil, 0o600), unix.EISDIR)
	require.Equal(t, []string{"d"}, names(t, path))
	require.NoError(t, dir.Close())
	require.ErrorIs(t, WriteFile(dir, "f", nil, 0o600), os.ErrClosed)
}

func TestCreate_LinkIsReplacedNotFollowed(t *testing.T) {
	path, dir := openDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(path, "target"), []byte("t"), 0o600))
	require.NoError(t, os.Symlink("target", filepath.Join(path, "f")))
	require.NoError(t, WriteFile(dir, "f", []byte("new"), 0o600))
	data, err := os.ReadFile(filepath.Join(path, "target"))
	require.NoError(t, err)
	require.Equal(t, "t", string(data))
}

// writeForever replaces a file by ever other content of one byte repeated.
func writeForever(path string) {
	dir, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		if err := WriteFile(dir, "f", bytes.Repeat([]byte{byte('a' + i%26)}, 1<<16), 0o600); err != nil {
			panic(err)
		}
		if i == 0 {
			_, _ = os.Stdout.WriteString("ready\n")
		}
	}
}

func TestWriteFile_KilledAtAnyMoment(t *testing.T) {
	path, _ := openDir(t)
	for range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "ATOMICFILE_WRITE_FOREVER="+path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		data, err := os.ReadFile(filepath.Join(path, "f"))
		require.NoError(t, err)
		require.Len(t, data, 1<<16)
		require.Equal(t, 1<<16, bytes.Count(data, data[:1]))
	}
}
