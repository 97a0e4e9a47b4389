package core

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// generation is one live sandbox of a session, from the decision to start it
// until nothing of it is left.
type generation struct {
	id    string
	shape string
	// own says that it serves one command or file operation, and ends with it.
	own bool
	// events and tags are those of the handle that started it.
	events event.Sink
	tags   map[string]string

	// started is closed once held and box, or err, are set; they do not change afterwards.
	started chan struct{}
	held    *hold
	box     *supervise.Generation
	err     error
	// ended is closed once the sandbox is gone and the directory released.
	ended chan struct{}
	// cleaned is closed once an end that was asked for has been carried out and told.
	cleaned chan struct{}
	// full is closed once it has to wait for a place, and live and limit are set then.
	full        chan struct{}
	live, limit int64
	// giveUp ends its waiting for a place; later it does nothing.
	giveUp context.CancelCauseFunc

	// The session's mu guards the fields below it.

	// stopping is set once no new command is admitted.
	stopping bool
	// users counts those who were given it and have not given it back, and uses
	// how often it was given to somebody.
	users int
	uses  uint64
	// placed is set once it has a place among the live generations.
	placed bool
	// unusedSince is when it was given back last.
	unusedSince time.Time
	// background is set when something was found to run that nobody waits for, until
	// it is used again or init says otherwise.
	background bool
	// idleTimeout is that of the handle which used it last; zero is for ever.
	idleTimeout time.Duration
	// idle fires when it has had no user for idleTimeout.
	idle *time.Timer
	// commands counts commands whose end has not been told; quiet is closed when
	// it falls to zero while somebody waits for that.
	commands int
	quiet    chan struct{}
}

func (g *generation) emit(s *Session, e event.Event) {
	e.SessionID, e.GenerationID, e.Tags = s.id, g.id, g.tags
	g.events.Emit(e)
}

// ending is why a generation is ended, and how.
type ending struct {
	reason event.Reason
	// patient waits a moment for file operations under way.
	patient bool
}

var (
	// asked: somebody wants the session's compute to end.
	asked = ending{event.ReasonStop, true}
	// abandoned: nobody is left who uses the session.
	abandoned = ending{event.ReasonStop, false}
	// unlike: a sandbox of another shape is wanted.
	unlike = ending{event.ReasonReplaced, true}
	// adrift: its directory was removed or replaced.
	adrift = ending{event.ReasonReplaced, false}
	// unused: nothing has run in it for long enough.
	unused = ending{event.ReasonIdle, false}
	// crowded: another needs its place.
	crowded = ending{event.ReasonLimit, false}
	// served: what it was for is over.
	served = ending{event.ReasonCommand, false}
)

// generation returns a live generation for the handle's shape, starting one
// when there is none, and for spec.OfCommand always. Every generation that it
// returns is given back with leave. The context bounds the waiting, and only the
// start of a generation of the caller's own.
//
// Errors: Busy for the impatient, where it would have to wait for a place.
func (s *Session) generation(ctx context.Context, h *Handle, impatient bool) (*generation, error) {
	// A sandbox that dies right after its start is not retried for ever.
	for range 3 {
		g, others, err := s.claim(ctx, h)
		if err != nil {
			return nil, err
		}
		if g == nil {
			// A sandbox built with other options must not serve: it would
			// silently weaken, say, a newly hidden path. And two that are not
			// for one command each would see each other's half-done work.
			if err := s.end(ctx, unlike, others...); err != nil {
				return nil, err
			}
			continue
		}
		serves, err := s.ready(ctx, g, impatient)
		if serves {
			return g, nil
		}
		s.leave(g)
		if err != nil {
			return nil, err
		}
	}
	return nil, errStopped("start")
}

// ready waits until a claimed generation has started and tells whether it can
// serve; if it cannot and there is no error, the next one may.
func (s *Session) ready(ctx context.Context, g *generation, impatient bool) (serves bool, err error) {
	full, done := g.full, ctx.Done()
	select {
	case <-g.started:
		full = nil // it has waited, and has its place
	default:
		if !impatient {
			full = nil
		}
	}
	if g.own {
		done = nil // the start follows the caller's context, and leaves nothing
	}
	select {
	case <-g.started:
	case <-full:
		return false, g.busy()
	case <-done:
		return false, errdefs.Abort(ctx, "start", "")
	}
	if g.own {
		return g.err == nil, g.err
	}
	if g.err != nil {
		return false, g.err
	}
	select {
	case <-g.ended:
		return false, nil
	default:
	}
	if g.held.workspace.Check() == nil {
		return true, nil
	}
	// What its commands would write goes nowhere: the directory was removed
	// or replaced. The next sandbox tells whether there is another one.
	return false, s.end(ctx, adrift, g)
}

// busy tells why g has to wait.
func (g *generation) busy() error {
	return &errdefs.Error{
		Code: errdefs.Busy, Op: "maxLiveGenerations", Limit: g.limit, Live: g.live,
		Msg: fmt.Sprintf("%d sandboxes of this process are live and in use, and the limit is %d", g.live, g.limit),
	}
}

// leave gives back what generation returned. One of the caller's own is ended
// before it returns.
func (s *Session) leave(g *generation) {
	if g.own {
		_ = s.end(context.Background(), served, g)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.users--; g.users > 0 {
		return
	}
	if !g.placed {
		// Nobody wants it any more; that it was about to have its place does no harm.
		s.condemnLocked(g, unused)
		return
	}
	g.unusedSince = time.Now()
	s.fallenIdle(g)
}

// fallenIdle begins the time that g may be idle. The caller holds s.mu.
func (s *Session) fallenIdle(g *generation) {
	if g.users == 0 && g.idleTimeout > 0 {
		g.idle.Reset(g.idleTimeout)
	}
	s.room.stir()
}

// claim returns the generation that is to serve the handle, made live if need
// be, or else those that have to end before.
func (s *Session) claim(ctx context.Context, h *Handle) (g *generation, others []*generation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == 0 {
		// Whoever ended the session's compute for that would miss it.
		return nil, nil, errdefs.New(errdefs.Closed, "start", "nobody uses the session any more")
	}
	own := h.sandbox.Processes == spec.OfCommand
	for live := range s.live {
		switch {
		case live.shape != h.shape, live.stopping && !own:
			others = append(others, live)
		case !own:
			g = live
		}
	}
	if len(others) > 0 {
		return nil, others, nil
	}
	if g == nil {
		g = s.begin(ctx, h, own)
	}
	g.users++
	g.uses++
	g.background = false
	g.idleTimeout = h.lifetime.IdleTimeout()
	g.idle.Stop()
	return g, nil, nil
}

// begin makes a new generation live. The caller holds s.mu.
func (s *Session) begin(ctx context.Context, h *Handle, own bool) *generation {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	g := &generation{
		id: hex.EncodeToString(id), shape: h.shape, own: own, events: h.events, tags: h.tags,
		started: make(chan struct{}), ended: make(chan struct{}), cleaned: make(chan struct{}),
		full: make(chan struct{}),
		// Stopped, until it has no user any more.
		idle: time.NewTimer(time.Hour),
	}
	if s.live == nil {
		s.live = map[*generation]struct{}{}
	}
	s.live[g] = struct{}{}
	if !own {
		// Several callers may wait for this start, so it follows none of their contexts.
		ctx = context.WithoutCancel(ctx)
	}
	var waiting context.Context
	waiting, g.giveUp = context.WithCancelCause(ctx)
	go s.bring(ctx, waiting, g, h)
	return g
}

// bring waits for a place, starts the sandbox and watches it to its end.
func (s *Session) bring(ctx, waiting context.Context, g *generation, h *Handle) {
	defer close(g.ended)
	defer g.giveUp(nil)
	var failure error
	defer func() { s.failed(g, failure) }()
	defer errdefs.Recover(&failure)
	var held *hold
	err := s.place(waiting, g, h)
	if err == nil {
		defer s.room.giveBack(g)
		if held, err = s.acquire(ctx); err == nil {
			defer s.release(held)
			g.held = held
			g.box, err = s.start(ctx, h, held.workspace)
		}
	}
	if err != nil {
		g.err = err
		s.unlive(g)
		close(g.started)
		return
	}
	if !g.own {
		keeper := &h.client.standbys
		keeper.enter()
		defer keeper.leave()
		// Nothing is started ahead for which there would be no place.
		if s.takeMade() && s.room.spare(h.lifetime.MaxLiveGenerations) {
			keeper.prepareFor(h)
		}
	}
	// Before anybody can start a command in it.
	g.emit(s, event.Event{Type: event.GenerationStarted})
	close(g.started)
	held.workspace.Touch()
	s.attend(g)
	s.unlive(g)
	held.workspace.Touch()
}

// failed ends a generation in whose attendance there was a mistake of ours; nil is none.
func (s *Session) failed(g *generation, failure error) {
	if failure == nil {
		return
	}
	s.unlive(g)
	if g.box != nil {
		_ = g.box.Stop(context.Background())
	}
	select {
	case <-g.started:
	default:
		g.err = failure
		close(g.started)
	}
}

// start returns the session's standby, or starts a sandbox.
func (s *Session) start(ctx context.Context, h *Handle, ws *store.Workspace) (*supervise.Generation, error) {
	if ahead := s.takeStandby(); ahead != nil {
		if box := ahead.use(h.shape, ws); box != nil {
			return box, nil
		}
	}
	return startBox(ctx, h.sandbox, ws)
}

// place waits for a place for g.
func (s *Session) place(ctx context.Context, g *generation, h *Handle) error {
	limit := h.lifetime.MaxLiveGenerations
	err := s.room.take(ctx, s, g, limit, func(live int64) {
		g.live, g.limit = live, limit
		close(g.full)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	g.placed = true
	s.mu.Unlock()
	return nil
}

// attend waits for a generation's end, which it brings about when the generation
// has been idle for long enough.
func (s *Session) attend(g *generation) {
	defer g.idle.Stop()
	for {
		select {
		case <-g.box.Done():
			return
		case <-g.idle.C:
			s.endIfIdle(g)
		case <-g.box.Quieted():
			s.mu.Lock()
			g.background = false
			s.fallenIdle(g)
			s.mu.Unlock()
		}
	}
}

// endIfIdle ends a generation that nobody uses, unless something runs in the
// background, or did a short time ago.
func (s *Session) endIfIdle(g *generation) {
	s.mu.Lock()
	uses := g.uses
	s.mu.Unlock()
	since, quiet, err := g.box.Quiet(context.Background())
	if err != nil || !quiet {
		return // it has ended, or Quieted tells when to begin anew
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case g.users > 0 || g.uses != uses:
		// Whoever gives it back begins anew.
	case since < g.idleTimeout:
		g.idle.Reset(g.idleTimeout - since)
	default:
		s.condemnLocked(g, unused)
	}
}

// idler is a generation that nobody used at a moment, since when, and how often it
// had been used by then.
type idler struct {
	g     *generation
	since time.Time
	uses  uint64
}

// idler tells whether g is about to end, or has no user and nothing that is known to
// run in it.
func (s *Session) idler(g *generation) (stopping bool, is *idler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.stopping || !g.placed || g.users > 0 || g.background {
		return g.stopping, nil
	}
	return false, &idler{g, g.unusedSince, g.uses}
}

// endIdler begins the end of a generation that has not been used since, unless
// something runs in the background.
func (s *Session) endIdler(ctx context.Context, i idler) bool {
	s.mu.Lock()
	if i.g.uses != i.uses {
		s.mu.Unlock()
		return false
	}
	// Before the question: init's word that it is over may overtake its answer.
	i.g.background = true
	s.mu.Unlock()
	_, quiet, err := i.g.box.Quiet(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !quiet {
		return false
	}
	i.g.background = false
	if err != nil || i.g.uses != i.uses {
		return false
	}
	s.condemnLocked(i.g, crowded)
	return true
}

func (s *Session) unlive(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, g)
}

// stop ends the live generations and returns when nothing of them is left.
func (s *Session) stop(ctx context.Context) error { return s.endAll(ctx, asked) }

func (s *Session) endAll(ctx context.Context, how ending) error {
	if ahead := s.takeStandby(); ahead != nil {
		ahead.end()
	}
	s.mu.Lock()
	live := slices.Collect(maps.Keys(s.live))
	s.mu.Unlock()
	return s.end(ctx, how, live...)
}

// end ends generations, all at once. The context bounds the waiting: the end
// itself, once begun, is carried through.
func (s *Session) end(ctx context.Context, how ending, all ...*generation) error {
	for _, g := range all {
		s.condemn(g, how)
	}
	for _, g := range all {
		select {
		case <-g.cleaned:
		case <-ctx.Done():
			return errdefs.Abort(ctx, "stop", "")
		}
	}
	return nil
}

// condemn begins the end of a generation; one that has begun goes on as it is.
func (s *Session) condemn(g *generation, how ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condemnLocked(g, how)
}

func (s *Session) condemnLocked(g *generation, how ending) {
	if g.stopping {
		return
	}
	g.stopping = true
	g.giveUp(errStopped("start"))
	go s.carryOut(g, how, g.commands)
}

func (s *Session) carryOut(g *generation, how ending, live int) {
	defer close(g.cleaned)
	var failure error // of ours, which nobody can be told
	defer errdefs.Recover(&failure)
	<-g.started
	if g.err != nil {
		return
	}
	began := time.Now()
	g.emit(s, event.Event{Type: event.CleanupStarted, Reason: how.reason, RequestedProcesses: event.Count(live)})
	if how.patient {
		s.awaitFileOps()
	}
	err := g.box.Stop(context.Background())
	done := event.Event{
		Type: event.CleanupCompleted, RequestedProcesses: event.Count(live), RemainingProcesses: event.Count(0),
		DurationMs: event.Count(time.Since(began).Milliseconds()),
	}
	if err != nil {
		done.Type, done.Errors, done.RemainingProcesses = event.CleanupFailed, []string{err.Error()}, event.Count(live)
	}
	<-g.ended
	// Its commands have ended with it, and that is told first.
	s.awaitQuiet(g)
	g.emit(s, done)
}
