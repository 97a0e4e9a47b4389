package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// Child is a process that a launcher started. It is reaped on its own; no
// thread waits for it.
type Child struct {
	// Pid is its process id on the host, valid until Done.
	Pid int

	pidfd *os.File
	done  chan struct{}
	// status and err are set before done is closed.
	status syscall.WaitStatus
	err    error
}

// newChild takes ownership of the pidfd.
func newChild(pid, pidfd int) (*Child, error) {
	// The runtime's poller takes non-blocking descriptors only.
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("watch process: %w", err)
	}
	c := &Child{Pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	go c.watch()
	return c, nil
}

// watch reaps the child and ends the Child.
func (c *Child) watch() {
	defer close(c.done)
	defer func() { _ = c.pidfd.Close() }()
	defer errdefs.Recover(&c.err)
	raw, err := c.pidfd.SyscallConn()
	if err != nil {
		c.err = err
		return
	}
	var waitErr error
	err = raw.Read(func(fd uintptr) bool {
		var exited bool
		c.status, exited, waitErr = waitPidfd(int(fd))
		return exited || waitErr != nil
	})
	if c.err = errors.Join(err, waitErr); c.err != nil {
		c.err = fmt.Errorf("wait for process %d: %w", c.Pid, c.err)
	}
}

// siginfo is the kernel's siginfo_t of a SIGCHLD on 64-bit Linux.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

// waitPidfd reaps the process if it has ended.
func waitPidfd(fd int) (status syscall.WaitStatus, exited bool, err error) {
	var info siginfo
	for {
		err = unix.Waitid(unix.P_PIDFD, fd, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil || info.pid == 0 {
		return 0, false, err
	}
	const exitedNormally = 1 // CLD_EXITED; else status is the signal
	if info.code == exitedNormally {
		return syscall.WaitStatus(uint32(info.status&0xff) << 8), true, nil
	}
	return syscall.WaitStatus(uint32(info.status & 0x7f)), true, nil
}

// Done is closed once the child has ended and been reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the end of the child. The context bounds the waiting only.
func (c *Child) Wait(ctx context.Context) (syscall.WaitStatus, error) {
	select {
	case <-c.done:
		return c.status, c.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Kill sends SIGKILL. A child that has ended is left alone, and so is whoever
// got its pid since.
func (c *Child) Kill() error {
	raw, err := c.pidfd.SyscallConn()
	if err != nil {
		return nil // closed: it has ended
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return nil
	}
	if sendErr != nil && !errors.Is(sendErr, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", c.Pid, sendErr)
	}
	return nil
}
