package core

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// generation is one live sandbox of a session, from the decision to start it
// until nothing of it is left.
type generation struct {
	id    string
	shape string
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

	// The session's mu guards the fields below it.

	// stopping is set once no new command is admitted.
	stopping bool
	// commands counts commands whose end has not been told; quiet is closed when
	// it falls to zero while somebody waits for that.
	commands int
	quiet    chan struct{}
}

func (g *generation) emit(s *Session, e event.Event) {
	e.SessionID, e.GenerationID, e.Tags = s.id, g.id, g.tags
	g.events.Emit(e)
}

// generation returns the live generation for the handle's shape, starting one
// when there is none. The context bounds the waiting, not the generation.
func (s *Session) generation(ctx context.Context, h *Handle) (*generation, error) {
	// A sandbox that dies right after its start is not retried for ever.
	for range 3 {
		s.mu.Lock()
		g := s.live
		if g == nil {
			g = s.begin(h)
		}
		stopping, other := g.stopping, g.shape != h.shape
		s.mu.Unlock()

		switch {
		case stopping:
			// Two sandboxes on one workspace would see each other's half-done work.
			select {
			case <-g.ended:
			case <-ctx.Done():
				return nil, errdefs.Abort(ctx, "start", "")
			}
			continue
		case other:
			// A sandbox built with other options must not serve: it would
			// silently weaken, say, a newly hidden path.
			if err := s.end(ctx, g, true); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-g.started:
		case <-ctx.Done():
			return nil, errdefs.Abort(ctx, "start", "")
		}
		if g.err != nil {
			return nil, g.err
		}
		select {
		case <-g.ended:
			continue
		default:
		}
		if g.held.workspace.Check() == nil {
			return g, nil
		}
		// What its commands would write goes nowhere: the directory was removed
		// or replaced. The next sandbox tells whether there is another one.
		if err := s.end(ctx, g, false); err != nil {
			return nil, err
		}
	}
	return nil, errStopped("start")
}

// begin makes a new generation the live one. The caller holds s.mu.
func (s *Session) begin(h *Handle) *generation {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	g := &generation{
		id: hex.EncodeToString(id), shape: h.shape, events: h.events, tags: h.tags,
		started: make(chan struct{}), ended: make(chan struct{}), cleaned: make(chan struct{}),
	}
	s.live = g
	go s.bring(g, h)
	return g
}

// bring starts the sandbox and watches it to its end.
func (s *Session) bring(g *generation, h *Handle) {
	defer close(g.ended)
	// Several callers may wait for this start, so it follows none of their contexts.
	ctx := context.Background()
	held, err := s.acquire(ctx)
	if err == nil {
		defer s.release(held)
		g.held = held
		g.box, err = startBox(ctx, h.sandbox, held.workspace)
	}
	if err != nil {
		g.err = err
		s.unlive(g)
		close(g.started)
		return
	}
	// Before anybody can start a command in it.
	g.emit(s, event.Event{Type: event.GenerationStarted})
	close(g.started)
	held.workspace.Touch()
	<-g.box.Done()
	s.unlive(g)
	held.workspace.Touch()
}

func (s *Session) unlive(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == g {
		s.live = nil
	}
}

// stop ends the live generation, if there is one, and returns when nothing of it is left.
func (s *Session) stop(ctx context.Context) error {
	s.mu.Lock()
	g := s.live
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return s.end(ctx, g, true)
}

// end ends a generation; patient waits a moment for file operations under way.
// The context bounds the waiting: the end itself, once begun, is carried through.
func (s *Session) end(ctx context.Context, g *generation, patient bool) error {
	s.mu.Lock()
	first := !g.stopping
	g.stopping = true
	live := s.commands
	s.mu.Unlock()
	if first {
		go s.carryOut(g, patient, live)
	}
	select {
	case <-g.cleaned:
		return nil
	case <-ctx.Done():
		return errdefs.Abort(ctx, "stop", "")
	}
}

func (s *Session) carryOut(g *generation, patient bool, live int) {
	defer close(g.cleaned)
	<-g.started
	if g.err != nil {
		return
	}
	began := time.Now()
	g.emit(s, event.Event{Type: event.CleanupStarted, RequestedProcesses: event.Count(live)})
	if patient {
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
