package core

import (
	"context"
	"sync"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
)

// fileGrace is how long a stop waits for file operations under way in the
// sandbox before it fails them, and for goroutines that have only to tell an end.
const fileGrace = time.Second

// Session is the process's view of one durable session, shared by all clients
// that use it. It keeps no descriptor open while nothing is under way.
type Session struct {
	id string
	// open opens and leases the session's directory, or says ERR_SESSION_GONE.
	open func(context.Context) (*hold, error)
	// drop removes the session's files.
	drop func(context.Context) error
	// gone is called when the last client has left.
	gone func()
	// room bounds the generations of the process.
	room *room

	// turns bounds live commands.
	turns turns

	// opening serialises open and close of the directory and guards held and the
	// count in it. It is held across system calls, but only those who need the
	// same directory wait for it.
	opening sync.Mutex
	held    *hold

	// telling is held from the count of a command's event until that is told, so
	// that events come in the order of their counts. Taken before mu.
	telling sync.Mutex

	// mu guards the fields below it.
	mu sync.Mutex
	// clients counts the handles of each client.
	clients map[*Client]int
	// live are the generations that are not over, all of one shape but for those
	// on their way out: one at most, unless they are for one command each.
	live map[*generation]struct{}
	// commands counts live commands.
	commands int
	// made is set until the first sandbox of a session that this process has made,
	// which may have a standby.
	made    bool
	standby *standby
	// fileOps counts file operations under way; filesIdle is closed when it falls
	// to zero while somebody waits for that.
	fileOps   int
	filesIdle chan struct{}
}

// hold is the directory, opened and leased, for as long as somebody needs it.
type hold struct {
	workspace *store.Workspace
	close     func()
	// holders is guarded by the session's opening.
	holders int
}

// openDurable opens and leases the directory of a session in the store.
func openDurable(ctx context.Context, st *store.Store, id string) (*hold, error) {
	ws, err := st.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	l, err := ws.AcquireLease(ctx)
	if err != nil {
		_ = ws.Close()
		return nil, err
	}
	h := &hold{workspace: ws, close: func() {
		_ = ws.Close()
		_ = l.Release()
	}}
	// The directory may have been removed between its opening and the lease.
	if err := ws.Check(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// acquire returns the session's directory under a lease; every acquire is paired
// with a release. A directory that was removed or replaced meanwhile is left to
// those who have it: a session that was made anew begins with the new one.
func (s *Session) acquire(ctx context.Context) (*hold, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.held == nil || s.held.workspace.Check() != nil {
		held, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		s.held = held
	}
	s.held.holders++
	return s.held, nil
}

func (s *Session) release(h *hold) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if h.holders--; h.holders > 0 {
		return
	}
	h.close()
	if s.held == h {
		s.held = nil
	}
}

func (s *Session) attach(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients == nil {
		s.clients = map[*Client]int{}
	}
	s.clients[c]++
}

// detach takes one handle of the client away and reports whether no client is left.
func (s *Session) detach(c *Client) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[c]--; s.clients[c] <= 0 {
		delete(s.clients, c)
	}
	return len(s.clients) == 0
}

func (s *Session) unused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients) == 0
}

// commandAdmitted announces a command of g, before it can start: the end of g waits
// until commandTold, whether or not it has started.
func (s *Session) commandAdmitted(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.commands++
}

// tellCommand tells that a command of g has started or ended: live is 1 or -1, and
// the session's number of live commands by then is part of the event.
func (s *Session) tellCommand(g *generation, e event.Event, live int) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	s.commands += live
	e.LiveProcesses = event.Count(s.commands)
	s.mu.Unlock()
	g.emit(s, e)
}

// commandTold notes that the end of a command of g has been told, or that it did not start.
func (s *Session) commandTold(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.commands--; g.commands == 0 && g.quiet != nil {
		close(g.quiet)
		g.quiet = nil
	}
}

// awaitQuiet waits until the ends of all commands of g have been told. The
// commands are over; it takes their goroutines no more than a moment.
func (s *Session) awaitQuiet(g *generation) {
	s.mu.Lock()
	if g.commands == 0 {
		s.mu.Unlock()
		return
	}
	g.quiet = make(chan struct{})
	quiet := g.quiet
	s.mu.Unlock()
	within(fileGrace, quiet)
}

// beginFileOp marks a file operation as under way until the returned function is called.
func (s *Session) beginFileOp() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fileOps++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.fileOps--; s.fileOps == 0 && s.filesIdle != nil {
			close(s.filesIdle)
			s.filesIdle = nil
		}
	})
}

// awaitFileOps waits until no file operation is under way, at most for the grace.
func (s *Session) awaitFileOps() {
	s.mu.Lock()
	if s.fileOps == 0 {
		s.mu.Unlock()
		return
	}
	if s.filesIdle == nil {
		s.filesIdle = make(chan struct{})
	}
	idle := s.filesIdle
	s.mu.Unlock()
	within(fileGrace, idle)
}

// within waits for c, at most for d.
func within(d time.Duration, c <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
	}
}

// setPolicy puts a policy on record. It is the directory's and not the session's:
// one that is made anew under the same name, by whichever process, has its own.
func (s *Session) setPolicy(ctx context.Context, policy spec.Network) error {
	h, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer s.release(h)
	return h.workspace.SetNetworkPolicy(string(policy))
}

// policy is what was set for the session, or fallback.
func (h *hold) policy(fallback spec.Network) spec.Network {
	if set := h.workspace.NetworkPolicy(); set != "" {
		return spec.Network(set)
	}
	return fallback
}

// delete ends the session's compute and removes its files.
func (s *Session) delete(ctx context.Context) error {
	if err := s.stop(ctx); err != nil {
		return err
	}
	return s.drop(ctx)
}

// errStopped is what calls get that a stop ended.
func errStopped(op string) error {
	return errdefs.New(errdefs.Closed, op, "the sandbox was stopped")
}
