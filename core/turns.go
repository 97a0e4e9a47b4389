package core

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// turns admits a session's commands, first come first served. Each brings a limit,
// since the handles of a session may differ: there are never more commands than
// the smallest limit among those that are admitted or wait. The zero value is ready.
type turns struct {
	// mu guards the fields below it.
	mu sync.Mutex
	// admitted counts commands by their limits.
	admitted map[int64]int
	// waiting has those that wait, the first in front.
	waiting []*turn
}

type turn struct {
	limit int64
	// come is closed once the command is admitted.
	come chan struct{}
}

type queuedKey struct{}

// OnQueued has f called once a command that is run or spawned with the returned
// context has its place in the session's queue. For one that fails before it is not
// called.
func OnQueued(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, queuedKey{}, f)
}

// take waits for a command's turn; done is called once, when the command is over.
// A limit of zero is none. With impatient it does not wait.
//
// Errors: the end of ctx, and Busy with impatient.
func (t *turns) take(ctx context.Context, limit int64, impatient bool) (done func(), err error) {
	if limit == 0 {
		limit = math.MaxInt64
	}
	done = sync.OnceFunc(func() { t.giveBack(limit) })
	t.mu.Lock()
	own := &turn{limit, make(chan struct{})}
	t.waiting = append(t.waiting, own)
	if queued, ok := ctx.Value(queuedKey{}).(func()); ok {
		queued()
	}
	t.admit()
	if impatient && slices.Contains(t.waiting, own) {
		defer t.mu.Unlock()
		err := t.busy()
		t.leave(own)
		return nil, err
	}
	t.mu.Unlock()
	select {
	case <-own.come:
		return done, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	left := t.leave(own)
	t.mu.Unlock()
	if !left {
		done() // admitted at that moment
	}
	return nil, context.Cause(ctx)
}

// leave takes a turn out of those that wait, and reports whether it was there. It
// may have barred the way of others with its limit. The caller holds mu.
func (t *turns) leave(own *turn) bool {
	i := slices.Index(t.waiting, own)
	if i < 0 {
		return false
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	t.admit()
	return true
}

func (t *turns) giveBack(limit int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.admitted[limit]--; t.admitted[limit] == 0 {
		delete(t.admitted, limit)
	}
	t.admit()
}

// admit lets in whoever can begin. The caller holds mu.
func (t *turns) admit() {
	if t.admitted == nil {
		t.admitted = map[int64]int{}
	}
	for len(t.waiting) > 0 {
		first := t.waiting[0]
		live, limit := t.standing()
		if live >= min(limit, first.limit) {
			return
		}
		t.waiting = slices.Delete(t.waiting, 0, 1)
		t.admitted[first.limit]++
		close(first.come)
	}
}

// standing returns how many commands are admitted, and the smallest of their limits.
func (t *turns) standing() (live, limit int64) {
	limit = math.MaxInt64
	for of, n := range t.admitted {
		live += int64(n)
		limit = min(limit, of)
	}
	return live, limit
}

// busy tells why the last of those that wait has to. The caller holds mu.
func (t *turns) busy() error {
	live, limit := t.standing()
	for _, other := range t.waiting {
		limit = min(limit, other.limit)
	}
	return &errdefs.Error{
		Code: errdefs.Busy, Op: "maxConcurrentProcesses", Limit: limit, Live: live,
		Msg: fmt.Sprintf("%d commands of the session are live, and the limit is %d", live, limit),
	}
}
