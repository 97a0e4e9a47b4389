package core

import (
	"context"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
)

// Handle is one client's way to a session, with the options it was opened with.
// Its methods may be called at the same time.
type Handle struct {
	session  *Session
	client   *Client
	sandbox  spec.Sandbox
	shape    string
	policy   spec.Network
	lifetime spec.Lifetime
	tags     map[string]string
	events   event.Sink
	strategy string
	// staging is set while the handle's workspace is a template being built.
	staging *store.Staging

	// mu guards closed.
	mu     sync.Mutex
	closed bool
}

// SessionID is the session's name in the store.
func (h *Handle) SessionID() string { return h.session.id }

// Strategy says how the session's directory came to be: "empty", "reflink",
// "copy", or "existing".
func (h *Handle) Strategy() string { return h.strategy }

// Identity is equal for handles that are interchangeable: of the same client,
// to the same session, with the same options.
type Identity struct {
	session  *Session
	client   *Client
	shape    string
	policy   spec.Network
	lifetime spec.Lifetime
	watched  bool
}

// Identity tells which handles are interchangeable with this one.
func (h *Handle) Identity() Identity {
	return Identity{h.session, h.client, h.shape, h.policy, h.lifetime, h.events != nil}
}

// SetNetworkPolicy changes the network of the session's later commands, in all
// clients, and for as long as the session exists. What already runs keeps its network.
func (h *Handle) SetNetworkPolicy(ctx context.Context, policy spec.Network) error {
	if err := policy.Validate(); err != nil {
		return err
	}
	if err := h.usable("setNetworkPolicy"); err != nil {
		return err
	}
	return h.session.setPolicy(ctx, policy)
}

// Stop ends the session's compute and returns when nothing of it is left. Files
// stay; the next command starts a new sandbox. Stopping what is stopped is a no-op.
func (h *Handle) Stop(ctx context.Context) error {
	return h.session.stop(ctx)
}

// Delete stops the session and removes its files. Deleting twice is a no-op.
//
// Errors: InUse when another process uses the session.
func (h *Handle) Delete(ctx context.Context) error {
	return h.session.delete(ctx)
}

// Close stops the session's compute and ends the handle. Closing twice is a no-op.
func (h *Handle) Close(ctx context.Context) error {
	if !h.end() {
		return nil
	}
	h.client.forget(h)
	err := h.session.stop(ctx)
	h.leave()
	return err
}

// Release ends the handle and leaves the session's compute to the other handles,
// of whichever client; without any, the compute is ended.
func (h *Handle) Release(ctx context.Context) error {
	if !h.end() {
		return nil
	}
	h.client.forget(h)
	if h.leave() {
		return h.session.stop(ctx)
	}
	return nil
}

// abandon is what the client's end does to each of its handles.
func (h *Handle) abandon() {
	if !h.end() {
		return
	}
	if h.leave() {
		_ = h.session.endAll(context.Background(), abandoned)
	}
	if h.staging != nil {
		_ = h.staging.Discard()
	}
}

// leave gives up the handle's part in the session and reports whether it was the last.
func (h *Handle) leave() (last bool) {
	last = h.session.detach(h.client)
	if last && h.session.gone != nil {
		h.session.gone()
	}
	return last
}

// end marks the handle as closed; only the first call gets true.
func (h *Handle) end() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !h.closed
	h.closed = true
	return first
}

func (h *Handle) usable(op string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errdefs.New(errdefs.Closed, op, "the session handle is closed")
	}
	return nil
}
