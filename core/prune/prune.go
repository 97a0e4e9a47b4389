// Package prune removes sessions that nobody has used for long. What may go is
// decided by Plan, which looks at nothing but its arguments; Apply removes it,
// asking the store again under its locks, so that a session which was used
// meanwhile stays.
package prune

import (
	"context"
	"errors"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/store"
)

// Policy says which sessions may go.
type Policy struct {
	// Tag and Value select the sessions that carry this tag. An empty Tag selects all.
	Tag, Value string
	// MaxAge is how long ago the last use may be. Zero lets all that are not in use go.
	MaxAge time.Duration
}

// Result is what became of a policy.
type Result struct {
	// Removed counts the sessions that are gone.
	Removed int
	// InUse counts those that should go, and are in use.
	InUse int
	// Failed has an error for each that could not be removed, or not wholly.
	Failed []error
}

func (p Policy) expired(e store.Entry, now time.Time) bool {
	if p.Tag != "" && e.Tags[p.Tag] != p.Value {
		return false
	}
	return now.Sub(e.LastUsedAt) >= p.MaxAge
}

// Plan returns the ids of the sessions that may go.
func Plan(entries []store.Entry, policy Policy, now time.Time) []string {
	var ids []string
	for _, e := range entries {
		if policy.expired(e, now) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// Apply removes what the policy lets go. One session that cannot be removed
// keeps no other; the error is that of the whole, such as the end of ctx.
func Apply(ctx context.Context, st *store.Store, policy Policy) (Result, error) {
	var result Result
	entries, err := st.Sessions()
	if err != nil {
		return result, err
	}
	for _, id := range Plan(entries, policy, time.Now()) {
		if ctx.Err() != nil {
			return result, errdefs.Abort(ctx, "prune", "")
		}
		removed, err := st.DeleteSessionIf(ctx, id, func(e store.Entry) bool { return policy.expired(e, time.Now()) })
		switch {
		case errors.Is(err, &errdefs.Error{Code: errdefs.InUse}):
			result.InUse++
		case err != nil:
			result.Failed = append(result.Failed, err)
		}
		if removed {
			result.Removed++
		}
	}
	return result, nil
}
