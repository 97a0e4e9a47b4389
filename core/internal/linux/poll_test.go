package linux

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func socketpair(t *testing.T) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
	return fds[0], fds[1]
}

func wait(t *testing.T, p *Poll) <-chan []unix.EpollEvent {
	t.Helper()
	got := make(chan []unix.EpollEvent, 1)
	go func() {
		events := make([]unix.EpollEvent, 4)
		n, _ := p.Wait(events)
		got <- events[:n]
	}()
	return got
}

func TestPoll_WaitsForWhatWasAskedFor(t *testing.T) {
	a, b := socketpair(t)
	p, err := NewPoll(a)
	require.NoError(t, err)
	defer p.Close()
	got := wait(t, p)

	// That the other side has read is an event of the socket, but not of ours.
	_, err = unix.Write(a, []byte("x"))
	require.NoError(t, err)
	_, err = unix.Read(b, make([]byte, 1))
	require.NoError(t, err)
	select {
	case events := <-got:
		t.Fatalf("woken up by %v", events)
	case <-time.After(50 * time.Millisecond):
	}
	_, err = unix.Write(b, []byte("y"))
	require.NoError(t, err)
	events := <-got
	require.Len(t, events, 1)
	require.EqualValues(t, a, events[0].Fd)

	// What has not been read is told again.
	require.Len(t, <-wait(t, p), 1)
}

func TestPoll_AddWhileSomebodyWaits(t *testing.T) {
	p, err := NewPoll()
	require.NoError(t, err)
	defer p.Close()
	got := wait(t, p)
	a, b := socketpair(t)
	_, err = unix.Write(b, []byte("x"))
	require.NoError(t, err)
	require.NoError(t, p.Add(a))
	require.Len(t, <-got, 1)
}

func TestPoll_CloseEndsAWait(t *testing.T) {
	p, err := NewPoll()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Wait(make([]unix.EpollEvent, 1))
		ended <- err
	}()
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
	_, err = p.Wait(make([]unix.EpollEvent, 1))
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, p.Add(0), os.ErrClosed)
}

func TestNewPoll_RefusesWhatCannotBeWaitedFor(t *testing.T) {
	_, err := NewPoll(-1)
	require.ErrorIs(t, err, unix.EBADF)
	file, err := os.Open("/etc/passwd")
	require.NoError(t, err)
	defer file.Close()
	_, err = NewPoll(int(file.Fd()))
	require.ErrorIs(t, err, unix.EPERM)
}
