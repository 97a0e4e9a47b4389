package core

import (
	"context"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
)

// PrewarmRequest names a template.
type PrewarmRequest struct {
	Sandbox spec.Sandbox
	// TemplateKey is the caller's name for the template, any non-empty string.
	TemplateKey string
	// TemplateRevision is the operator's revision; another revision is another template.
	TemplateRevision string
	// NetworkPolicy is that of the commands that build the template.
	NetworkPolicy spec.Network
	// Lifetime says how long the staging session's sandboxes live.
	Lifetime spec.Lifetime
	// Tags are kept with the template for operators.
	Tags map[string]string
	// Events receives the staging session's events; nil for none.
	Events event.Sink
}

// BeginTemplate takes the template's key, waiting for another builder of it in
// any process. It returns reused when the template exists, else a handle whose
// workspace is the template to be; the caller ends it with CommitTemplate or
// AbortTemplate.
func (c *Client) BeginTemplate(ctx context.Context, req PrewarmRequest) (h *Handle, reused bool, err error) {
	if err := req.Sandbox.Validate(); err != nil {
		return nil, false, err
	}
	if err := req.NetworkPolicy.Validate(); err != nil {
		return nil, false, err
	}
	if err := req.Lifetime.Validate(); err != nil {
		return nil, false, err
	}
	if req.TemplateKey == "" {
		return nil, false, errdefs.Invalid("templateKey", "must not be empty")
	}
	st, err := c.runtime.store(req.Sandbox.CacheDir)
	if err != nil {
		return nil, false, err
	}
	staging, reused, err := st.BeginTemplate(ctx, templateOf(req.Sandbox, req.TemplateKey, req.TemplateRevision), req.Tags)
	if err != nil || reused {
		return nil, reused, err
	}
	session := &Session{
		id:   staging.Workspace().ID(),
		room: &c.runtime.room,
		// The staging directory is open, under its key's lock, until it is
		// published or discarded.
		open: func(context.Context) (*hold, error) {
			return &hold{workspace: staging.Workspace(), close: func() {}}, staging.Workspace().Check()
		},
		drop: func(context.Context) error {
			return errdefs.New(errdefs.Unsupported, "delete", "a template under construction is ended with its prewarm")
		},
	}
	session.attach(c)
	h = &Handle{
		session: session, client: c, sandbox: req.Sandbox, shape: req.Sandbox.Shape(),
		policy: req.NetworkPolicy, lifetime: req.Lifetime, tags: req.Tags, events: req.Events, staging: staging,
	}
	if err := c.adopt(h); err != nil {
		return nil, false, err
	}
	return h, false, nil
}

// templateOf names the template that these options lead to.
func templateOf(sandbox spec.Sandbox, key, revision string) store.TemplateRef {
	return store.TemplateRef{Key: key, Revision: revision, Home: sandbox.SeparateHome()}
}

// CommitTemplate ends everything that runs in the staging workspace, so that
// nothing can change the template any more, and publishes it. The handle is closed.
func (h *Handle) CommitTemplate(ctx context.Context) error {
	return h.endTemplate(ctx, "prewarm", func() error { return h.staging.Publish(ctx) })
}

// AbortTemplate throws the staging workspace away. The handle is closed.
func (h *Handle) AbortTemplate(ctx context.Context) error {
	return h.endTemplate(ctx, "prewarm", h.staging.Discard)
}

func (h *Handle) endTemplate(ctx context.Context, op string, finish func() error) error {
	if h.staging == nil {
		return errdefs.New(errdefs.BadHandle, op, "this session is not a template under construction")
	}
	if !h.end() {
		return errdefs.New(errdefs.Closed, op, "the template is finished already")
	}
	h.client.forget(h)
	defer h.leave()
	// A caller that gives up here must not leave a half-finished template
	// behind: what follows takes milliseconds and is carried through.
	if err := h.session.stop(context.WithoutCancel(ctx)); err != nil {
		_ = h.staging.Discard()
		return err
	}
	return finish()
}
