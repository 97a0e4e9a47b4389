package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/evelandhq/sandbox-bwrap/core"
	"github.com/evelandhq/sandbox-bwrap/core/event"
)

// runtime is what all environments of the process share.
var runtime = core.Runtime{Memory: outside}

// desk is an environment's part in the runtime. The zero value is ready.
type desk struct {
	open   sync.Once
	client *core.Client

	// mu guards sessions: the open session handles. A caller that opens the same
	// session again and again gets the same number each time, and so leaks none.
	mu       sync.Mutex
	sessions map[core.Identity]uint64
}

// clientOf returns the environment's client, which ends with the environment.
func clientOf(e *environment) *core.Client {
	e.desk.open.Do(func() {
		e.desk.client = runtime.NewClient()
		e.desk.sessions = map[core.Identity]uint64{}
		e.onClose(func(context.Context) { e.desk.client.Close() })
	})
	return e.desk.client
}

// admit gives a session handle its number: that of an open handle which serves
// as well, if there is one, in which case the new handle is released.
func admit(ctx context.Context, e *environment, h *core.Handle, watch *watch) (uint64, error) {
	e.desk.mu.Lock()
	if id, known := e.desk.sessions[h.Identity()]; known {
		e.desk.mu.Unlock()
		return id, h.Release(ctx)
	}
	// No closer: the environment's client ends all its handles.
	id, err := e.add(h, nil)
	if err == nil {
		e.desk.sessions[h.Identity()] = id
		watch.session.Store(id)
	}
	e.desk.mu.Unlock()
	return id, err
}

// dismiss forgets a session handle that is about to be closed.
func dismiss(e *environment, id uint64) (*core.Handle, error) {
	h, err := take[*core.Handle](e, "session", id)
	if err != nil {
		return nil, err
	}
	e.desk.mu.Lock()
	defer e.desk.mu.Unlock()
	if e.desk.sessions[h.Identity()] == id {
		delete(e.desk.sessions, h.Identity())
	}
	return h, nil
}

// watch leads a session's events to its environment.
type watch struct{ session atomic.Uint64 }

// sink returns where the events go, nil when nobody asked for them.
func (w *watch) sink(e *environment, wanted bool) event.Sink {
	if !wanted {
		return nil
	}
	return func(what event.Event) {
		e.event(struct {
			Event   event.Event `json:"event"`
			Session uint64      `json:"session"`
		}{what, w.session.Load()})
	}
}
