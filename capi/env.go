package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// closeTimeout bounds how long the end of an environment waits for its closers.
// It is the time a Node thread may be held up while it exits.
const closeTimeout = 5 * time.Second

// lastNumber is the number given out last, for environments and handles alike:
// no number ever means two things in a process. The first one is large, so that
// a small int taken for a handle is caught.
var lastNumber atomic.Uint64

func init() { lastNumber.Store(42 << 16) }

// environments are the open ones.
var environments = struct {
	mu   sync.Mutex
	open map[uint64]*environment
}{open: map[uint64]*environment{}}

// environment is one caller with a life of its own. Its methods may be called
// from any goroutine.
type environment struct {
	id uint64
	// send hands a reply to the caller. It copies json, and takes data over, which
	// lies in memory of C's, or is nil.
	send func(call uint64, json, data []byte)

	// replying is held for reading around each send, and for writing to end them.
	replying sync.RWMutex
	silent   bool

	// mu guards the fields below it.
	mu      sync.Mutex
	closed  bool
	calls   map[uint64]context.CancelCauseFunc
	handles map[uint64]held
	closers []func(ctx context.Context)

	line line

	// desk is what the requests keep for the environment.
	desk desk
}

// openEnvironment makes an environment whose replies go to send.
func openEnvironment(send func(call uint64, json, data []byte)) *environment {
	e := &environment{
		id:      lastNumber.Add(1),
		send:    send,
		calls:   map[uint64]context.CancelCauseFunc{},
		handles: map[uint64]held{},
	}
	environments.mu.Lock()
	defer environments.mu.Unlock()
	environments.open[e.id] = e
	return e
}

// findEnvironment returns an open environment, or nil.
func findEnvironment(id uint64) *environment {
	environments.mu.Lock()
	defer environments.mu.Unlock()
	return environments.open[id]
}

// closeEnvironment ends an environment. No send starts after it has returned,
// and none is under way then. A number that is not open is a no-op.
func closeEnvironment(id uint64) {
	environments.mu.Lock()
	e := environments.open[id]
	delete(environments.open, id)
	environments.mu.Unlock()
	if e != nil {
		e.close()
	}
}

// onClose has f called when the environment ends, after the handles that were
// still open have been closed. f should return when its context ends. On a
// closed environment f is called at once.
func (e *environment) onClose(f func(ctx context.Context)) {
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.closers = append(e.closers, f)
	}
	e.mu.Unlock()
	if closed {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		runClosers(ctx, []func(context.Context){f})
	}
}

// begin registers a request and returns the context that cancel(call) and the
// environment's end cancel. It reports false, and the request must be dropped,
// when the environment is closed, or when call is 0 or still in use: such a
// number could not be answered without confusing somebody.
func (e *environment) begin(call uint64) (context.Context, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, taken := e.calls[call]; e.closed || taken || call == 0 {
		return nil, false
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	e.calls[call] = cancel
	return ctx, true
}

// end forgets a request. Called before its reply, so that the caller may use
// the number again as soon as it has the reply.
func (e *environment) end(call uint64) {
	e.mu.Lock()
	cancel := e.calls[call]
	delete(e.calls, call)
	e.mu.Unlock()
	if cancel != nil {
		cancel(nil)
	}
}

// cancel ends the context of a request; one that is not under way is a no-op.
func (e *environment) cancel(call uint64) {
	e.mu.Lock()
	cancel := e.calls[call]
	e.mu.Unlock()
	if cancel != nil {
		cancel(errdefs.New(errdefs.Aborted, "", "cancelled by the caller"))
	}
}

func (e *environment) close() {
	e.replying.Lock()
	e.silent = true
	e.replying.Unlock()

	e.mu.Lock()
	e.closed = true
	calls, handles, closers := e.calls, e.handles, e.closers
	e.calls, e.handles, e.closers = nil, nil, nil
	e.mu.Unlock()

	cause := errdefs.New(errdefs.Closed, "", "the environment has ended")
	for _, cancel := range calls {
		cancel(cause)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var handleClosers []func(context.Context)
	for _, h := range handles {
		if h.close != nil {
			handleClosers = append(handleClosers, h.close)
		}
	}
	runClosers(ctx, handleClosers)
	runClosers(ctx, closers)
}

// runClosers runs all closers at once and waits for them, or for ctx.
func runClosers(ctx context.Context, closers []func(context.Context)) {
	var running sync.WaitGroup
	for _, f := range closers {
		running.Go(func() {
			_, _, _ = protect(func() (any, []byte, error) {
				f(ctx)
				return nil, nil, nil
			})
		})
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
