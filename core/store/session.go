package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

const (
	opCreate = "create"
	opDelete = "delete"
)

// NewSession is what a session is made of. The zero value makes an empty one.
type NewSession struct {
	// Template is what the session is cloned from. Nil makes an empty session.
	Template *TemplateRef
	// Home gives the session the template's home, too, or an empty one.
	Home bool
	// NetworkPolicy is on record from the session's first moment, as one that was
	// set. Empty sets none.
	NetworkPolicy string
	// Reserved becomes the session's directory if it is there, and if this call makes
	// the session: see [Reserved.Spent]. Nil makes a directory.
	Reserved *Reserved
	// Tags are kept with the session.
	Tags map[string]string
}

// OpenSession opens the session of sessionKey, and makes it if there is none. An
// existing session needs no template, and keeps the policy and the tags it has.
// Several callers, in several processes, get the same session, which is complete.
//
// The workspace is the caller's to close. Errors: ERR_TEMPLATE_NOT_FOUND,
// ERR_ABORTED, ERR_CORRUPT, errnos such as ENOSPC.
func (s *Store) OpenSession(ctx context.Context, sessionKey string, made NewSession) (*Workspace, error) {
	if err := s.check(opCreate); err != nil {
		return nil, err
	}
	if sessionKey == "" {
		return nil, errdefs.Invalid("sessionKey", "must not be empty")
	}
	if ctx.Err() != nil {
		return nil, failed(ctx, opCreate, "", context.Cause(ctx))
	}
	id := SessionID(sessionKey)
	ws, err := s.existing(id)
	if !errors.Is(err, fs.ErrNotExist) {
		return ws, failed(ctx, opCreate, "open the session", err)
	}
	if err := s.ensure(); err != nil {
		return nil, failed(ctx, opCreate, "make the cache directory", err)
	}
	key, err := s.locks.Acquire(ctx, keyLock(KindSession, id), lease.Exclusive)
	if err != nil {
		return nil, failed(ctx, opCreate, "lock the session", err)
	}
	// Whoever held the key before may have made it.
	if ws, err = s.existing(id); errors.Is(err, fs.ErrNotExist) {
		ws, err = s.createSession(ctx, id, made)
	}
	// The session is there, so a lock that cannot be released is no reason to
	// say otherwise.
	_ = key.Release()
	return ws, failed(ctx, opCreate, "make the session", err)
}

// Attach opens the session of the id, which must be there; it makes none. The
// workspace is the caller's to close. Errors: ERR_SESSION_GONE.
func (s *Store) Attach(ctx context.Context, id string) (*Workspace, error) {
	const op = "attach"
	if err := s.check(op); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, failed(ctx, op, "", context.Cause(ctx))
	}
	ws, err := s.existing(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sessionGone(op)
	}
	return ws, failed(ctx, op, "open the session", err)
}

// existing opens a session that is there; fs.ErrNotExist if it is not.
func (s *Store) existing(id string) (*Workspace, error) {
	dir, err := s.openEntry(KindSession, id, id)
	if err != nil {
		return nil, err
	}
	ws, err := s.newWorkspace(dir, id, s.path(KindSession, id), leaseLock(KindSession, id))
	if err != nil {
		return nil, err
	}
	ws.strategy = Existing
	m, err := s.readMetadata(KindSession, id)
	if err != nil {
		return nil, errors.Join(err, ws.Close())
	}
	if m != nil {
		ws.policy = m.NetworkPolicy
	}
	s.touch(KindSession, id)
	return ws, nil
}

// createSession builds a session beside its place and renames it. The caller
// holds the key.
func (s *Store) createSession(ctx context.Context, id string, made NewSession) (*Workspace, error) {
	m := s.newMetadata(KindSession, id)
	m.Tags, m.NetworkPolicy = made.Tags, made.NetworkPolicy
	template := made.Template
	var source *os.File
	if template != nil {
		dir, held, err := s.openTemplate(ctx, *template)
		if err != nil {
			return nil, err
		}
		defer func() { _ = errors.Join(dir.Close(), held.Release()) }()
		source, m.TemplateRevision = dir, template.Revision
	}
	dir, err := s.stageSession(ctx, id, made.Reserved)
	if err != nil {
		return nil, err
	}
	result, err := fill(ctx, source, dir, template)
	if err == nil && made.Home {
		err = s.createHome(ctx, id, template)
	}
	if err == nil {
		m.CloneStrategy = result.Strategy
		err = s.publishSession(m)
	}
	if err != nil {
		_ = dir.Close()
		// An error of ours stays the one that is told.
		_ = s.discard(ctx, KindSession, stagingPrefix+id)
		if errors.Is(err, fs.ErrExist) {
			return s.existing(id) // made by someone who does not know of the key
		}
		return nil, err
	}
	ws, err := s.newWorkspace(dir, id, s.path(KindSession, id), leaseLock(KindSession, id))
	if err != nil {
		return nil, err
	}
	ws.strategy, ws.skipped, ws.policy = result.Strategy, result.Skipped, m.NetworkPolicy
	return ws, nil
}

// publishSession puts m on record and then gives the session its name. The other
// way round there would be a session without its policy for a moment, and for
// good if this process ended in it; or with what an earlier session of the name
// has left on record.
func (s *Store) publishSession(m *Metadata) error {
	if err := s.writeMetadata(m); err != nil {
		return err
	}
	// Should this fail, what is on record of a session that is not there is
	// replaced by the next one's; and the session may be there all the same.
	return s.publish(KindSession, m.ID)
}

// fill copies the template, if there is one.
func fill(ctx context.Context, source, dir *os.File, template *TemplateRef) (treecopy.Result, error) {
	if source == nil {
		return treecopy.Result{Strategy: treecopy.Empty}, nil
	}
	result, err := treecopy.Clone(ctx, source, dir, treecopy.Options{})
	if errors.Is(err, fs.ErrExist) {
		// Not to be taken for a session that exists.
		return result, &errdefs.Error{Code: "EEXIST", Op: opCreate, Msg: fmt.Sprintf("clone template %q: %v", template.Key, err)}
	}
	if err != nil {
		return result, fmt.Errorf("clone template %q: %w", template.Key, err)
	}
	return result, nil
}

// DeleteSession removes the session of the id, with its metadata; one that does
// not exist is fine. It waits while the session is being made. Errors: ERR_IN_USE
// while anybody has a lease on it; ERR_ABORTED; an errno when the session is
// gone, but not all of its files could be deleted.
func (s *Store) DeleteSession(ctx context.Context, id string) error {
	_, err := s.DeleteSessionIf(ctx, id, func(Entry) bool { return true })
	return err
}

// DeleteSessionIf is DeleteSession for one of which expired, asked once nobody
// can use the session any more, still says that it may go. It reports whether
// there was such a session.
func (s *Store) DeleteSessionIf(ctx context.Context, id string, expired func(Entry) bool) (bool, error) {
	if err := s.check(opDelete); err != nil {
		return false, err
	}
	if !isSessionID(id) {
		return false, errdefs.Invalid("sessionId", "is not the id of a session")
	}
	key, err := s.locks.Acquire(ctx, keyLock(KindSession, id), lease.Exclusive)
	if err != nil {
		return false, failed(ctx, opDelete, "lock the session", err)
	}
	held, err := s.locks.TryAcquire(leaseLock(KindSession, id), lease.Exclusive)
	if err != nil {
		if errors.Is(err, lease.ErrHeld) {
			err = errdefs.New(errdefs.InUse, opDelete, "the session is in use")
		}
		return false, failed(ctx, opDelete, "lock the session", errors.Join(err, key.Release()))
	}
	if e, err := s.entry(id); err == nil && !expired(e) {
		return false, failed(ctx, opDelete, "unlock the session", errors.Join(held.Release(), key.Release()))
	}
	trash, err := s.aside(KindSession, id)
	var home string
	if err == nil {
		home, err = s.aside(kindHome, id)
	}
	if err == nil {
		err = os.Remove(s.metadataPath(KindSession, id))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return false, failed(ctx, opDelete, "remove the session", errors.Join(err, held.Release(), key.Release()))
	}
	// The lease's file before the key's: the key is what keeps a new session of
	// the name from being made meanwhile.
	err = errors.Join(held.Discard(), key.Discard())
	if trash != "" {
		err = errors.Join(err, s.removeTrash(ctx, KindSession, trash))
	}
	if home != "" {
		err = errors.Join(err, s.removeTrash(ctx, kindHome, home))
	}
	return trash != "", failed(ctx, opDelete, "delete the session's files", err)
}
