//go:build linux

package wire

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Whatever a peer sends, with whatever descriptors: a Recv returns, leaves no
// descriptor but those that it hands over, and makes no more of it than was sent.
func FuzzConn_Recv(f *testing.F) {
	f.Fuzz(func(t *testing.T, packet, content []byte, seals uint8, files uint8) {
		if len(packet) > 2*MaxFrame || len(content) > 1<<20 {
			return
		}
		before := openFDs(t)
		received(t, packet, content, int(seals)&contentSeals, int(files%(2*MaxFDs)))
		require.Equal(t, before, openFDs(t))
	})
}

// received has a Conn receive a packet with a memfd of that content, if there is
// any, and other descriptors.
func received(t *testing.T, packet, content []byte, seals, files int) {
	ours, theirs, err := Pair()
	require.NoError(t, err)
	defer unix.Close(theirs)
	c, err := NewConn(ours)
	require.NoError(t, err)
	defer c.Close()

	var fds []int
	defer func() { closeAll(fds) }()
	if len(content) > 0 {
		fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		fds = append(fds, fd)
		_, err = unix.Pwrite(fd, content, 0)
		require.NoError(t, err)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	for range files {
		fds = append(fds, dup(t, theirs))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(theirs, packet, rights, nil, 0); errors.Is(err, unix.EMSGSIZE) {
		return
	}
	require.NoError(t, unix.Shutdown(theirs, unix.SHUT_WR))
	m, got, err := c.Recv()
	closeAll(got)
	if err != nil {
		require.Empty(t, got)
		require.Equal(t, Message{}, m)
		return
	}
	require.LessOrEqual(t, len(got), MaxFDs)
	require.LessOrEqual(t, len(encode(nil, m.fields())), max(len(packet), len(content)))
}
