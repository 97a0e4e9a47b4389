// Package lease records that something in the store is in use.
//
// A lease is a claim with a name, held shared or exclusively. [Locker] is what
// holders program against; [Local] implements it with flock for the processes of
// one machine: the kernel ends a claim with its holder, so a crash never leaves
// anything pinned, and no pid is ever compared.
//
// Lease does not decide what may be removed, and its files say nothing: only the
// lock on them does. It has no opinion on names, but that they are relative
// paths.
package lease

import (
	"context"
	"errors"
)

// Mode says who else may hold a lease of the same name.
type Mode int

const (
	// Shared tolerates other shared holders.
	Shared Mode = iota
	// Exclusive tolerates nobody.
	Exclusive
)

// ErrHeld is returned by TryAcquire when a holder of another lease is in the way.
var ErrHeld = errors.New("held by another process or operation")

// Locker gives out leases. It is safe for concurrent use; two leases of one
// process exclude each other like those of two.
type Locker interface {
	// Acquire waits until the lease can be had, or ctx ends (its cause is
	// returned). It is not fair: who asks first need not be served first.
	Acquire(ctx context.Context, name string, mode Mode) (Lease, error)
	// TryAcquire does not wait: ErrHeld.
	TryAcquire(name string, mode Mode) (Lease, error)
}

// Lease is a claim that is held. Its holder must end it with Release or Discard.
type Lease interface {
	// Renew extends the claim, where claims run out by themselves. An error
	// means that it is lost.
	Renew(ctx context.Context) error
	// Lost is closed when the claim ends without its holder's doing. Whoever
	// holds a lease for long has to stop what it protects then.
	Lost() <-chan struct{}
	// Epoch grows with every exclusive holder of the name, so that a storage can
	// refuse one that lost its claim without noticing. 0 means that there is no
	// such count because none is needed: the claim cannot outlive or precede its
	// holder.
	Epoch() uint64
	// Release ends the claim. A second call does nothing.
	Release() error
	// Discard is Release for an exclusive holder that has removed what the name
	// stands for: nothing remains that remembers the name.
	Discard() error
}
