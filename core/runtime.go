// Package core composes the parts into what callers use: a [Runtime] of the
// process, its [Client]s, their [Session]s and the commands and files of those.
//
// It owns who may use what for how long: a session costs nothing while unused,
// holds its directory only while something is under way, and has at most one
// live sandbox (a generation), which ends with the last client that uses it.
// How each part works is the matter of the packages below.
package core

import (
	"context"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/prune"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// Runtime is the state that all clients of one process share. The zero value is ready.
type Runtime struct {
	// Memory is where the output of commands is put that Run and Read return.
	// Nil means Go's own.
	Memory supervise.Memory

	// mu guards the fields below it.
	mu       sync.Mutex
	sessions map[sessionName]*Session
	stores   map[string]*store.Store

	room room
}

type sessionName struct{ cacheDir, id string }

// Client is one user of a Runtime, such as one Node environment. Its sessions'
// generations live only while some client uses them.
type Client struct {
	runtime *Runtime

	// mu guards the fields below it.
	mu      sync.Mutex
	handles map[*Handle]struct{}
	closed  bool

	standbys standbys
}

// NewClient returns a client. Its owner ends it with Close.
func (r *Runtime) NewClient() *Client {
	return &Client{runtime: r, handles: map[*Handle]struct{}{}}
}

// CreateRequest names a durable session.
type CreateRequest struct {
	Sandbox spec.Sandbox
	// SessionKey is the caller's name for the session, any non-empty string.
	SessionKey string
	// ExistingOnly opens the session if it is there, and makes none.
	ExistingOnly bool
	// TemplateKey names the template that a new session is cloned from; nil starts empty.
	TemplateKey *string
	// TemplateRevision is the operator's revision of the template.
	TemplateRevision string
	// NetworkPolicy applies unless the session has had one set explicitly.
	NetworkPolicy spec.Network
	// InitialNetworkPolicy is set explicitly for a session that this call makes,
	// from its first moment. Empty sets none; an existing session keeps its own.
	InitialNetworkPolicy spec.Network
	// Lifetime says how long sandboxes live that this handle used last.
	Lifetime spec.Lifetime
	// Tags are kept with the session for operators.
	Tags map[string]string
	// Events receives the session's events; nil for none.
	Events event.Sink
}

// Create opens a durable session, cloning its template on first use. It starts
// no process and may be called as often as the caller likes; calls with equal
// requests return handles of the same session.
//
// Errors: TemplateNotFound for a new session whose template does not exist,
// SessionGone for one that is not there and must be, InvalidArgument,
// Unsupported for the policy, and what the file system says.
func (c *Client) Create(ctx context.Context, req CreateRequest) (*Handle, error) {
	if err := req.Sandbox.Validate(); err != nil {
		return nil, err
	}
	if err := req.NetworkPolicy.Validate(); err != nil {
		return nil, err
	}
	if req.InitialNetworkPolicy != "" {
		if err := req.InitialNetworkPolicy.Validate(); err != nil {
			return nil, err
		}
	}
	if err := req.Lifetime.Validate(); err != nil {
		return nil, err
	}
	if req.SessionKey == "" {
		return nil, errdefs.Invalid("sessionKey", "must not be empty")
	}
	st, err := c.runtime.store(req.Sandbox.CacheDir)
	if err != nil {
		return nil, err
	}
	ahead := c.standbys.takeFor(req)
	ws, err := openSession(ctx, st, req, ahead)
	if err != nil {
		c.standbys.giveBack(ahead)
		return nil, err
	}
	defer ws.Close()

	session := c.runtime.session(sessionName{req.Sandbox.CacheDir, ws.ID()}, st, c)
	if !session.keep(ahead, ws) {
		c.standbys.giveBack(ahead)
	}
	h := &Handle{
		session: session, client: c, sandbox: req.Sandbox, shape: req.Sandbox.Shape(),
		policy: req.NetworkPolicy, lifetime: req.Lifetime, tags: req.Tags, events: req.Events, strategy: string(ws.Strategy()),
	}
	if err := c.adopt(h); err != nil {
		return nil, err
	}
	return h, nil
}

func openSession(ctx context.Context, st *store.Store, req CreateRequest, ahead *standby) (*store.Workspace, error) {
	if req.ExistingOnly {
		return st.Attach(ctx, store.SessionID(req.SessionKey))
	}
	made := store.NewSession{
		NetworkPolicy: string(req.InitialNetworkPolicy), Tags: req.Tags, Home: req.Sandbox.SeparateHome(),
	}
	if req.TemplateKey != nil {
		template := templateOf(req.Sandbox, *req.TemplateKey, req.TemplateRevision)
		made.Template = &template
	}
	if ahead != nil {
		made.Reserved = ahead.reserved
	}
	return st.OpenSession(ctx, req.SessionKey, made)
}

// adopt records the handle, so that the client's end ends it.
func (c *Client) adopt(h *Handle) error {
	c.mu.Lock()
	if !c.closed {
		c.handles[h] = struct{}{}
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	h.abandon()
	return errdefs.New(errdefs.Closed, "create", "the environment is closed")
}

// Close ends the client: generations that no other client uses are ended
// before it returns, staging workspaces are thrown away. Closing twice is a no-op.
func (c *Client) Close() {
	c.mu.Lock()
	handles := c.handles
	c.handles, c.closed = nil, true
	c.mu.Unlock()

	var wg sync.WaitGroup
	for h := range handles {
		wg.Go(func() {
			var failure error // of ours, which nobody can be told
			defer errdefs.Recover(&failure)
			h.abandon()
		})
	}
	wg.Wait()
	c.standbys.close()
}

// forget drops a handle that was closed on its own.
func (c *Client) forget(h *Handle) {
	c.mu.Lock()
	delete(c.handles, h)
	c.mu.Unlock()
}

// Prune removes the sessions of a cache directory that the policy lets go.
func (r *Runtime) Prune(ctx context.Context, cacheDir string, policy prune.Policy) (prune.Result, error) {
	st, err := r.store(cacheDir)
	if err != nil {
		return prune.Result{}, err
	}
	return prune.Apply(ctx, st, policy)
}

func (r *Runtime) store(cacheDir string) (*store.Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.stores[cacheDir]; st != nil {
		return st, nil
	}
	st, err := store.Open(cacheDir)
	if err != nil {
		return nil, err
	}
	if r.stores == nil {
		r.stores = map[string]*store.Store{}
	}
	r.stores[cacheDir] = st
	return st, nil
}

// session returns the process's one Session of that name, with the client as a
// user of it. Both happen under one lock, or a session could be forgotten
// between being found and being used, and a second one stand for its directory.
func (r *Runtime) session(name sessionName, st *store.Store, c *Client) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[name]; s != nil {
		s.attach(c)
		return s
	}
	s := &Session{
		id:   name.id,
		open: func(ctx context.Context) (*hold, error) { return openDurable(ctx, st, name.id) },
		drop: func(ctx context.Context) error { return st.DeleteSession(ctx, name.id) },
		gone: func() { r.forget(name) },
		room: &r.room,
	}
	if r.sessions == nil {
		r.sessions = map[sessionName]*Session{}
	}
	r.sessions[name] = s
	s.attach(c)
	return s
}

// forget drops a session that no client uses any more.
func (r *Runtime) forget(name sessionName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[name]; s != nil && s.unused() {
		delete(r.sessions, name)
	}
}
