package core

import (
	"context"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// Run runs a command to its end and collects what it writes. It answers when
// the main process exits; what it left in the background lives on, or with
// spec.OfCommand has been ended.
//
// With Timeout, OutputLimit and Aborted the result holds what was captured and
// the command's whole tree has been ended. A command that a stop ends exits
// with 137, as one that was killed does.
func (h *Handle) Run(ctx context.Context, cmd spec.Command, limits spec.Limits) (supervise.Result, error) {
	began := time.Now()
	if err := limits.Validate(); err != nil {
		return supervise.Result{}, err
	}
	if cmd.Pty != nil {
		return supervise.Result{}, errdefs.Invalid("pty", "only spawn gives a terminal")
	}
	if timeout := limits.Timeout(); timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, &errdefs.Error{
			Code: errdefs.Timeout, Op: "run", Msg: "the command did not end within " + timeout.String(),
		})
		defer cancel()
	}
	p, err := h.start(ctx, "run", cmd)
	if err != nil {
		return supervise.Result{Duration: time.Since(began)}, err
	}
	end := finished{err: errdefs.New(errdefs.Internal, "run", "the collecting of its output was cut short")}
	defer func() {
		// Ended already, unless by a panic here.
		_ = p.process.Kill(context.WithoutCancel(ctx))
		p.finish(end)
	}()
	result, err := p.process.Collect(ctx, limits.MaxOutputBytes)
	result.Duration = time.Since(began)
	end = finished{
		err: err, exit: supervise.Exit{Code: result.ExitCode, Ending: result.Ending, Usage: result.Usage},
		stdout: result.StdoutTotal, stderr: result.StderrTotal,
	}
	return result, err
}

// Spawn starts a command. The context bounds the start; the process then lives
// until it exits, is killed, or its sandbox ends.
func (h *Handle) Spawn(ctx context.Context, cmd spec.Command) (*Process, error) {
	p, err := h.start(ctx, "spawn", cmd)
	if err != nil {
		return nil, err
	}
	go p.watch()
	return p, nil
}

// start admits and starts a command.
func (h *Handle) start(ctx context.Context, op string, cmd spec.Command) (*Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := fits(cmd); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errdefs.Abort(ctx, op, "")
	}
	if err := h.usable(op); err != nil {
		return nil, err
	}
	free, err := h.session.turns.take(ctx, cmd.MaxProcesses, cmd.NoQueue)
	if errdefs.CodeOf(err) == errdefs.Busy {
		return nil, err
	}
	if err != nil {
		return nil, errdefs.Abort(ctx, op, "")
	}
	p, err := h.launch(ctx, op, cmd)
	if err != nil {
		free()
		return nil, err
	}
	p.free = free
	return p, nil
}

func (h *Handle) launch(ctx context.Context, op string, cmd spec.Command) (*Process, error) {
	g, err := h.session.generation(ctx, h, cmd.NoQueue)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errdefs.Abort(ctx, op, "")
		}
		return nil, err
	}
	dir := cmd.WorkingDirectory
	if dir == "" {
		dir = spec.Workspace
	}
	shell := loginShell(spec.Login{Home: h.sandbox.HomePath(), User: g.box.User(), Shell: g.box.Shell()}, cmd)
	shell.Dir, shell.Stdin, shell.Memory = dir, cmd.Stdin, h.client.runtime.Memory
	if cmd.Pty != nil {
		shell.Columns, shell.Rows = cmd.Pty.Columns, cmd.Pty.Rows
	}
	shell.Network = network(g.held.policy(h.policy))
	h.session.commandAdmitted(g)
	process, err := g.box.Spawn(ctx, shell)
	if err != nil {
		h.session.commandTold(g)
		h.session.leave(g)
		if ctx.Err() != nil {
			return nil, errdefs.Abort(ctx, op, "")
		}
		return nil, err
	}
	return newProcess(h.session, g, process), nil
}

// network returns where a command with that policy runs. What is on record may be
// of a version that knows more policies: none but this one shares the network.
func network(policy spec.Network) wire.Network {
	if policy == spec.AllowAll {
		return wire.NetworkShared
	}
	return wire.NetworkNone
}

// finished is how a command ended, as its event tells.
type finished struct {
	err            error
	exit           supervise.Exit
	stdout, stderr int64
}

// reason decides by what ended the command, never by what a message says.
func (f finished) reason(p *Process) event.Reason {
	switch errdefs.CodeOf(f.err) {
	case errdefs.Timeout:
		return event.ReasonTimeout
	case errdefs.OutputLimit:
		return event.ReasonOutputLimit
	case errdefs.Aborted:
		return event.ReasonAbort
	}
	switch f.exit.Ending {
	case supervise.Killed:
		return p.killedFor()
	case supervise.Lost:
		return event.ReasonCleanup
	}
	return event.ReasonExit
}
