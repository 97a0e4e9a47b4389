package core

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// commandNumber names commands in events; unique within the host process.
var commandNumber atomic.Uint64

// Process is a command that was started. Its methods may be called at the same
// time, but only one Read per stream.
type Process struct {
	session    *Session
	generation *generation
	process    *supervise.Process
	command    string
	began      time.Time
	free       func()
	read       [3]atomic.Int64
	// told is closed once the end has been told and the slot is free.
	told chan struct{}

	// mu guards the fields below it.
	mu     sync.Mutex
	killed event.Reason
	over   bool
}

func newProcess(s *Session, g *generation, process *supervise.Process) *Process {
	p := &Process{
		session: s, generation: g, process: process, began: time.Now(), free: func() {}, told: make(chan struct{}),
		command: g.id + "-" + strconv.FormatUint(commandNumber.Add(1), 10),
	}
	s.tellCommand(g, event.Event{Type: event.CommandStarted, CommandID: p.command, Pid: process.Pid()}, 1)
	return p
}

// Pid is the main process's id inside the sandbox.
func (p *Process) Pid() int { return p.process.Pid() }

// Read waits for output of a stream, 1 or 2, and returns at most limit bytes of
// it, or io.EOF at its end. After the main process has exited a stream ends as
// soon as it is empty, even while a background child still holds it.
func (p *Process) Read(ctx context.Context, stream, limit int) ([]byte, error) {
	data, err := p.process.Read(ctx, stream, limit)
	p.read[stream].Add(int64(len(data)))
	return data, err
}

// Discard gives up a stream. What the command still writes there is thrown
// away, and the command does not notice.
func (p *Process) Discard(stream int) { p.process.Discard(stream) }

// KeepUnread keeps the output that nobody has begun to read, so that the command need
// not wait for a reader: up to 4 MiB of each stream. If there was more, and no reader
// within two seconds, a Read fails with OutputLimit after that much.
func (p *Process) KeepUnread() { p.process.KeepUnread() }

// Write writes to the command's standard input and waits until it has taken
// everything. Errors: EPIPE once nobody reads, or the stdin was not asked for.
func (p *Process) Write(ctx context.Context, data []byte) error { return p.process.Write(ctx, data) }

// CloseStdin ends the command's standard input. Closing twice is a no-op.
func (p *Process) CloseStdin() error { return p.process.CloseStdin() }

// Resize changes the size of the command's terminal, and has the command told with
// SIGWINCH. Errors: InvalidArgument; Unsupported without a terminal; Closed once the
// process was given up.
func (p *Process) Resize(size spec.TerminalSize) error {
	if err := size.Validate(); err != nil {
		return err
	}
	return p.process.Resize(size.Columns, size.Rows)
}

// Wait waits for the main process and returns its exit code, 128+n after death
// by signal n. A process whose sandbox was stopped was killed: 137. With
// spec.OfCommand nothing of its sandbox is left then.
func (p *Process) Wait(ctx context.Context) (int, error) {
	exit, err := p.process.Wait(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.awaitTold(ctx, "wait"); err != nil {
		return 0, err
	}
	if p.generation.own {
		select {
		case <-p.generation.ended:
		case <-ctx.Done():
			return 0, errdefs.Abort(ctx, "wait", "")
		}
	}
	return exit.Code, nil
}

// Kill ends the command's whole tree and returns when it is gone. Once the main
// process has exited it is a no-op: what runs in the background goes on. The
// reason is that of the event, ReasonKilled or ReasonAbort.
func (p *Process) Kill(ctx context.Context, reason event.Reason) error {
	p.mu.Lock()
	if p.killed == "" {
		p.killed = reason
	}
	p.mu.Unlock()
	if err := p.process.Kill(ctx); err != nil {
		return err
	}
	return p.awaitTold(ctx, "kill")
}

// awaitTold is for those who learn of the end: their next call finds the slot free.
func (p *Process) awaitTold(ctx context.Context, op string) error {
	select {
	case <-p.told:
		return nil
	case <-ctx.Done():
		return errdefs.Abort(ctx, op, "")
	}
}

// Release gives the process up: it goes on, and its output is discarded.
func (p *Process) Release() { p.process.Release() }

// watch finishes the command when its main process ends.
func (p *Process) watch() {
	var exit supervise.Exit
	var err error
	func() {
		defer errdefs.Recover(&err)
		exit, err = p.process.Wait(context.Background())
	}()
	p.finish(finished{err: err, exit: exit, stdout: p.read[1].Load(), stderr: p.read[2].Load()})
}

// finish tells the command's end, ends a sandbox of its own, and frees its slot, once.
func (p *Process) finish(f finished) {
	reason := f.reason(p)
	p.mu.Lock()
	first := !p.over
	p.over = true
	p.mu.Unlock()
	if !first {
		return
	}
	defer close(p.told)
	defer p.free()
	e := event.Event{
		Type: event.CommandFinished, CommandID: p.command, Pid: p.process.Pid(), Reason: reason,
		DurationMs:  event.Count(time.Since(p.began).Milliseconds()),
		StdoutBytes: event.Count(f.stdout), StderrBytes: event.Count(f.stderr),
	}
	var known *errdefs.Error
	switch {
	case f.err == nil:
		e.ExitCode = event.Count(f.exit.Code)
	case errors.As(f.err, &known):
		e.Error = string(known.Code)
	default:
		e.Error = string(errdefs.Internal)
	}
	if used := f.exit.Usage; used != (supervise.Usage{}) {
		e.CPUMs, e.MaxRSSBytes = event.Count(used.CPU.Milliseconds()), event.Count(used.MaxRSS)
	}
	p.session.tellCommand(p.generation, e, -1)
	p.session.commandTold(p.generation)
	p.session.leave(p.generation)
}

// killedFor is the reason of the first Kill.
func (p *Process) killedFor() event.Reason {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}
