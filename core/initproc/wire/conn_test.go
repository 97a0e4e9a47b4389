//go:build linux

package wire

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pair returns the two ends of a conversation.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	ours, theirs, err := Pair()
	require.NoError(t, err)
	a, err = NewConn(ours)
	require.NoError(t, err)
	b, err = NewConn(theirs)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return a, b
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestConn_CarriesMessages(t *testing.T) {
	a, b := pair(t)
	for name, m := range map[string]Message{
		"small": {Kind: KindHello, Version: Version},
		"spawn": {Kind: KindSpawn, ID: 1<<63 + 1, Spawn: &Spawn{
			Argv: []string{"/bin/bash", "-lc", "echo \x00\u2028"}, Env: []string{"A="}, Dir: "/workspace", Network: NetworkNone, Stdin: true,
		}},
		"at the limit":   {Kind: KindOpen, Path: strings.Repeat("p", inlineLimit-30)},
		"over the limit": {Kind: KindOpen, Path: strings.Repeat("p", inlineLimit)},
		"over the frame": {Kind: KindOpen, Path: strings.Repeat("p", MaxFrame)},
		"very large":     {Kind: KindOpen, Path: strings.Repeat("p", MaxMessage-100)},
		"with escapes":   {Kind: KindOpen, Path: strings.Repeat("\x01", inlineLimit/4)},
		"a raw status":   {Kind: KindExited, ID: 1, Status: 0xffffffff},
		"not UTF-8":      {Kind: KindOpened, Name: "a\xff\xc3"},
		"below zero":     {Kind: KindKilled, Left: -1},
	} {
		t.Run(name, func(t *testing.T) {
			a.Send(m)
			got, fds, err := b.Recv()
			require.NoError(t, err)
			require.Empty(t, fds)
			require.Equal(t, m, got)
		})
	}
}

func TestConn_CarriesDescriptors(t *testing.T) {
	before := openFDs(t)
	a, b := pair(t)
	for name, size := range map[string]int{"inline": 10, "with a memfd": inlineLimit * 2} {
		t.Run(name, func(t *testing.T) {
			var sent []int
			for i := range MaxFDs - 1 {
				fd, err := SealedMemfd("test", fmt.Append(nil, i))
				require.NoError(t, err)
				sent = append(sent, fd)
			}
			a.Send(Message{Kind: KindOpened, Name: strings.Repeat("n", size)}, sent...)
			m, fds, err := b.Recv()
			require.NoError(t, err)
			require.Len(t, m.Name, size)
			require.Len(t, fds, len(sent))
			for i, fd := range fds {
				content, err := readMemfd(fd)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(i), string(content))
				flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
				require.NoError(t, err)
				require.NotZero(t, flags&unix.FD_CLOEXEC)
				require.NoError(t, unix.Close(fd))
			}
		})
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Eventually(t, func() bool { return openFDs(t) <= before+1 }, 5*time.Second, time.Millisecond, "descriptors are left") // +1: Go's poller
}

// Neither side may wait for the other: sending to one that does not read returns.
func TestConn_SendNeverBlocks(t *testing.T) {
	a, b := pair(t)
	const count = 5000
	var wait sync.WaitGroup
	for i := range count {
		wait.Go(func() { a.Send(Message{Kind: KindKill, ID: uint64(i + 1), Path: strings.Repeat("x", 1000)}) })
	}
	wait.Wait()
	seen := map[uint64]bool{}
	for range count {
		m, _, err := b.Recv()
		require.NoError(t, err)
		seen[m.ID] = true
	}
	require.Len(t, seen, count)
}

func TestConn_KeepsTheOrderOfOneSender(t *testing.T) {
	a, b := pair(t)
	for i := range 1000 {
		a.Send(Message{Kind: KindKill, ID: uint64(i), Name: strings.Repeat("x", (i%3)*inlineLimit/2)})
	}
	for i := range 1000 {
		m, _, err := b.Recv()
		require.NoError(t, err)
		require.EqualValues(t, i, m.ID)
	}
}

func TestConn_Ends(t *testing.T) {
	for name, end := range map[string]func(a, b *Conn) error{
		"here":  func(a, _ *Conn) error { return a.Close() },
		"there": func(_, b *Conn) error { return b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			got := make(chan error, 1)
			go func() {
				_, _, err := a.Recv()
				got <- err
			}()
			require.NoError(t, end(a, b))
			require.ErrorIs(t, <-got, io.EOF)
			_, _, err := a.Recv()
			require.ErrorIs(t, err, io.EOF)

			// What is sent afterwards goes nowhere, its descriptors are closed.
			require.NoError(t, a.Close())
			fd, err := SealedMemfd("test", nil)
			require.NoError(t, err)
			a.Send(Message{Kind: KindOpened}, fd)
			_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.ErrorIs(t, err, unix.EBADF)
		})
	}
}

func TestConn_TooManyDescriptorsEndIt(t *testing.T) {
	a, b := pair(t)
	var fds []int
	for range MaxFDs {
		fd, err := SealedMemfd("test", nil)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	a.Send(Message{Kind: KindOpened}, fds...)
	_, _, err := b.Recv()
	require.ErrorIs(t, err, io.EOF)
}

// A peer that was taken over sends what it likes.
func TestConn_RefusesNonsense(t *testing.T) {
	packed := encode(nil, (&Message{Kind: KindKilled, ID: 1}).fields())
	memfd := func(t *testing.T, content []byte, seals int) []int {
		fd, err := unix.MemfdCreate("nonsense", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		_, err = unix.Pwrite(fd, content, 0)
		require.NoError(t, err)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return []int{fd}
	}
	sealed := func(t *testing.T, size int) []int { return memfd(t, make([]byte, size), contentSeals) }
	file := func(t *testing.T) []int {
		name := t.TempDir() + "/file"
		require.NoError(t, os.WriteFile(name, packed, 0o600))
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		return []int{fd}
	}
	for name, tc := range map[string]struct {
		packet string
		fds    func(t *testing.T) []int
	}{
		"no message":        {"hello", nil},
		"no kind":           {"\x04\x01", nil},
		"no memfd":          {string(inMemfd), nil},
		"an empty memfd":    {string(inMemfd), func(t *testing.T) []int { return sealed(t, 0) }},
		"a memfd of zeros":  {string(inMemfd), func(t *testing.T) []int { return sealed(t, 100) }},
		"a huge memfd":      {string(inMemfd), func(t *testing.T) []int { return sealed(t, MaxMessage+1) }},
		"one that changes":  {string(inMemfd), func(t *testing.T) []int { return memfd(t, packed, 0) }},
		"one that shrinks":  {string(inMemfd), func(t *testing.T) []int { return memfd(t, packed, unix.F_SEAL_WRITE|unix.F_SEAL_GROW) }},
		"a file as memfd":   {string(inMemfd), file},
		"a pipe as memfd":   {string(inMemfd), func(t *testing.T) []int { return pipe(t) }},
		"a frame too large": {strings.Repeat(" ", MaxFrame+1), nil},
		"too many files":    {"\x03\x01k", func(t *testing.T) []int { return append(many(t, MaxFDs), many(t, MaxFDs)...) }},
		"cut short":         {"\x03\x05kin", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs, err := Pair()
			require.NoError(t, err)
			defer unix.Close(theirs)
			c, err := NewConn(ours)
			require.NoError(t, err)
			defer c.Close()
			before := openFDs(t)
			var oob []byte
			if tc.fds != nil {
				fds := tc.fds(t)
				oob = unix.UnixRights(fds...)
				defer closeAll(fds)
				before += len(fds)
			}
			require.NoError(t, unix.Sendmsg(theirs, []byte(tc.packet), oob, nil, 0))
			_, fds, err := c.Recv()
			require.Error(t, err)
			require.Empty(t, fds)
			require.Equal(t, before, openFDs(t), "received descriptors are left")
		})
	}
}

func many(t *testing.T, n int) (fds []int) {
	for range n {
		fd, err := SealedMemfd("test", nil)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	return fds
}

func pipe(t *testing.T) []int {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	return p[:]
}

func TestSealedMemfd_CannotBeChanged(t *testing.T) {
	fd, err := SealedMemfd("test", []byte("content"))
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, []byte("x"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	content, err := io.ReadAll(os.NewFile(uintptr(dup(t, fd)), "test"))
	require.NoError(t, err)
	require.Equal(t, "content", string(content), "it is positioned at its start")
}

func dup(t *testing.T, fd int) int {
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	return d
}
