package core

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// room bounds the live generations of a process, over all its sessions. One more
// than may live ends the one that has been unused for longest; where each is in
// use it waits. The zero value is ready.
type room struct {
	// turn is held while somebody looks for a generation to end: two would end two
	// for one place.
	turn sync.Mutex

	// mu guards the fields below it. It may be taken under a session's mu, not the
	// other way round.
	mu sync.Mutex
	// live are the generations that have a place, with their sessions.
	live map[*generation]*Session
	// changed is closed at the next change that may help those who wait; nil while
	// nobody does.
	changed chan struct{}
}

// spare tells whether one more could live.
func (r *room) spare(limit int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return limit == 0 || int64(len(r.live)) < limit
}

// take waits for a place for g, which giveBack returns. A limit of zero is none.
// full is called, once, if there is none and none can be made.
//
// Errors: what ended ctx.
func (r *room) take(ctx context.Context, s *Session, g *generation, limit int64, full func(live int64)) error {
	if limit == 0 {
		limit = math.MaxInt64
	}
	told := false
	for {
		changed := r.enter(s, g, limit)
		if changed == nil {
			return nil
		}
		if live, coming := r.makePlace(ctx, limit); !coming && !told {
			told = true
			full(live)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errdefs.Abort(ctx, "start", "")
		}
	}
}

// enter gives g a place if there is one, and else returns what is closed when it
// is worth to try again.
func (r *room) enter(s *Session, g *generation, limit int64) (changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int64(len(r.live)) < limit {
		if r.live == nil {
			r.live = map[*generation]*Session{}
		}
		r.live[g] = s
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

func (r *room) giveBack(g *generation) {
	r.mu.Lock()
	delete(r.live, g)
	r.mu.Unlock()
	r.stir()
}

// stir has those who wait try again.
func (r *room) stir() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// makePlace begins the end of the generation that has been unused for longest,
// unless enough are about to end anyway, and reports whether a place is coming.
func (r *room) makePlace(ctx context.Context, limit int64) (live int64, coming bool) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.mu.Lock()
	all := maps.Clone(r.live)
	r.mu.Unlock()
	live = int64(len(all))
	remaining := live
	var unused []idler
	for g, s := range all {
		stopping, is := s.idler(g)
		if stopping {
			remaining--
		}
		if is != nil {
			unused = append(unused, *is)
		}
	}
	if remaining < limit {
		return live, true
	}
	slices.SortFunc(unused, func(a, b idler) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.uses, b.uses)) })
	for _, i := range unused {
		if all[i.g].endIdler(ctx, i) {
			return live, true
		}
	}
	return live, false
}
