package core

import (
	"context"
	"os"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/pathfs"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// OpenFile opens a regular file for reading. The caller closes it. A path that
// does not exist is told apart with [pathfs.IsMissing].
func (h *Handle) OpenFile(ctx context.Context, path string) (*os.File, error) {
	var f *os.File
	err := h.withTree(ctx, "read", func(t *pathfs.Tree) (err error) {
		f, err = t.Open(ctx, path)
		return err
	})
	return f, err
}

// WriteFile replaces the content of a file at once, making parent directories.
func (h *Handle) WriteFile(ctx context.Context, path string, data []byte) error {
	return h.withTree(ctx, "write", func(t *pathfs.Tree) error { return t.WriteFile(ctx, path, data) })
}

// Remove removes a file or a link, and with recursive a tree; force ignores what is missing.
func (h *Handle) Remove(ctx context.Context, path string, recursive, force bool) error {
	return h.withTree(ctx, "remove", func(t *pathfs.Tree) error { return t.Remove(ctx, path, recursive, force) })
}

// Replacement is the new content of a file, written in parts. It is one
// operation under way from CreateFile to Commit or Close.
type Replacement struct {
	content *pathfs.Replacement
	done    func()
}

// CreateFile begins to replace the content of a file. Until Commit, readers see
// the old content. The caller ends it with Commit or Close.
func (h *Handle) CreateFile(ctx context.Context, path string) (*Replacement, error) {
	done, tree, err := h.tree(ctx, "write")
	if err != nil {
		return nil, err
	}
	r, err := tree.Create(ctx, path)
	if err != nil {
		done()
		return nil, err
	}
	return &Replacement{r, done}, nil
}

// Write adds to the new content.
func (r *Replacement) Write(data []byte) (int, error) { return r.content.Write(data) }

// Commit puts the new content in place.
func (r *Replacement) Commit() error {
	defer r.done()
	return r.content.Commit()
}

// Close drops the new content; the old stays.
func (r *Replacement) Close() error {
	defer r.done()
	return r.content.Discard()
}

func (h *Handle) withTree(ctx context.Context, op string, do func(*pathfs.Tree) error) error {
	done, tree, err := h.tree(ctx, op)
	if err != nil {
		return err
	}
	defer done()
	return do(tree)
}

// tree returns the file API of the session's workspace, held until done is called.
func (h *Handle) tree(ctx context.Context, op string) (done func(), t *pathfs.Tree, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, errdefs.Abort(ctx, op, "")
	}
	if err := h.usable(op); err != nil {
		return nil, nil, err
	}
	s := h.session
	held, err := s.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	opDone := s.beginFileOp()
	t = &pathfs.Tree{Root: held.workspace.Dir(), Mount: spec.Workspace, Check: held.workspace.Check}
	o := opener{h: h}
	if t.Opener = &o; h.sandbox.Processes == spec.OfCommand {
		t.Opener = &brief{opener: &o}
	}
	return func() {
		// First: a stop that waits for the operation waits for no sandbox of its own.
		opDone()
		o.close()
		s.release(held)
	}, t, nil
}

// opener resolves outside the workspace for one operation; only that needs a
// live sandbox.
type opener struct {
	h *Handle
	g *generation
}

func (o *opener) sandbox(ctx context.Context) (*supervise.Opener, error) {
	if o.g == nil {
		g, err := o.h.session.generation(ctx, o.h, false)
		if err != nil {
			return nil, err
		}
		o.g = g
	}
	return o.g.box.Opener(), nil
}

func (o *opener) close() {
	if o.g != nil {
		o.h.session.leave(o.g)
	}
}

// Open implements [pathfs.Opener].
func (o *opener) Open(ctx context.Context, path string) (*os.File, error) {
	sandbox, err := o.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.Open(ctx, path)
}

// Parent implements [pathfs.Opener].
func (o *opener) Parent(ctx context.Context, path string, follow, makeParents bool) (*os.File, string, error) {
	sandbox, err := o.sandbox(ctx)
	if err != nil {
		return nil, "", err
	}
	return sandbox.Parent(ctx, path, follow, makeParents)
}
