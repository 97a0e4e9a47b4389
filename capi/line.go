package main

import (
	"context"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core"
)

// queuing is a request that takes a place in its session's queue. Every request has
// a goroutine of its own, which come in any order: without a line two commands of
// one tick could change places.
type queuing interface{ queues() }

// line keeps requests in the order of their calls until each has its place, or
// needs none. Nobody in it waits for anything but that. The zero value is ready.
type line struct {
	mu   sync.Mutex
	last <-chan struct{}
}

// join puts a request at the end of the line. Before is closed once those before it
// have their places; placed is called when this one has.
func (l *line) join() (before <-chan struct{}, placed func()) {
	own := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.last = l.last, own
	if before == nil {
		first := make(chan struct{})
		close(first)
		before = first
	}
	return before, sync.OnceFunc(func() { close(own) })
}

// place puts a request of the type in line, if it queues. Wait is called before it is
// answered, on its goroutine, and placed when it has been.
func place[Req any](ctx context.Context, l *line) (queued context.Context, wait, placed func()) {
	if _, ok := any(*new(Req)).(queuing); !ok {
		return ctx, func() {}, func() {}
	}
	before, placed := l.join()
	return core.OnQueued(ctx, placed), func() { <-before }, placed
}
