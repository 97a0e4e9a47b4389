package core

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

const (
	// standbyDelay keeps the start of a standby out of the way of the first command
	// of the session that it comes after.
	standbyDelay = 50 * time.Millisecond
	// standbyAge is how long a standby waits for a session, and then for its first
	// command. It is also how old what it knows of the host can be.
	standbyAge = 30 * time.Second
)

// standby is a sandbox that was started ahead, on a directory that the next new
// session of its shape gets: the session's first command finds it running. It
// runs nothing before.
type standby struct {
	shape    string
	reserved *store.Reserved
	box      *supervise.Generation
	// age fires once it is too old.
	age *time.Timer
	// taken is closed by whoever uses or ends it.
	taken sync.Once
}

// startStandby returns nil when there is none to be had: then the next session
// starts its sandbox itself, and tells what is wrong.
func startStandby(ctx context.Context, st *store.Store, sandbox spec.Sandbox) *standby {
	reserved, err := st.Reserve(ctx)
	if err != nil {
		return nil
	}
	box, err := startBox(ctx, sandbox, reserved.Workspace())
	if err != nil {
		_ = reserved.Discard()
		return nil
	}
	return &standby{shape: sandbox.Shape(), reserved: reserved, box: box}
}

// use returns the sandbox if it still runs, is of the shape and on the workspace's
// directory; otherwise it is ended.
func (sb *standby) use(shape string, ws *store.Workspace) *supervise.Generation {
	var box *supervise.Generation
	sb.taken.Do(func() { box = sb.box })
	if box == nil {
		return nil
	}
	sb.age.Stop()
	select {
	case <-box.Done():
		return nil
	default:
	}
	if sb.shape != shape || !sb.reserved.Became(ws) {
		_ = box.Stop(context.Background())
		return nil
	}
	return box
}

// end ends a standby that nobody has used, and returns when nothing of it is left.
func (sb *standby) end() {
	sb.taken.Do(func() {
		if sb.age != nil {
			sb.age.Stop()
		}
		_ = sb.box.Stop(context.Background())
		_ = sb.reserved.Discard()
	})
}

// keep takes over the standby if the session was made of it, and notes whether the
// session was made just now.
func (s *Session) keep(ahead *standby, ws *store.Workspace) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ws.Strategy() != store.Existing {
		s.made = true
	}
	if ahead == nil || !ahead.reserved.Became(ws) {
		return false
	}
	s.standby = ahead
	return true
}

// takeStandby returns what keep took over, once.
func (s *Session) takeStandby() *standby {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := s.standby
	s.standby = nil
	return ahead
}

// takeMade tells whether this is the first sandbox of a session that was made here.
func (s *Session) takeMade() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	made := s.made
	s.made = false
	return made
}

// standbys are what a client keeps ready, one for each shape, for as long as some
// sandbox of the client's lives. The zero value keeps none.
type standbys struct {
	// mu guards the fields below it, and what the watch has ready.
	mu sync.Mutex
	// live counts the client's sandboxes. While there are some, there is a watch.
	live   int
	watch  *standbyWatch
	closed bool
}

// standbyWatch is from the first of a client's sandboxes to the end of the last.
type standbyWatch struct {
	// ctx ends with the watch, and with it what is being prepared.
	ctx       context.Context
	cancel    context.CancelFunc
	preparing sync.WaitGroup
	// ready is nil for what is being prepared.
	ready map[string]*standby
}

// enter counts a sandbox as live until leave is called.
func (k *standbys) enter() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live++; k.watch == nil && !k.closed {
		k.watch = &standbyWatch{ready: map[string]*standby{}}
		k.watch.ctx, k.watch.cancel = context.WithCancel(context.Background())
	}
}

// leave returns, after the last sandbox, when nothing is left of the standbys.
func (k *standbys) leave() {
	k.mu.Lock()
	k.live--
	var over *standbyWatch
	if k.live == 0 {
		over, k.watch = k.watch, nil
	}
	k.mu.Unlock()
	k.end(over)
}

// close keeps none from now on, and returns when nothing is left of any.
func (k *standbys) close() {
	k.mu.Lock()
	over := k.watch
	k.watch, k.closed = nil, true
	k.mu.Unlock()
	k.end(over)
}

// end ends a watch that nobody can find any more. Nil is none.
func (k *standbys) end(w *standbyWatch) {
	if w == nil {
		return
	}
	w.cancel()
	w.preparing.Wait()
	k.mu.Lock()
	ready := maps.Clone(w.ready)
	k.mu.Unlock()
	for _, sb := range ready {
		if sb != nil {
			sb.end()
		}
	}
}

// prepareFor starts a standby for the next session like the handle's in a while,
// unless there is one.
func (k *standbys) prepareFor(h *Handle) {
	if !standsBy(h.sandbox, h.lifetime) {
		return
	}
	st, err := h.client.runtime.store(h.sandbox.CacheDir)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	w, sandbox, shape := k.watch, h.sandbox, h.shape
	if w == nil {
		return
	}
	if _, there := w.ready[shape]; there {
		return
	}
	w.ready[shape] = nil
	w.preparing.Go(func() {
		var err error // of a panic, which leaves no standby
		defer errdefs.Recover(&err)
		select {
		case <-w.ctx.Done():
		case <-time.After(standbyDelay):
			k.put(w, shape, startStandby(w.ctx, st, sandbox))
		}
	})
}

// put makes a standby ready, or, with nil, takes note that there is none to be had.
func (k *standbys) put(w *standbyWatch, shape string, sb *standby) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sb == nil {
		delete(w.ready, shape)
		return
	}
	// Should the watch be over, its end ends this, too.
	w.ready[shape] = sb
	sb.age = time.AfterFunc(standbyAge, func() {
		k.drop(w, sb)
		sb.end()
	})
}

// standsBy tells whether a new session of that kind can have a standby: one with a
// home would have to reserve that, too, and one with a sandbox for every command
// has no first one.
func standsBy(sandbox spec.Sandbox, lifetime spec.Lifetime) bool {
	return lifetime.Standby && !sandbox.SeparateHome() && sandbox.Processes != spec.OfCommand
}

// takeFor returns the standby for what is to be created, which is the caller's
// then, or nil.
func (k *standbys) takeFor(req CreateRequest) *standby {
	if req.ExistingOnly || !standsBy(req.Sandbox, req.Lifetime) {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watch == nil {
		return nil
	}
	shape := req.Sandbox.Shape()
	sb := k.watch.ready[shape]
	if sb != nil {
		delete(k.watch.ready, shape)
	}
	return sb
}

// giveBack makes a standby ready again that the caller had no use for, or ends it.
// Nil is none.
func (k *standbys) giveBack(sb *standby) {
	if sb == nil {
		return
	}
	if sb.reserved.Spent() || !k.again(sb) {
		sb.end()
	}
}

func (k *standbys) again(sb *standby) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watch == nil {
		return false
	}
	if _, other := k.watch.ready[sb.shape]; other {
		return false
	}
	k.watch.ready[sb.shape] = sb
	return true
}

// drop forgets a standby.
func (k *standbys) drop(w *standbyWatch, sb *standby) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.ready[sb.shape] == sb {
		delete(w.ready, sb.shape)
	}
}
