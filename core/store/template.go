package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

const opPrewarm = "prewarm"

// TemplateRef names a template.
type TemplateRef struct {
	Key string
	// Revision is the option templateRevision; it may be empty.
	Revision string
	// Home is that the template has a home beside its workspace.
	Home bool
}

// Staging is a template that is being built. It holds the template's key, so
// there is one at a time in all processes; it must be ended with Publish or
// Discard.
type Staging struct {
	store *Store
	id    string
	ref   TemplateRef
	tags  map[string]string
	ws    *Workspace

	mu   sync.Mutex
	key  lease.Lease // nil once the staging is over
	done bool        // published
}

// BeginTemplate begins to build the template, unless there is one: then reused is true and st is nil. It waits while another process or
// goroutine builds it. What a killed process left half built is thrown away.
//
// Errors: ERR_INVALID_ARGUMENT, ERR_ABORTED, errnos such as ENOSPC.
func (s *Store) BeginTemplate(
	ctx context.Context, ref TemplateRef, tags map[string]string,
) (st *Staging, reused bool, err error) {
	if err := s.check(opPrewarm); err != nil {
		return nil, false, err
	}
	if ref.Key == "" {
		return nil, false, errdefs.Invalid("templateKey", "must not be empty")
	}
	id := TemplateID(ref)
	if found, err := s.hasTemplate(id); found || err != nil {
		return nil, found, failed(ctx, opPrewarm, "open the template", err)
	}
	if err := s.ensure(); err != nil {
		return nil, false, failed(ctx, opPrewarm, "make the cache directory", err)
	}
	held, err := s.locks.Acquire(ctx, keyLock(KindTemplate, id), lease.Exclusive)
	if err != nil {
		return nil, false, failed(ctx, opPrewarm, "lock the template", err)
	}
	st = &Staging{store: s, id: id, ref: ref, tags: tags, key: held}
	// Whoever held the key before may have published.
	found, err := s.hasTemplate(id)
	if err == nil && !found {
		err = st.open(ctx)
	}
	if err != nil || found {
		return nil, found, failed(ctx, opPrewarm, "stage the template", errors.Join(err, held.Release()))
	}
	return st, false, nil
}

// hasTemplate also notes that the template was asked for.
func (s *Store) hasTemplate(id string) (bool, error) {
	dir, err := s.openEntry(KindTemplate, id, id)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.touch(KindTemplate, id)
	return true, bare(dir.Close())
}

func (st *Staging) open(ctx context.Context) error {
	dir, err := st.store.stage(ctx, KindTemplate, st.id)
	if err != nil {
		return err
	}
	path := st.store.path(KindTemplate, stagingPrefix+st.id)
	// Not the template's own lease: that one is for those who clone it.
	ws, err := st.store.newWorkspace(dir, st.id, path, keyLock(KindTemplate, st.id)+".staging")
	if err != nil {
		return err
	}
	ws.staging, ws.strategy = true, treecopy.Empty
	st.ws = ws
	if !st.ref.Home {
		return nil
	}
	home, err := st.store.stage(ctx, KindTemplate, homeOf(st.id))
	if err != nil {
		return errors.Join(err, ws.Close())
	}
	return bare(home.Close())
}

// homeOf is the name of a template's home.
func homeOf(templateID string) string { return templateID + ".home" }

// Workspace returns the directory in which the template is built. It is closed
// with the staging.
func (st *Staging) Workspace() *Workspace { return st.ws }

// Publish makes the template visible under its name, complete and on the disk.
// Nothing may run in it any more. Once it has begun, it does not heed ctx. When
// it fails, the staging can still be discarded. Errors: ERR_SESSION_GONE when the
// directory was taken away, ERR_CLOSED after Discard, errnos.
func (st *Staging) Publish(ctx context.Context) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.key == nil {
		if st.done {
			return nil
		}
		return errdefs.New(errdefs.Closed, opPrewarm, "the template was discarded")
	}
	if ctx.Err() != nil {
		return failed(ctx, opPrewarm, "", context.Cause(ctx))
	}
	if err := st.ws.Check(); err != nil {
		return err
	}
	// A template lives for months: after a power failure it must not turn out to
	// be a tree of empty files. One sync of the file system is far cheaper than
	// one for every file.
	if err := linux.Hold(st.ws.Dir(), linux.Syncfs); err != nil {
		return failed(ctx, opPrewarm, "write the template to the disk", err)
	}
	err := st.publishHome(ctx)
	if err == nil {
		err = st.store.publish(KindTemplate, st.id)
	}
	if errors.Is(err, fs.ErrExist) {
		// Someone who does not know of the key was faster. Theirs is as good.
		err = st.store.discard(ctx, KindTemplate, stagingPrefix+st.id)
	}
	if err != nil {
		return failed(ctx, opPrewarm, "publish the template", err)
	}
	m := st.store.newMetadata(KindTemplate, st.id)
	m.Tags, m.TemplateRevision = st.tags, st.ref.Revision
	// The template is there, whether or not its metadata are.
	_ = st.store.writeMetadata(m)
	st.done = true
	return st.end()
}

// publishHome gives the home its name, before the template has its own. A home
// without a template is what a killed process left.
func (st *Staging) publishHome(ctx context.Context) error {
	if !st.ref.Home {
		return nil
	}
	if err := st.store.discard(ctx, KindTemplate, homeOf(st.id)); err != nil {
		return err
	}
	return st.store.publish(KindTemplate, homeOf(st.id))
}

// Discard throws the template away. After Publish it does nothing.
func (st *Staging) Discard() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.key == nil {
		return nil
	}
	ctx := context.Background()
	err := st.store.discard(ctx, KindTemplate, stagingPrefix+st.id)
	if st.ref.Home {
		err = errors.Join(err, st.store.discard(ctx, KindTemplate, stagingPrefix+homeOf(st.id)))
	}
	return errors.Join(failed(ctx, opPrewarm, "discard the template", err), st.end())
}

func (st *Staging) end() error {
	err := errors.Join(st.ws.Close(), st.key.Release())
	st.key = nil
	return err
}

// openTemplate opens a template for cloning, with a lease on it.
func (s *Store) openTemplate(ctx context.Context, ref TemplateRef) (*os.File, lease.Lease, error) {
	id := TemplateID(ref)
	held, err := s.locks.Acquire(ctx, leaseLock(KindTemplate, id), lease.Shared)
	if err != nil {
		return nil, nil, err
	}
	dir, err := s.openEntry(KindTemplate, id, id)
	if err == nil {
		return dir, held, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &errdefs.Error{
			Code: errdefs.TemplateNotFound, Op: opCreate,
			Msg:    fmt.Sprintf("template %q was not built with these options", ref.Key),
			Remedy: "prewarm the template with the same cacheDir and templateRevision first",
		}
	}
	return nil, nil, errors.Join(err, held.Release())
}
