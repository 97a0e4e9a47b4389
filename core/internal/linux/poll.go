package linux

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Poll waits for descriptors without holding a thread: it is an epoll set that
// the runtime's own poller watches as one descriptor. The runtime by itself wakes
// up for all that can happen to a descriptor; a Poll for what it was asked for.
//
// One goroutine waits; Add and Close may be called from any.
type Poll struct {
	file *os.File
	conn syscall.RawConn
}

// NewPoll makes a set that waits for something to read on fds.
func NewPoll(fds ...int) (*Poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll set: %w", err)
	}
	// What the runtime is to watch has to be non-blocking, also this.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make epoll set: %w", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	conn, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("make epoll set: %w", err)
	}
	p := &Poll{file, conn}
	for _, fd := range fds {
		if err := p.Add(fd); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
	return p, nil
}

// Add has Wait return fd as long as there is something to read, or its end. Once
// its last descriptor is closed it leaves the set by itself.
func (p *Poll) Add(fd int) error {
	return Hold(p.file, func(epoll int) error {
		return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
}

// Wait waits until there is an event and returns how many it put into events.
// After Close it returns os.ErrClosed.
func (p *Poll) Wait(events []unix.EpollEvent) (n int, err error) {
	var waitErr error
	err = p.conn.Read(func(fd uintptr) bool {
		for {
			n, waitErr = unix.EpollWait(int(fd), events, 0)
			if waitErr != unix.EINTR {
				return n > 0 || waitErr != nil
			}
		}
	})
	if err != nil {
		return 0, os.ErrClosed
	}
	return max(n, 0), waitErr
}

// Close ends a Wait under way. The descriptors in the set stay open.
func (p *Poll) Close() error { return p.file.Close() }
