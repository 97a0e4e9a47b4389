package supervise

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A pipe that the command fills faster than it is read becomes wide; others stay.
func TestStream_WidensThePipeOfAHeavyStream(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes int
		grows bool
	}{
		"light": {heavy - 1, false},
		"heavy": {heavy, true},
	} {
		t.Run(name, func(t *testing.T) {
			var fds [2]int
			require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
			writer := os.NewFile(uintptr(fds[1]), "writer")
			defer writer.Close()
			before := capacity(t, writer)
			if before > heavy*2 {
				t.Skip("this host's pipes are larger than usual")
			}
			s := newStream(pollable(fds[0], "reader"), func() {})
			defer s.close()
			_, err := writer.Write(make([]byte, tc.bytes))
			require.NoError(t, err)
			data, err := s.read(t.Context(), wide, ownRoom)
			require.NoError(t, err)
			require.Len(t, data, tc.bytes)
			if tc.grows {
				require.Equal(t, wide, capacity(t, writer))
			} else {
				require.Equal(t, before, capacity(t, writer))
			}
		})
	}
}

func capacity(t *testing.T, pipe *os.File) int {
	t.Helper()
	n, err := unix.FcntlInt(pipe.Fd(), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	return n
}

// Whatever a command writes at once and however much is asked for, it arrives.
func TestStream_HeavyOutputArrivesWhole(t *testing.T) {
	g, _ := sandbox(t)
	const script = "for size in 512 4096 65537 1500000; do head -c 3000000 /dev/urandom | tee >(sha256sum >&2) | dd obs=$size status=none; done"
	for _, limit := range []int{1000, 64 << 10, 8 << 20} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			p, err := g.Spawn(t.Context(), bash(script))
			require.NoError(t, err)
			defer p.Release()
			sums := make(chan []byte, 1)
			go func() { sums <- readChunks(p, 2, 1000) }()
			output := readChunks(p, 1, limit)
			require.Len(t, output, 4*3000000)
			var want []byte
			for part := range 4 {
				want = fmt.Appendf(want, "%x  -\n", sha256.Sum256(output[part*3000000:][:3000000]))
			}
			require.ElementsMatch(t, bytes.Split(want, []byte("\n")), bytes.Split(<-sums, []byte("\n")))
		})
	}
}

// readChunks reads a stream to its end, so many bytes at a time at most.
func readChunks(p *Process, stream, limit int) (all []byte) {
	for {
		data, err := p.Read(context.Background(), stream, limit)
		if err == io.EOF {
			return all
		}
		if err != nil || len(data) == 0 || len(data) > limit {
			return fmt.Appendf(all, "%d bytes, %v", len(data), err)
		}
		all = append(all, data...)
	}
}
