// Package atomicfile replaces a file's content in one step: a reader sees the
// old content or the new, never a part, and after a crash or a full disk the
// old content is still there.
//
// New content goes into a named temporary file in the same directory (O_TMPFILE
// is missing on many file systems) and is renamed over the old name. The caveats
// of that: the new file is another inode, so a hard link keeps the old content,
// and only the right to write the directory is needed, not the old file.
//
// Everything goes by a directory descriptor and a name in it. Which directory
// that is, and whether it may be written, is the caller's business.
package atomicfile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// Prefix begins the name of every temporary file.
const Prefix = ".sbx-"

// Options say how the new file is made.
type Options struct {
	// Mode is the new file's mode, whatever the umask is.
	Mode uint32
	// Owner gives the new file another owner, where the process may do that;
	// where it may not, the file stays its own. Nil keeps the process's.
	Owner *Owner
	// Sync writes content and name to the device before Commit returns, so that
	// they survive a power failure. Without it they survive the process only.
	Sync bool
}

// Owner is who owns a file.
type Owner struct{ UID, GID int }

// File is a replacement under way. It is safe for concurrent use.
type File struct {
	sync bool
	name string

	mu  sync.Mutex
	dir int // -1 once the replacement is over
	fd  int // -1 once closed
	tmp string
	err error // the first failed write: the content is not what the caller meant
}

// Create begins to replace name in dir, which stays the caller's.
func Create(dir int, name string, opts Options) (*File, error) {
	own, err := linux.Dup(dir)
	if err != nil {
		return nil, err
	}
	f := &File{sync: opts.Sync, name: name, dir: own, fd: -1}
	if err := f.create(opts); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// attempts bounds how often a name that is taken is drawn again: with 64
// random bits a second collision means that something makes them on purpose.
const attempts = 16

func (f *File) create(opts Options) error {
	for try := 1; ; try++ {
		tmp := Prefix + randomName()
		fd, err := linux.Openat(f.dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.EEXIST) && try < attempts {
			continue
		}
		if err != nil {
			return err
		}
		f.fd, f.tmp = fd, tmp
		break
	}
	// The owner first: changing it clears bits of the mode.
	if o := opts.Owner; o != nil {
		if err := linux.Fchown(f.fd, o.UID, o.GID); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return linux.Fchmod(f.fd, opts.Mode)
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// Write adds p to the new content. After a failed Write the replacement can
// only be discarded.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.dir < 0:
		return 0, os.ErrClosed
	case f.err != nil:
		return 0, f.err
	}
	n, err := linux.WriteAll(f.fd, p)
	f.err = err
	return n, err
}

// Commit puts the new content in place. When it fails, the old content stays
// and the temporary file is gone. A second Commit, or one after Discard, is
// os.ErrClosed.
func (f *File) Commit() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dir < 0 {
		return os.ErrClosed
	}
	if err := f.commit(); err != nil {
		return errors.Join(err, f.discard())
	}
	return f.release()
}

func (f *File) commit() error {
	if f.err != nil {
		return f.err
	}
	if f.sync {
		if err := linux.Fsync(f.fd); err != nil {
			return err
		}
	}
	// Closed before the rename: network file systems report a full disk or a
	// used-up quota no earlier than here.
	fd := f.fd
	f.fd = -1
	if err := linux.Close(fd); err != nil {
		return err
	}
	if err := linux.Renameat2(f.dir, f.tmp, f.dir, f.name, 0); err != nil {
		return err
	}
	f.tmp = ""
	if f.sync {
		return syncDir(f.dir)
	}
	return nil
}

// Discard drops the new content; the old stays. After Commit it does nothing.
func (f *File) Discard() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dir < 0 {
		return nil
	}
	return f.discard()
}

func (f *File) discard() error {
	var err error
	if f.tmp != "" {
		if err = linux.Unlinkat(f.dir, f.tmp, 0); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		f.tmp = ""
	}
	return errors.Join(err, f.release())
}

func (f *File) release() error {
	var err error
	if f.fd >= 0 {
		// What a close can report is lost content, and this content is dropped.
		_ = linux.Close(f.fd)
		f.fd = -1
	}
	err = linux.Close(f.dir)
	f.dir = -1
	return err
}

// syncDir writes a directory's entries. Some file systems cannot, and say EINVAL.
func syncDir(dir int) error {
	// An O_PATH descriptor cannot be synced.
	fd, err := linux.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = linux.Fsync(fd)
	if errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return errors.Join(err, linux.Close(fd))
}

// WriteFile replaces name in dir by data and syncs it.
func WriteFile(dir *os.File, name string, data []byte, mode uint32) error {
	return linux.Hold(dir, func(fd int) error {
		f, err := Create(fd, name, Options{Mode: mode, Sync: true})
		if err != nil {
			return err
		}
		if _, err := f.Write(data); err != nil {
			return errors.Join(err, f.Discard())
		}
		return f.Commit()
	})
}
