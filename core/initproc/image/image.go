//go:build linux && (amd64 || arm64)

// Package image carries the in-sandbox program and hands it out as something
// that bwrap can start: a sealed memfd, or, where the host forbids to execute
// those, a file. It does not know what the program does.
package image

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// mode lets everybody execute the program and nobody read it. A program that
// its user cannot read is undumpable from its first instruction on, so nothing
// in the sandbox can trace it before it has come round to asking for that.
const mode = 0o111

// shared is the memfd of this process. An error is not kept: descriptors may
// have been short for a moment.
var shared struct {
	sync.Mutex
	file *os.File
}

// Open returns the program as a sealed, read-only, close-on-exec memfd. All
// callers in this process share one file; nobody may close it. Where the kernel
// forbids executable memfds it returns errdefs.Unavailable; see WriteFile.
func Open() (*os.File, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.file != nil {
		return shared.file, nil
	}
	program, err := unpack()
	if err != nil {
		return nil, err
	}
	file, err := sealed(program)
	if err != nil {
		return nil, err
	}
	shared.file = file
	return file, nil
}

// sealed returns program, an executable, the way Open does. The file belongs to
// the caller.
func sealed(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("sandbox-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		// Before Linux 6.3 there was no MFD_EXEC, and every memfd was executable.
		fd, err = unix.MemfdCreate("sandbox-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, &errdefs.Error{
			Code: errdefs.Unavailable, Op: "init",
			Msg:    "this host does not let memory files be executed (vm.memfd_noexec is 2)",
			Remedy: "set the sysctl vm.memfd_noexec to 1 or 0",
			Err:    err,
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make memfd for init: %w", err)
	}
	writable := os.NewFile(uintptr(fd), "sandbox-init")
	defer writable.Close()
	if _, err := writable.Write(program); err != nil {
		return nil, fmt.Errorf("fill memfd for init: %w", err)
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal memfd for init: %w", err)
	}
	// Read-only: the kernel does not execute a file that is open for writing.
	// Reopened before the mode takes the right to read away.
	readOnly, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("reopen memfd for init: %w", err)
	}
	if err := writable.Chmod(mode); err != nil {
		_ = readOnly.Close()
		return nil, fmt.Errorf("set mode of memfd for init: %w", err)
	}
	return readOnly, nil
}

// WriteFile puts the program into dir, which is made with mode 0700 when it is
// missing, and returns its path: dir and the SHA-256 of its content. A file
// that is there already is used when its content is right, and replaced when it
// is not. Several processes may do so at once.
func WriteFile(dir string) (string, error) {
	program, err := unpack()
	if err != nil {
		return "", err
	}
	return writeFile(dir, program)
}

func writeFile(dir string, program []byte) (string, error) {
	sum := sha256.Sum256(program)
	path := filepath.Join(dir, hex.EncodeToString(sum[:]))
	if present(path, program) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make directory for init: %w", err)
	}
	temp, err := os.CreateTemp(dir, ".init-*")
	if err != nil {
		return "", fmt.Errorf("make file for init: %w", err)
	}
	_, err = temp.Write(program)
	err = errors.Join(err, temp.Chmod(0o500), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return "", fmt.Errorf("write init: %w", err)
	}
	return path, nil
}

// present tells whether path is the program, a regular file of ours that nobody
// else can write. The name alone proves nothing: a crash may have left anything.
func present(path string, program []byte) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false
	}
	mode := fs.FileMode(st.Mode & 0o777)
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || mode != 0o500 || st.Size != int64(len(program)) {
		return false
	}
	content, err := io.ReadAll(f)
	return err == nil && bytes.Equal(content, program)
}

func unpack() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("unpack init: %w", err)
	}
	program, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("unpack init: %w", err)
	}
	return program, nil
}
