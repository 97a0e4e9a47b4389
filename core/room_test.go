package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// bounded are sessions of one process, a, b and so on, each with that limit.
func bounded(t *testing.T, n int, limit int64) []*watched {
	t.Helper()
	first := watchWith(t, func(req *CreateRequest) { req.SessionKey, req.Lifetime.MaxLiveGenerations = "a", limit })
	all := []*watched{first}
	for i := 1; i < n; i++ {
		all = append(all, first.beside(func(req *CreateRequest) {
			req.SessionKey, req.Lifetime.MaxLiveGenerations = string(rune('a'+i)), limit
		}))
	}
	return all
}

// requireWaiting sees to it that f, whose end is told, waits for a place.
func requireWaiting(t *testing.T, w *watched, ended <-chan error) {
	t.Helper()
	var g *generation
	require.Eventually(t, func() bool {
		w.session.mu.Lock()
		defer w.session.mu.Unlock()
		for g = range w.session.live {
		}
		return g != nil
	}, patience, time.Millisecond)
	select {
	case <-g.full:
	case <-time.After(patience):
		require.Fail(t, "it does not wait")
	}
	select {
	case err := <-ended:
		require.Fail(t, "it has begun", "%v", err)
	default:
	}
}

func (w *watched) runLater(ctx context.Context, text string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		result, err := w.Run(ctx, script(text), spec.Limits{})
		if err == nil && result.ExitCode != 0 {
			err = fmt.Errorf("exit code %d", result.ExitCode)
		}
		ended <- err
	}()
	return ended
}

func require0(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "it has not ended")
	}
}

func TestRoom_TheLongestUnusedGoes(t *testing.T) {
	s := bounded(t, 4, 2)
	s[0].run("echo x > /tmp/kept")
	s[1].run("echo x > file; echo x > /tmp/gone")
	s[0].run("true")
	s[2].run("true")
	require.Eventually(t, func() bool { return len(s[1].of(event.CleanupCompleted)) == 1 }, patience, time.Millisecond)
	require.Equal(t, event.ReasonLimit, s[1].of(event.CleanupStarted)[0].Reason)
	require.Equal(t, "kept\n", s[0].run("ls /tmp"))
	s[3].run("true")
	require.Equal(t, 1, s[0].generations())
	require.Zero(t, s[2].generations())
	require.Equal(t, "file\n", s[1].run("ls; ls /tmp"))
}

func TestRoom_WaitsWhereAllAreInUse(t *testing.T) {
	for name, tc := range map[string]struct{ begin, end func(w *watched, nap string) }{
		"a command": {
			func(w *watched, nap string) { w.spawn("exec " + nap) },
			func(w *watched, nap string) { _ = unix.Kill(pids(nap)[0], unix.SIGKILL) },
		},
		"a child of one": {
			func(w *watched, nap string) { w.run("setsid " + nap + " >/dev/null 2>&1 & true") },
			func(w *watched, nap string) { _ = unix.Kill(pids(nap)[0], unix.SIGKILL) },
		},
		"that is stopped": {
			func(w *watched, nap string) { w.run(nap + " & true") },
			func(w *watched, _ string) { _ = w.Stop(context.Background()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := bounded(t, 2, 1)
			nap := nap()
			tc.begin(s[0], nap)
			require.Eventually(t, func() bool { return len(pids(nap)) == 1 }, patience, time.Millisecond)
			ended := s[1].runLater(t.Context(), "true")
			requireWaiting(t, s[1], ended)
			require.Len(t, pids(nap), 1)
			require.Empty(t, s[0].of(event.CleanupStarted))
			tc.end(s[0], nap)
			require0(t, ended)
		})
	}
}

func TestRoom_WaitingEnds(t *testing.T) {
	why := errors.New("enough")
	timeout := &errdefs.Error{Code: errdefs.Timeout}
	for name, tc := range map[string]struct {
		end  func(w *watched, cancel context.CancelCauseFunc)
		want errdefs.Code
	}{
		"abort":      {func(_ *watched, cancel context.CancelCauseFunc) { cancel(why) }, errdefs.Aborted},
		"time limit": {func(_ *watched, cancel context.CancelCauseFunc) { cancel(timeout) }, errdefs.Timeout},
		"stop":       {func(w *watched, _ context.CancelCauseFunc) { _ = w.Stop(context.Background()) }, errdefs.Closed},
		"delete":     {func(w *watched, _ context.CancelCauseFunc) { _ = w.Delete(context.Background()) }, errdefs.Closed},
		"close":      {func(w *watched, _ context.CancelCauseFunc) { _ = w.Close(context.Background()) }, errdefs.Closed},
	} {
		for _, processes := range []spec.Processes{spec.OfSession, spec.OfCommand} {
			t.Run(name+", of "+string(processes), func(t *testing.T) {
				t.Parallel()
				s := bounded(t, 2, 1)
				waiting := s[0].beside(func(req *CreateRequest) {
					req.SessionKey, req.Sandbox.Processes = "c", processes
					req.Lifetime.MaxLiveGenerations = 1
				})
				first := s[0].spawn("exec sleep 300")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				ended := waiting.runLater(ctx, "true")
				requireWaiting(t, waiting, ended)
				tc.end(waiting, cancel)
				select {
				case err := <-ended:
					require.Equal(t, tc.want, errdefs.CodeOf(err), "%v", err)
				case <-time.After(patience):
					require.Fail(t, "it waits on")
				}
				require.Eventually(t, func() bool { return waiting.generations() == 0 }, patience, time.Millisecond)
				require.Empty(t, waiting.all(), "nothing has started")
				require.NoError(t, first.Kill(t.Context(), event.ReasonKilled))
				// The place is not lost.
				s[1].run("true")
			})
		}
	}
}

func TestRoom_TheImpatientAreRefused(t *testing.T) {
	for _, processes := range []spec.Processes{spec.OfSession, spec.OfCommand} {
		t.Run(string(processes), func(t *testing.T) {
			t.Parallel()
			s := bounded(t, 1, 1)
			w := s[0].beside(func(req *CreateRequest) {
				req.SessionKey, req.Sandbox.Processes = "b", processes
				req.Lifetime.MaxLiveGenerations = 1
			})
			at := script("true")
			at.NoQueue = true
			first := s[0].spawn("exec sleep 300")
			kept := w.runLater(t.Context(), "true")
			requireWaiting(t, w, kept)
			_, err := w.Run(t.Context(), at, spec.Limits{})
			var known *errdefs.Error
			require.ErrorAs(t, err, &known)
			require.Equal(t, []any{errdefs.Busy, int64(1), int64(1)}, []any{known.Code, known.Limit, known.Live})
			require.Empty(t, s[0].of(event.CleanupStarted))
			require.NoError(t, first.Kill(t.Context(), event.ReasonKilled))
			require0(t, kept) // whoever waits was not refused with it
			// What is unused is ended for them, too.
			_, err = w.Run(t.Context(), at, spec.Limits{})
			require.NoError(t, err)
		})
	}
}

// Of several who wait for one start, the last to give up ends it.
func TestRoom_OneOfManyGivesUp(t *testing.T) {
	s := bounded(t, 2, 1)
	first := s[0].spawn("exec sleep 300")
	ctx, cancel := context.WithCancel(t.Context())
	given := s[1].runLater(ctx, "true")
	kept := s[1].runLater(t.Context(), "true")
	requireWaiting(t, s[1], kept)
	require.Eventually(t, func() bool {
		s[1].session.mu.Lock()
		defer s[1].session.mu.Unlock()
		for g := range s[1].session.live {
			return g.users == 2
		}
		return false
	}, patience, time.Millisecond)
	cancel()
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(<-given))
	require.NoError(t, first.Kill(t.Context(), event.ReasonKilled))
	require0(t, kept)
}

func TestRoom_NeverMoreThanTheLimit(t *testing.T) {
	const limit = 3
	s := bounded(t, 6, limit)
	for _, w := range s[:2] {
		w.sandbox.Processes = spec.OfCommand
		w.shape = w.sandbox.Shape()
	}
	require.Zero(t, sandboxes(t))
	stop := make(chan struct{})
	var sampler, crowd sync.WaitGroup
	most := 0
	sampler.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				most = max(most, sandboxes(t))
			}
		}
	})
	for i := range 60 {
		crowd.Go(func() {
			<-time.After(time.Duration(rand.IntN(500)) * time.Millisecond) //nolint:gosec // no secret
			w := s[i%len(s)]
			result, err := w.Run(t.Context(), script("sleep 0.01; echo here"), spec.Limits{})
			if err != nil || string(result.Stdout) != "here\n" {
				t.Errorf("%s %v", result.Stdout, err)
			}
		})
	}
	crowd.Wait()
	close(stop)
	sampler.Wait()
	require.LessOrEqual(t, most, limit)
	require.Positive(t, most)
	for _, w := range s {
		require.Eventually(t, func() bool { return len(w.of(event.CommandFinished)) == 10 }, patience, time.Millisecond)
	}
}

// sandboxes counts this process's living bwraps.
func sandboxes(t *testing.T) (n int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range stats {
		stat, _ := os.ReadFile(name)
		var state rune
		var parent int
		_, _ = fmt.Sscanf(string(stat), "%d (bwrap) %c %d", new(int), &state, &parent)
		if parent == os.Getpid() && state != 'Z' {
			n++
		}
	}
	return n
}
