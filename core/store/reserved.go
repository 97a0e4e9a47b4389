package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
)

// Reserved is an empty directory that may become a session's, whichever is made
// next, so that something can be prepared on it beforehand. It is a staging of an id
// that nobody has, under the key of that, and ends with Discard, or with the
// session that it becomes.
type Reserved struct {
	store *Store
	name  string
	// ws is the directory. It belongs to no session yet, and nobody else gets it.
	ws *Workspace

	mu  sync.Mutex
	key lease.Lease // nil once it is over
	// spent is set once it has become a session's.
	spent bool
}

// Reserve makes such a directory. Errors: ERR_ABORTED, errnos such as ENOSPC.
func (s *Store) Reserve(ctx context.Context) (*Reserved, error) {
	const op = "reserve"
	if err := s.check(op); err != nil {
		return nil, err
	}
	if err := s.ensure(); err != nil {
		return nil, failed(ctx, op, "make the cache directory", err)
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // documented never to fail
	id := hex.EncodeToString(random[:])
	key, err := s.locks.Acquire(ctx, keyLock(KindSession, id), lease.Exclusive)
	if err != nil {
		return nil, failed(ctx, op, "lock a directory", err)
	}
	dir, err := s.stage(ctx, KindSession, id)
	if err != nil {
		return nil, failed(ctx, op, "make a directory", errors.Join(err, key.Discard()))
	}
	name := stagingPrefix + id
	ws, err := s.newWorkspace(dir, id, s.path(KindSession, name), "")
	if err != nil {
		return nil, failed(ctx, op, "make a directory", errors.Join(err, key.Discard()))
	}
	return &Reserved{store: s, name: name, ws: ws, key: key}, nil
}

// Workspace returns the directory as it is for now, borrowed: it is open until the
// end of the reservation.
func (r *Reserved) Workspace() *Workspace { return r.ws }

// Spent reports whether a session was made of it, or was to be.
func (r *Reserved) Spent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spent
}

// Became reports whether the directory is that of the workspace. It must not have
// been removed meanwhile, say because something is mounted on it.
func (r *Reserved) Became(ws *Workspace) bool {
	return r.Spent() && r.ws.dev == ws.dev && r.ws.ino == ws.ino
}

// Discard ends the reservation, with the directory unless a session has it.
func (r *Reserved) Discard() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == nil {
		return nil
	}
	ctx := context.Background()
	err := r.store.discard(ctx, KindSession, r.name)
	return failed(ctx, "reserve", "discard a directory", errors.Join(err, r.end()))
}

// end closes what it holds. The caller has mu.
func (r *Reserved) end() error {
	err := errors.Join(r.ws.Close(), r.key.Discard())
	r.key = nil
	return err
}

// stageSession is stage, by way of a reserved directory where there is one. The
// caller holds the id's key.
func (s *Store) stageSession(ctx context.Context, id string, r *Reserved) (*os.File, error) {
	if r == nil || r.store != s {
		return s.stage(ctx, KindSession, id)
	}
	name := stagingPrefix + id
	if err := s.discard(ctx, KindSession, name); err != nil {
		return nil, err
	}
	if !r.spend(name) {
		return s.stage(ctx, KindSession, id)
	}
	return s.openEntry(KindSession, id, name)
}

// spend renames the directory, if it is there.
func (r *Reserved) spend(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == nil {
		return false
	}
	to := r.store.path(KindSession, name)
	if err := linux.Renameat2(unix.AT_FDCWD, r.ws.Path(), unix.AT_FDCWD, to, 0); err != nil {
		return false
	}
	r.spent = true
	_ = r.end() // the directory has its new name, whatever becomes of the lock's file
	return true
}
