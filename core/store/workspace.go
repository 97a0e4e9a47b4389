package store

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

// Existing is the strategy of a session that was there already.
const Existing treecopy.Strategy = "existing"

// Workspace is the open directory of a session, or of a template that is being
// built. It is safe for concurrent use. It holds no lock: a session may be
// removed meanwhile, which Check tells; AcquireLease prevents it.
type Workspace struct {
	store    *Store
	id       string
	path     string
	lease    string // the lease's name
	staging  bool
	dir      *os.File
	dev, ino uint64
	strategy treecopy.Strategy
	skipped  []string

	mu     sync.Mutex
	closed bool
	policy string
}

// newWorkspace takes over dir, also when it fails.
func (s *Store) newWorkspace(dir *os.File, id, path, leaseName string) (*Workspace, error) {
	w := &Workspace{store: s, id: id, path: path, lease: leaseName, dir: dir}
	err := linux.Hold(dir, func(fd int) error {
		st, err := linux.Fstat(fd)
		w.dev, w.ino = uint64(st.Dev), st.Ino
		return err
	})
	if err != nil {
		_ = dir.Close()
		return nil, bare(err)
	}
	return w, nil
}

// ID returns the session's id, or the template's while it is being built.
func (w *Workspace) ID() string { return w.id }

// Dir returns the directory, borrowed: it is open until Close.
func (w *Workspace) Dir() *os.File { return w.dir }

// Path returns where the directory lies on the host, for a bind mount. It must
// not get into a message that a model sees, and nothing may be opened by it.
func (w *Workspace) Path() string { return w.path }

// Strategy tells how the directory came to be.
func (w *Workspace) Strategy() treecopy.Strategy { return w.strategy }

// Skipped returns the paths, relative to the template, of the sockets and
// devices that were left out when the session was made by this call.
func (w *Workspace) Skipped() []string { return w.skipped }

// Check tells whether the directory still is where it was: ERR_SESSION_GONE if
// it was removed or replaced, ERR_CLOSED after Close.
func (w *Workspace) Check() error {
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return errdefs.New(errdefs.Closed, "", "the session is closed")
	}
	var st unix.Stat_t
	// The inode cannot be another directory's: we hold it open.
	if err := unix.Lstat(w.path, &st); err != nil || uint64(st.Dev) != w.dev || st.Ino != w.ino {
		return sessionGone("")
	}
	return nil
}

func sessionGone(op string) error {
	return errdefs.New(errdefs.SessionGone, op, "the session's directory was removed or replaced")
}

// NetworkPolicy returns what was last set with SetNetworkPolicy, by this process
// or before the workspace was opened. Empty means that nothing was set.
func (w *Workspace) NetworkPolicy() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.policy
}

// SetNetworkPolicy records the policy with the session. A template has none: there
// it is kept until Close. Errors: ERR_SESSION_GONE, ERR_IN_USE.
func (w *Workspace) SetNetworkPolicy(policy string) error {
	if !w.staging {
		if err := w.store.setNetworkPolicy(w.id, policy); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.policy = policy
	return nil
}

// Touch notes that the session is in use, once a minute at most.
func (w *Workspace) Touch() {
	if !w.staging {
		w.store.touch(KindSession, w.id)
	}
}

// AcquireLease keeps the directory from being removed until the lease is
// released. It waits for one who is removing it. Errors: ERR_SESSION_GONE,
// ERR_CLOSED, ERR_ABORTED.
func (w *Workspace) AcquireLease(ctx context.Context) (lease.Lease, error) {
	held, err := w.store.locks.Acquire(ctx, w.lease, lease.Shared)
	if err != nil {
		return nil, failed(ctx, "lease", "lock the session", err)
	}
	if err := w.Check(); err != nil {
		_ = held.Release() // the error that matters is the other one
		return nil, err
	}
	return held, nil
}

// Close closes the directory. Operations under way finish. A second call does
// nothing.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	return bare(w.dir.Close())
}
