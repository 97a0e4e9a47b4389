package supervise

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// lender is a Memory that knows what it has given and not got back.
type lender struct {
	mu  sync.Mutex
	out map[*byte]int
}

func (l *lender) memory(old []byte, size int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old != nil {
		l.take(old)
	}
	if size == 0 {
		return nil
	}
	block := make([]byte, size) // elsewhere each time, so that nothing relies on the old place
	copy(block, old)
	clear(old)
	l.out[unsafe.SliceData(block)] = size
	return block
}

// take forgets a block, which must be one, from its beginning.
func (l *lender) take(block []byte) {
	size, known := l.out[unsafe.SliceData(block)]
	if !known || len(block) > size {
		panic("it is no block of ours")
	}
	delete(l.out, unsafe.SliceData(block))
}

func TestMemory_GetsAllOutputAndAllElseBack(t *testing.T) {
	g, _ := sandbox(t)
	for name, tc := range map[string]struct {
		script         string
		limits         Limits
		stdout, stderr int
		code           errdefs.Code
	}{
		"nothing":      {"true", Limits{}, 0, 0, ""},
		"both":         {"head -c 300000 /dev/zero; head -c 5 /dev/zero >&2", Limits{}, 300000, 5, ""},
		"one":          {"head -c 5 /dev/zero >&2", Limits{}, 0, 5, ""},
		"over a limit": {"head -c 3000000 /dev/zero", Limits{OutputBytes: 100000}, 100000, 0, errdefs.OutputLimit},
		"timeout":      {"head -c 100000 /dev/zero; sleep 100", Limits{Timeout: time.Second}, 100000, 0, errdefs.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lender{out: map[*byte]int{}}
			cmd := bash(tc.script)
			cmd.Memory = l.memory
			r, err := Run(t.Context(), g, cmd, tc.limits)
			require.Equal(t, tc.code, errdefs.CodeOf(err))
			require.GreaterOrEqual(t, len(r.Stdout), tc.stdout)
			require.Len(t, r.Stderr, tc.stderr)
			for _, block := range [][]byte{r.Stdout, r.Stderr} {
				if len(block) > 0 {
					l.take(block)
				}
			}
			require.Empty(t, l.out)
		})
	}
	t.Run("read", func(t *testing.T) {
		l := &lender{out: map[*byte]int{}}
		cmd := bash("head -c 3000000 /dev/zero; sleep 0.1; echo end; exec sleep 100 >&-")
		cmd.Memory = l.memory
		p, err := g.Spawn(t.Context(), cmd)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Kill(context.Background()) })
		defer p.Release()
		total := 0
		for {
			data, err := p.Read(t.Context(), 1, 1<<20)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			total += len(data)
			l.take(data)
		}
		require.Equal(t, 3000004, total)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = p.Read(ctx, 2, 100)
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
		require.Empty(t, l.out)
	})
}
