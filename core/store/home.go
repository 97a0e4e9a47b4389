package store

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/evelandhq/sandbox-bwrap/core/lease"
)

// Home is an open home of a session, or of a template that is being built.
type Home struct {
	// Dir is the directory; the caller closes it.
	Dir *os.File
	// Path is where it lies on the host, for a bind mount. It must not get into a
	// message that a model sees.
	Path string
}

// OpenHome opens the home that lies beside the workspace, and makes it if there is
// none: a session may be older than the wish for one. The caller holds the lease.
//
// Errors: ERR_ABORTED, ERR_CORRUPT, errnos such as ENOSPC.
func (w *Workspace) OpenHome(ctx context.Context) (Home, error) {
	const op = "start"
	s := w.store
	if w.staging {
		name := stagingPrefix + homeOf(w.id)
		dir, err := s.openEntry(KindTemplate, w.id, name)
		return Home{dir, s.path(KindTemplate, name)}, failed(ctx, op, "open the template's home", err)
	}
	home := Home{Path: s.path(kindHome, w.id)}
	dir, err := s.openEntry(kindHome, w.id, w.id)
	if errors.Is(err, fs.ErrNotExist) {
		dir, err = s.missingHome(ctx, w.id)
	}
	home.Dir = dir
	return home, failed(ctx, op, "open the session's home", err)
}

// missingHome makes a home for a session that has none.
func (s *Store) missingHome(ctx context.Context, id string) (*os.File, error) {
	if err := s.ensure(); err != nil {
		return nil, err
	}
	key, err := s.locks.Acquire(ctx, keyLock(KindSession, id), lease.Exclusive)
	if err != nil {
		return nil, err
	}
	defer func() { _ = key.Release() }()
	dir, err := s.openEntry(kindHome, id, id)
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, err // whoever held the key before has made it
	}
	if err := s.createHome(ctx, id, nil); err != nil {
		return nil, err
	}
	return s.openEntry(kindHome, id, id)
}

// createHome makes the home of a session, a clone of the template's if that has
// one. What lies there is of an earlier session of the name. The caller holds the
// session's key, and a lease on the template.
func (s *Store) createHome(ctx context.Context, id string, template *TemplateRef) error {
	var source *os.File
	if template != nil {
		dir, err := s.openEntry(KindTemplate, id, homeOf(TemplateID(*template)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			defer func() { _ = dir.Close() }()
			source = dir
		}
	}
	dir, err := s.stage(ctx, kindHome, id)
	if err != nil {
		return err
	}
	_, err = fill(ctx, source, dir, template)
	_ = dir.Close()
	if err == nil {
		err = s.discard(ctx, kindHome, id)
	}
	if err == nil {
		err = s.publish(kindHome, id)
	}
	if err != nil {
		_ = s.discard(ctx, kindHome, stagingPrefix+id)
	}
	return err
}
