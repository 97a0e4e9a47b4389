package core

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// queue is a session's turns, with commands by name.
type queue struct {
	t *testing.T
	turns
	ctx   map[string]context.CancelCauseFunc
	done  map[string]func()
	began []string
	ended map[string]error
	mu    sync.Mutex
}

// ask has a command ask for its turn, and returns when it has it or waits.
func (q *queue) ask(name string, limit int64) {
	ctx, cancel := context.WithCancelCause(q.t.Context())
	q.ctx[name] = cancel
	go func() {
		done, err := q.take(ctx, limit, false)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.ended[name] = err; err == nil {
			q.began, q.done[name] = append(q.began, name), done
		}
	}()
	synctest.Wait()
}

func (q *queue) end(name string) {
	q.done[name]()
	synctest.Wait()
}

// inQueue plays a test, which tells what has begun, in order.
func inQueue(t *testing.T, play func(t *testing.T, q *queue)) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{t: t, ctx: map[string]context.CancelCauseFunc{}, done: map[string]func(){}, ended: map[string]error{}}
		play(t, q)
		for _, cancel := range q.ctx {
			cancel(nil)
		}
	})
}

func TestTurns_FirstComeFirstServed(t *testing.T) {
	inQueue(t, func(t *testing.T, q *queue) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			q.ask(name, 2)
		}
		require.Equal(t, []string{"a", "b"}, q.began)
		q.end("b")
		q.end("b") // and once only
		require.Equal(t, []string{"a", "b", "c"}, q.began)
		q.end("a")
		q.end("c")
		require.Equal(t, []string{"a", "b", "c", "d", "e"}, q.began)
	})
}

func TestTurns_SmallestLimitHolds(t *testing.T) {
	inQueue(t, func(t *testing.T, q *queue) {
		q.ask("narrow1", 2)
		q.ask("wide1", 3)
		q.ask("wide2", 3)
		q.ask("none", 0)
		require.Equal(t, []string{"narrow1", "wide1"}, q.began, "a command with the limit 2 is live")
		q.end("narrow1")
		require.ElementsMatch(t, []string{"narrow1", "wide1", "wide2", "none"}, q.began)
		q.end("wide1")
		q.ask("narrow2", 2)
		q.ask("wide3", 3)
		require.NotContains(t, q.began, "narrow2")
		require.NotContains(t, q.began, "wide3", "nobody overtakes")
		q.end("none")
		require.Equal(t, "narrow2", q.began[len(q.began)-1])
		q.end("wide2")
		require.Equal(t, "wide3", q.began[len(q.began)-1])
	})
}

func TestTurns_WhoeverGivesUpLeavesNoTrace(t *testing.T) {
	inQueue(t, func(t *testing.T, q *queue) {
		q.ask("a", 0)
		q.ask("b", 0)
		q.ask("narrow", 1)
		q.ask("c", 0)
		require.Equal(t, []string{"a", "b"}, q.began)
		why := errors.New("enough")
		q.ctx["narrow"](why)
		synctest.Wait()
		require.Equal(t, why, q.ended["narrow"])
		require.Equal(t, []string{"a", "b", "c"}, q.began, "it does not bar the way any more")
	})
}

func TestTurns_Impatient(t *testing.T) {
	inQueue(t, func(t *testing.T, q *queue) {
		busy := func(limit, wantLimit, wantLive int64) {
			t.Helper()
			_, err := q.take(t.Context(), limit, true)
			var known *errdefs.Error
			require.ErrorAs(t, err, &known)
			require.Equal(t, []any{errdefs.Busy, wantLimit, wantLive}, []any{known.Code, known.Limit, known.Live})
		}
		done, err := q.take(t.Context(), 1, true)
		require.NoError(t, err)
		busy(1, 1, 1)
		busy(5, 1, 1)
		done()
		q.ask("a", 0)
		q.ask("b", 3)
		q.ask("narrow", 1)
		busy(0, 1, 2) // nobody overtakes who waits
		q.end("b")
		q.end("a")
		q.end("narrow")
		done, err = q.take(t.Context(), 1, true)
		require.NoError(t, err)
		done()
	})
}

func TestTurns_Crowd(t *testing.T) {
	var q turns
	var live, began, tooMany atomic.Int64
	var crowd sync.WaitGroup
	for range 500 {
		crowd.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
			defer cancel()
			limit := int64(3 + rand.IntN(3))
			done, err := q.take(ctx, limit, rand.IntN(4) == 0)
			if err != nil {
				return
			}
			defer done()
			defer live.Add(-1)
			if n := live.Add(1); n > limit {
				tooMany.Add(1)
			}
			began.Add(1)
		})
	}
	crowd.Wait()
	require.Zero(t, tooMany.Load())
	require.Positive(t, began.Load())
	require.Empty(t, q.waiting)
	require.Empty(t, q.admitted)
}
