//go:build linux

package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// inlineLimit leaves room in a frame for the kernel's bookkeeping; larger
// messages go into a memfd.
const inlineLimit = MaxFrame / 2

// inMemfd is the whole packet when the message lies in the first descriptor. No
// message begins with a zero.
var inMemfd = []byte{0}

// Conn is one end of a conversation. Send may be called from any goroutine,
// Recv from one. Close ends both directions and may be called more than once.
type Conn struct {
	// file is in blocking mode, so that the runtime does not watch it: to the
	// runtime a socket that the peer has read from is news, and to us it is not.
	// All calls on it are MSG_DONTWAIT.
	file *os.File
	poll *linux.Poll

	// mu guards the fields below it.
	mu    sync.Mutex
	queue []outgoing
	wake  *sync.Cond
	// writing is set while the writer has taken a packet and not sent it yet.
	writing bool
	closed  bool

	// frame and control are Recv's, which has one caller.
	frame   []byte
	control []byte
}

type outgoing struct {
	data []byte
	fds  []int
}

// NewConn takes ownership of fd, a connected SOCK_SEQPACKET socket.
func NewConn(fd int) (*Conn, error) {
	unix.CloseOnExec(fd)
	poll, err := linux.NewPoll(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch control socket: %w", err)
	}
	c := &Conn{
		file:    os.NewFile(uintptr(fd), "control"),
		poll:    poll,
		frame:   make([]byte, MaxFrame),
		control: make([]byte, unix.CmsgSpace(MaxFDs*4)),
	}
	c.wake = sync.NewCond(&c.mu)
	go c.write()
	return c, nil
}

// Pair returns the two ends of a new conversation as close-on-exec descriptors.
func Pair() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("make control socket: %w", err)
	}
	return fds[0], fds[1], nil
}

// Send queues a message and returns. The descriptors belong to the Conn from
// here on and are closed once sent, or when the Conn ends.
func (c *Conn) Send(m Message, fds ...int) {
	data := encode(nil, m.fields())
	var err error
	if len(fds) > MaxFDs-1 {
		err = errors.New("too many descriptors")
	}
	if err == nil && len(data) > inlineLimit {
		var fd int
		if fd, err = SealedMemfd("message", data); err == nil {
			data, fds = inMemfd, append([]int{fd}, fds...)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.closed {
		closeAll(fds)
		if err != nil {
			// A message that cannot be sent would leave its reader waiting for
			// ever: end the conversation, which both sides know how to survive.
			c.closeLocked()
		}
		return
	}
	next := outgoing{data, fds}
	if len(c.queue) == 0 && !c.writing {
		// Almost always there is room, and waking the writer would cost more than
		// the system call.
		if err := c.writeNow(next); err != unix.EAGAIN {
			closeAll(fds)
			if err != nil {
				_ = c.closeLocked()
			}
			return
		}
	}
	c.queue = append(c.queue, next)
	c.wake.Signal()
}

// writeNow sends a packet if that needs no wait, else it returns EAGAIN.
func (c *Conn) writeNow(o outgoing) error {
	return linux.Hold(c.file, func(fd int) error { return sendmsg(fd, o) })
}

func sendmsg(fd int, o outgoing) error {
	var oob []byte
	if len(o.fds) > 0 {
		oob = unix.UnixRights(o.fds...)
	}
	for {
		err := unix.Sendmsg(fd, o.data, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err
		}
	}
}

// write sends what Send could not, in order.
func (c *Conn) write() {
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.wake.Wait()
		}
		if c.closed {
			c.mu.Unlock()
			return
		}
		next := c.queue[0]
		c.queue = c.queue[1:]
		c.writing = true
		c.mu.Unlock()

		err := c.writePacket(next)
		closeAll(next.fds)
		if err != nil {
			_ = c.Close()
			return
		}
		c.mu.Lock()
		c.writing = false
		c.mu.Unlock()
	}
}

// writePacket waits with a thread, which is rare: not before the peer is about
// 200 packets behind.
func (c *Conn) writePacket(o outgoing) error {
	return linux.Hold(c.file, func(fd int) error {
		for {
			if err := sendmsg(fd, o); err != unix.EAGAIN {
				return err
			}
			// closeLocked ends it, by the shutdown.
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		}
	})
}

// Recv waits for the next message. The descriptors, close-on-exec, belong to
// the caller. It returns io.EOF once the other side has gone or Close was called.
func (c *Conn) Recv() (Message, []int, error) {
	data, fds, err := c.readPacket()
	if err != nil {
		return Message{}, nil, err
	}
	if string(data) == string(inMemfd) {
		if len(fds) == 0 {
			return Message{}, nil, errors.New("control message without its memfd")
		}
		data, err = readMemfd(fds[0])
		_ = unix.Close(fds[0])
		fds = fds[1:]
		if err != nil {
			closeAll(fds)
			return Message{}, nil, err
		}
	}
	var m Message
	err = decode(data, m.fields())
	if err == nil && m.Kind == "" {
		err = errors.New("no kind")
	}
	if err != nil {
		closeAll(fds)
		return Message{}, nil, fmt.Errorf("decode control message: %w", err)
	}
	return m, fds, nil
}

func (c *Conn) readPacket() (data []byte, fds []int, err error) {
	buf, oob := c.frame, c.control
	var n, oobn, flags int
	recv := func(fd int) (err error) {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				return err
			}
		}
	}
	for {
		if err = linux.Hold(c.file, recv); err != unix.EAGAIN {
			break
		}
		var events [1]unix.EpollEvent
		if _, err = c.poll.Wait(events[:]); err != nil {
			break
		}
	}
	if errors.Is(err, os.ErrClosed) || err == unix.ECONNRESET {
		return nil, nil, io.EOF
	}
	if err != nil {
		return nil, nil, fmt.Errorf("receive control message: %w", err)
	}
	fds, err = parseFDs(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(fds)
		return nil, nil, errors.New("control message was cut short")
	}
	if n == 0 {
		closeAll(fds)
		return nil, nil, io.EOF
	}
	return buf[:n], fds, nil
}

func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var fds []int
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// Close ends the conversation; queued messages are dropped.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeLocked()
}

func (c *Conn) closeLocked() error {
	if c.closed {
		return nil
	}
	c.closed = true
	for _, o := range c.queue {
		closeAll(o.fds)
	}
	c.queue = nil
	c.wake.Broadcast()
	// Shutdown before close: a Recv in the poller, and the peer, see the end at
	// once even while another descriptor of this socket is still being passed on.
	_ = linux.Hold(c.file, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	return errors.Join(c.poll.Close(), c.file.Close())
}

// contentSeals keep a memfd as it is. Only memfds have them, so that they also
// tell one from a file that would make its reader wait.
const contentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// SealedMemfd returns a close-on-exec memfd that holds data, positioned at its
// start, and that nobody can change any more.
func SealedMemfd(name string, data []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make memfd %s: %w", name, err)
	}
	for off := 0; off < len(data); {
		n, err := unix.Pwrite(fd, data[off:], int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("fill memfd %s: %w", name, err)
		}
		off += n
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|contentSeals); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("seal memfd %s: %w", name, err)
	}
	return fd, nil
}

func readMemfd(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&contentSeals != contentSeals {
		return nil, errors.New("control message in what is no sealed memfd")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat control memfd: %w", err)
	}
	if st.Size > MaxMessage {
		return nil, errors.New("control message is too large")
	}
	data := make([]byte, st.Size)
	for off := 0; off < len(data); {
		n, err := unix.Pread(fd, data[off:], int64(off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read control memfd: %w", err)
		}
		if n == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		off += n
	}
	return data, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
