package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

const patience = 10 * time.Second

// sent is a reply as the caller gets it.
type sent struct {
	call uint64
	json string
	data []byte
}

// testEnvironment opens an environment whose replies come through the channel.
func testEnvironment(t *testing.T) (*environment, chan sent) {
	t.Helper()
	replies := make(chan sent, 1000)
	e := openEnvironment(func(call uint64, json, data []byte) { replies <- sent{call, string(json), data} })
	t.Cleanup(func() { closeEnvironment(e.id) })
	return e, replies
}

func next(t *testing.T, replies chan sent) sent {
	t.Helper()
	select {
	case r := <-replies:
		return r
	case <-time.After(patience):
		require.FailNow(t, "no reply")
		return sent{}
	}
}

func codeOf(t *testing.T, r sent) errdefs.Code {
	t.Helper()
	var body struct{ Error struct{ Code errdefs.Code } }
	require.NoError(t, json.Unmarshal([]byte(r.json), &body), r.json)
	return body.Error.Code
}

type nothing struct{}

func untilCancelled(ctx context.Context, _ *environment, _ nothing, _ []byte) (any, []byte, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func TestEnvironment_NumbersAreNeverReusedAndNeverSmall(t *testing.T) {
	seen := map[uint64]bool{}
	for range 1000 {
		e := openEnvironment(func(uint64, []byte, []byte) {})
		id, err := e.add("something", nil)
		require.NoError(t, err)
		require.Greater(t, e.id, uint64(42<<16))
		require.False(t, seen[e.id] || seen[id])
		seen[e.id], seen[id] = true, true
		closeEnvironment(e.id)
		require.Nil(t, findEnvironment(e.id))
	}
}

func TestServe_AnswersEachCallOnce(t *testing.T) {
	e, replies := testEnvironment(t)
	type number struct{ N int }
	double := func(_ context.Context, _ *environment, req number, data []byte) (any, []byte, error) {
		return number{2 * req.N}, append(data, '!'), nil
	}
	const calls = 500
	for call := uint64(1); call <= calls; call++ {
		serve(e, call, fmt.Appendf(nil, `{"N":%d}`, call), []byte("x"), double)
	}
	got := map[uint64]bool{}
	for range calls {
		r := next(t, replies)
		require.False(t, got[r.call])
		got[r.call] = true
		require.JSONEq(t, fmt.Sprintf(`{"ok":{"N":%d}}`, 2*r.call), r.json)
		require.Equal(t, "x!", string(r.data))
	}
	require.Empty(t, replies)
	require.Empty(t, e.calls)
}

func TestServe_DropsWhatCannotBeAnsweredUnmistakably(t *testing.T) {
	e, replies := testEnvironment(t)
	var ran atomic.Int32
	count := func(ctx context.Context, e *environment, req nothing, data []byte) (any, []byte, error) {
		ran.Add(1)
		return untilCancelled(ctx, e, req, data)
	}
	serve(e, 0, []byte("{}"), nil, count) // would look like an event
	serve(e, 7, []byte("{}"), nil, count)
	serve(e, 7, []byte("{}"), nil, count) // still under way
	e.cancel(7)
	require.Equal(t, errdefs.Aborted, codeOf(t, next(t, replies)))
	closeEnvironment(e.id)
	serve(e, 8, []byte("{}"), nil, count)
	require.Empty(t, replies)
	require.Equal(t, int32(1), ran.Load())
}

func TestCancel(t *testing.T) {
	e, replies := testEnvironment(t)
	t.Run("ends the call it names and no other", func(t *testing.T) {
		serve(e, 1, []byte("{}"), nil, untilCancelled)
		serve(e, 2, []byte("{}"), nil, untilCancelled)
		serve(e, 3, []byte(`{"target":2}`), nil, cancelCall)
		got := map[uint64]errdefs.Code{}
		for range 2 {
			r := next(t, replies)
			got[r.call] = codeOf(t, r)
		}
		require.Equal(t, map[uint64]errdefs.Code{2: errdefs.Aborted, 3: ""}, got)
		e.cancel(1)
		require.Equal(t, uint64(1), next(t, replies).call)
	})
	t.Run("of a call that is over is nothing", func(t *testing.T) {
		serve(e, 4, []byte(`{"target":1}`), nil, cancelCall)
		require.Equal(t, sent{4, `{"ok":{}}`, nil}, next(t, replies))
	})
	t.Run("leaves a number free for the next call", func(t *testing.T) {
		serve(e, 1, []byte("{}"), nil, untilCancelled)
		e.cancel(1)
		require.Equal(t, uint64(1), next(t, replies).call)
	})
	t.Run("gives its cause", func(t *testing.T) {
		cause := make(chan error, 1)
		serve(e, 5, []byte("{}"), nil, func(ctx context.Context, _ *environment, _ nothing, _ []byte) (any, []byte, error) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil, nil, nil
		})
		e.cancel(5)
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(<-cause))
		next(t, replies)
	})
}

func TestClose_CancelsCallsAndSilencesThem(t *testing.T) {
	e, replies := testEnvironment(t)
	causes := make(chan error, 10)
	for call := uint64(1); call <= 10; call++ {
		serve(e, call, []byte("{}"), nil, func(ctx context.Context, _ *environment, _ nothing, _ []byte) (any, []byte, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, nil, nil
		})
	}
	closeEnvironment(e.id)
	closeEnvironment(e.id) // a no-op
	for range 10 {
		require.Equal(t, errdefs.Closed, errdefs.CodeOf(<-causes))
	}
	e.event(nothing{})
	require.Empty(t, replies)
}

// No send may start after close has returned: the caller may be gone.
func TestClose_NoReplyComesAfterItReturned(t *testing.T) {
	for range 40 {
		var closed, late atomic.Bool
		e := openEnvironment(func(uint64, []byte, []byte) {
			if closed.Load() {
				late.Store(true)
			}
		})
		var senders sync.WaitGroup
		for range 4 {
			senders.Go(func() {
				for !closed.Load() {
					e.event(nothing{})
				}
				e.event(nothing{})
			})
		}
		closeEnvironment(e.id)
		closed.Store(true)
		senders.Wait()
		require.False(t, late.Load())
	}
}

func TestClose_RunsClosersOnce(t *testing.T) {
	e, _ := testEnvironment(t)
	var mu sync.Mutex
	var order []string
	note := func(what string) func(context.Context) {
		return func(context.Context) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
	}
	e.onClose(note("environment"))
	_, err := e.add("open", note("open handle"))
	require.NoError(t, err)
	taken, err := e.add("taken", note("taken handle"))
	require.NoError(t, err)
	_, err = take[string](e, "thing", taken)
	require.NoError(t, err)
	e.onClose(func(context.Context) { panic("on purpose") })
	closeEnvironment(e.id)
	closeEnvironment(e.id)
	require.Equal(t, []string{"open handle", "environment"}, order)

	// What comes too late is closed at once.
	e.onClose(note("late"))
	_, err = e.add("late", note("late handle"))
	require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
	require.Equal(t, []string{"open handle", "environment", "late", "late handle"}, order)
}

func TestClose_DoesNotWaitForACallThatGoesOn(t *testing.T) {
	e, _ := testEnvironment(t)
	release, started := make(chan struct{}), make(chan struct{})
	defer close(release)
	serve(e, 1, []byte("{}"), nil, func(context.Context, *environment, nothing, []byte) (any, []byte, error) {
		close(started)
		<-release
		return nil, nil, nil
	})
	<-started
	closed := make(chan struct{})
	go func() {
		closeEnvironment(e.id)
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		require.FailNow(t, "close waits for a call")
	}
}

func TestRunClosers_GivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	stuck := func(context.Context) { <-release }
	go cancel()
	runClosers(ctx, []func(context.Context){stuck, stuck}) // returns, or the test's time runs out
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}

func TestHandles(t *testing.T) {
	e, _ := testEnvironment(t)
	other, _ := testEnvironment(t)
	type session struct{ name string }
	type file struct{}
	id, err := e.add(&session{"a"}, nil)
	require.NoError(t, err)
	foreign, err := other.add(&session{"b"}, nil)
	require.NoError(t, err)
	closed, err := e.add(&session{"c"}, nil)
	require.NoError(t, err)
	_, err = take[*session](e, "session", closed)
	require.NoError(t, err)
	wrongKind, err := e.add(&file{}, nil)
	require.NoError(t, err)

	got, err := lookup[*session](e, "session", id)
	require.NoError(t, err)
	require.Equal(t, "a", got.name)

	for name, id := range map[string]uint64{
		"never given out":             id + 1000,
		"zero":                        0,
		"a small int":                 1,
		"of another environment":      foreign,
		"closed":                      closed,
		"of another kind":             wrongKind,
		"the environment's own":       e.id,
		"beyond what JSON can exceed": 1<<64 - 1,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lookup[*session](e, "session", id)
			require.Equal(t, errdefs.BadHandle, errdefs.CodeOf(err))
			require.ErrorContains(t, err, "is not an open session")
			_, err = take[*session](e, "session", id)
			require.Equal(t, errdefs.BadHandle, errdefs.CodeOf(err))
		})
	}
	_, err = lookup[*file](e, "file", wrongKind)
	require.NoError(t, err, "a failed take must leave the handle")
}

func TestTake_GivesTheValueToOneCaller(t *testing.T) {
	e, _ := testEnvironment(t)
	id, err := e.add("value", nil)
	require.NoError(t, err)
	var winners atomic.Int32
	var takers sync.WaitGroup
	for range 16 {
		takers.Go(func() {
			if _, err := take[string](e, "thing", id); err == nil {
				winners.Add(1)
			} else if !errors.Is(err, &errdefs.Error{Code: errdefs.BadHandle}) {
				winners.Add(100)
			}
		})
	}
	takers.Wait()
	require.Equal(t, int32(1), winners.Load())
}
