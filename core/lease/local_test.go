package lease

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LEASE_HOLD"); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold takes a lease, says so and waits to be killed.
func hold(dir string) {
	if _, err := (Local{Dir: dir}).Acquire(context.Background(), "a/x", Exclusive); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("held\n")
	select {}
}

func TestLocal_Modes(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second Mode
		held          bool
	}{
		"shared and shared":       {Shared, Shared, false},
		"shared and exclusive":    {Shared, Exclusive, true},
		"exclusive and shared":    {Exclusive, Shared, true},
		"exclusive and exclusive": {Exclusive, Exclusive, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := Local{Dir: filepath.Join(t.TempDir(), "locks")}
			first, err := l.TryAcquire("a/x", tc.first)
			require.NoError(t, err)
			other, err := l.TryAcquire("a/y", Exclusive)
			require.NoError(t, err, "another name")
			require.NoError(t, other.Release())
			second, err := l.TryAcquire("a/x", tc.second)
			if tc.held {
				require.ErrorIs(t, err, ErrHeld)
				require.NoError(t, first.Release())
				second, err = l.TryAcquire("a/x", tc.second)
			}
			require.NoError(t, err)
			require.NoError(t, second.Release())
			require.NoError(t, second.Release())
			require.NoError(t, first.Release())
		})
	}
}

func TestLocal_Names(t *testing.T) {
	l := Local{Dir: t.TempDir()}
	for _, name := range []string{"", ".", "..", "../x", "/x", "a/../../x"} {
		_, err := l.TryAcquire(name, Shared)
		require.ErrorIs(t, err, os.ErrInvalid, name)
	}
}

func TestLocal_Contract(t *testing.T) {
	held, err := Local{Dir: t.TempDir()}.Acquire(t.Context(), "x", Exclusive)
	require.NoError(t, err)
	require.NoError(t, held.Renew(t.Context()))
	require.Zero(t, held.Epoch())
	select {
	case <-held.Lost():
		t.Fatal("lost")
	default:
	}
	require.NoError(t, held.Release())
	require.ErrorIs(t, held.Renew(t.Context()), os.ErrClosed)
}

func TestLocal_FilesArePrivate(t *testing.T) {
	l := Local{Dir: filepath.Join(t.TempDir(), "locks")}
	held, err := l.TryAcquire("a/x", Shared)
	require.NoError(t, err)
	defer func() { require.NoError(t, held.Release()) }()
	for path, mode := range map[string]os.FileMode{"": 0o700, "a": 0o700, "a/x": 0o600} {
		st, err := os.Stat(filepath.Join(l.Dir, path))
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode().Perm(), path)
	}
}

func TestLocal_WaitEndsWithContext(t *testing.T) {
	l := Local{Dir: t.TempDir()}
	held, err := l.TryAcquire("x", Exclusive)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	result := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "x", Shared)
		result <- err
	}()
	cancel(reason)
	require.ErrorIs(t, <-result, reason)
	_, err = l.Acquire(ctx, "y", Shared)
	require.ErrorIs(t, err, reason)
	require.NoError(t, held.Release())
}

func TestLocal_WaiterIsServed(t *testing.T) {
	l := Local{Dir: t.TempDir()}
	held, err := l.TryAcquire("x", Exclusive)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "x", Exclusive)
		if err == nil {
			err = lease.Release()
		}
		result <- err
	}()
	require.NoError(t, held.Release())
	require.NoError(t, <-result)
}

// Discarding and acquiring at once: never two holders, though the file under
// the name changes all the time.
func TestLocal_DiscardAgainstAcquire(t *testing.T) {
	l := Local{Dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var holders, turns atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				lease, err := l.Acquire(ctx, "x", Exclusive)
				if err != nil {
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				turns.Add(1)
				holders.Add(-1)
				if err := lease.Discard(); err != nil {
					t.Errorf("discard: %v", err)
				}
			}
		})
	}
	all.Wait()
	require.Greater(t, turns.Load(), int64(8))
	require.NoFileExists(t, filepath.Join(l.Dir, "x"))
}

func TestLocal_SharedDiscardKeepsTheFile(t *testing.T) {
	l := Local{Dir: t.TempDir()}
	a, err := l.TryAcquire("x", Shared)
	require.NoError(t, err)
	b, err := l.TryAcquire("x", Shared)
	require.NoError(t, err)
	require.NoError(t, a.Discard())
	_, err = l.TryAcquire("x", Exclusive)
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, b.Release())
}

func TestLocal_KernelFreesWhatAKilledProcessHeld(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LEASE_HOLD="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	l := Local{Dir: dir}
	_, err = l.TryAcquire("a/x", Shared)
	require.ErrorIs(t, err, ErrHeld)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	held, err := l.Acquire(t.Context(), "a/x", Exclusive)
	require.NoError(t, err)
	require.NoError(t, held.Release())
}
