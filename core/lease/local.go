package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// Local is the Locker of one machine: an flock on a file per name. Every lease
// has an open file description of its own, so it excludes other goroutines as
// well as other processes.
//
// On file systems shared by several machines flock is as good as the file system
// makes it, and does not fence; see the package's Epoch.
type Local struct {
	// Dir holds the files; it is made, with mode 0700, when it is missing.
	// Nobody but the holders may be able to write it.
	Dir string
}

var _ Locker = Local{}

const (
	firstPause = time.Millisecond
	// longestPause bounds what a waiter loses after the holder has gone; twenty
	// looks a second cost nothing measurable.
	longestPause = 50 * time.Millisecond
)

// Acquire implements [Locker].
//
// It asks again and again instead of waiting in the kernel: a thread blocked in
// flock(2) can only be woken by a signal, and signals belong to the program this
// library is part of. So ctx would end the wait but leave the thread behind.
func (l Local) Acquire(ctx context.Context, name string, mode Mode) (Lease, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		held, err := l.TryAcquire(name, mode)
		if !errors.Is(err, ErrHeld) {
			return held, err
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// TryAcquire implements [Locker].
func (l Local) TryAcquire(name string, mode Mode) (Lease, error) {
	if !filepath.IsLocal(name) || name == "." {
		return nil, fmt.Errorf("lease name %q: %w", name, os.ErrInvalid)
	}
	how := unix.LOCK_SH
	if mode == Exclusive {
		how = unix.LOCK_EX
	}
	path := filepath.Join(l.Dir, name)
	for {
		fd, err := open(path)
		if err != nil {
			return nil, withoutPath(err)
		}
		if err := linux.Flock(fd, how|unix.LOCK_NB); err != nil {
			_ = linux.Close(fd)
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrHeld
			}
			return nil, err
		}
		// Between open and flock the file may have been discarded: then the lock
		// is on a file that nobody else will find, and worth nothing.
		if current(fd, path) {
			return &local{path: path, mode: mode, fd: fd}, nil
		}
		_ = linux.Close(fd)
	}
}

func open(path string) (int, error) {
	for try := 0; ; try++ {
		fd, err := linux.Openat(unix.AT_FDCWD, path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NOCTTY, 0o600)
		if errors.Is(err, fs.ErrNotExist) && try < 3 {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return -1, err
			}
			continue
		}
		return fd, err
	}
}

func current(fd int, path string) bool {
	held, err := linux.Fstat(fd)
	if err != nil {
		return false
	}
	named, err := linux.Lstatat(unix.AT_FDCWD, path)
	return err == nil && held.Dev == named.Dev && held.Ino == named.Ino
}

// withoutPath drops the host path from a message that may reach a model.
func withoutPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return os.NewSyscallError(path.Op, path.Err)
	}
	return err
}

type local struct {
	path string
	mode Mode

	mu sync.Mutex
	fd int // -1 after the end
}

// never is the Lost of a lock that the kernel keeps: it is never closed.
var never = make(chan struct{})

func (l *local) Renew(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return os.ErrClosed
	}
	return nil
}

func (l *local) Lost() <-chan struct{} { return never }

func (l *local) Epoch() uint64 { return 0 }

func (l *local) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.release()
}

func (l *local) release() error {
	if l.fd < 0 {
		return nil
	}
	// Unlocked before it is closed: a child that another thread is just forking
	// has a copy of the descriptor until its exec, and with it the lock.
	err := linux.Flock(l.fd, unix.LOCK_UN)
	err = errors.Join(err, linux.Close(l.fd))
	l.fd = -1
	return err
}

func (l *local) Discard() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.fd >= 0 && l.mode == Exclusive {
		// While the lock is held: nobody else can hold the name's lock meanwhile,
		// and who waits for this file looks for its name once it has the lock.
		err = linux.Unlinkat(unix.AT_FDCWD, l.path, 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(withoutPath(err), l.release())
}
