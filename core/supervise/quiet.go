package supervise

import (
	"context"
	"errors"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// Quiet tells whether nothing runs in the sandbox but what is ours, neither a
// command nor what one left in the background, and for how long that has been so.
// After a no, Quieted tells once when it has become so, unless a command is
// started before.
//
// Errors: Aborted, and those of a sandbox that has ended.
func (g *Generation) Quiet(ctx context.Context) (since time.Duration, quiet bool, err error) {
	answer := make(chan wire.Message, 1)
	if err := g.ask(wire.Message{Kind: wire.KindCensus}, &request{census: answer}); err != nil {
		return 0, false, err
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return 0, false, g.ended("census")
		case m.Kind != wire.KindCensus:
			return 0, false, errdefs.New(errdefs.Internal, "census", "init could not look at its processes")
		}
		return time.Duration(m.QuietMs) * time.Millisecond, m.Left == 0, nil
	case <-ctx.Done():
		return 0, false, aborted(ctx, "census")
	}
}

// Quieted receives a value when nothing runs any more that Quiet has found
// running. It is a hint: something may have been started since.
func (g *Generation) Quieted() <-chan struct{} { return g.quieted }

// fallenQuiet is init's word that nothing runs any more.
func (g *Generation) fallenQuiet() error {
	g.mu.Lock()
	busy := g.busy
	g.busy = false
	g.mu.Unlock()
	if !busy {
		return errors.New("it tells of an end that nobody waits for")
	}
	select {
	case g.quieted <- struct{}{}:
	default: // nobody has looked at the last one yet
	}
	return nil
}
