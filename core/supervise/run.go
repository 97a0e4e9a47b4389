package supervise

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// Limits bound one run. The zero value sets no limits.
type Limits struct {
	// Timeout ends the command, its start included. Zero means no deadline.
	Timeout time.Duration
	// OutputBytes bounds stdout and stderr together. Zero means no bound.
	OutputBytes int64
}

// Result is what came of a command.
type Result struct {
	// ExitCode is 128+n after death by signal n.
	ExitCode int
	// Stdout and Stderr are what was captured: everything, or over the output
	// limit the beginning and the end of each.
	Stdout, Stderr []byte
	// StdoutTotal and StderrTotal are how many bytes arrived.
	StdoutTotal, StderrTotal int64
	// Duration is from the call to the answer.
	Duration time.Duration
}

// Run runs a command to its end and collects its output. It answers when the
// main process has exited; what that left in the background lives on.
//
// With Timeout, Aborted and OutputLimit the whole tree has been ended, and the
// result holds what was captured. A context that ends after the main process
// has exited changes nothing. Other errors are those of Spawn.
func Run(ctx context.Context, g *Generation, cmd Command, limits Limits) (Result, error) {
	began := time.Now()
	if limits.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limits.Timeout, &errdefs.Error{
			Code: errdefs.Timeout, Op: "run", Msg: "the command did not end within " + limits.Timeout.String(),
		})
		defer cancel()
	}
	p, err := g.Spawn(ctx, cmd)
	if err != nil {
		return Result{Duration: time.Since(began)}, err
	}
	result, err := p.Collect(ctx, limits.OutputBytes)
	result.Duration = time.Since(began)
	return result, err
}

// Collect reads a process's output to its end, at most limit bytes of stdout
// and stderr together, zero meaning all, and gives the process up. Its errors
// are those of [Run]; a cause of the context's end that is an errdefs.Error is
// returned as it is.
func (p *Process) Collect(ctx context.Context, limit int64) (Result, error) {
	began := time.Now()
	defer p.Release()
	_ = p.stdin.close()
	c := &collector{limit: limit, over: make(chan struct{})}
	var readers sync.WaitGroup
	for i := 1; i <= 2; i++ {
		readers.Go(func() { c.read(p, i) })
	}
	why := c.await(ctx, p)
	if why != nil {
		// The order is carried through whatever the caller does.
		_ = p.Kill(context.WithoutCancel(ctx))
	}
	exit, err := p.Wait(context.WithoutCancel(ctx))
	readers.Wait()
	if why == nil && err == nil && closed(c.over) {
		// What was left in the pipes at its exit was too much.
		why = c.tooMuch()
	}
	if why != nil {
		err = why
	} else if err == nil {
		err = c.err
	}
	return Result{
		ExitCode: exit.Code, Stdout: c.parts[1].bytes(), Stderr: c.parts[2].bytes(),
		StdoutTotal: c.parts[1].total, StderrTotal: c.parts[2].total, Duration: time.Since(began),
	}, err
}

// collector gathers both streams under one limit.
type collector struct {
	limit int64
	// over is closed once more has arrived than may.
	over chan struct{}

	// mu guards the fields below it.
	mu    sync.Mutex
	held  int64
	parts [3]part
	// err is our own mistake, if there was one.
	err error
}

// await returns why the command has to be ended, or nil when it has exited.
func (c *collector) await(ctx context.Context, p *Process) error {
	select {
	case <-p.over:
		return nil
	case <-c.over:
	case <-ctx.Done():
	}
	switch {
	case closed(p.over): // a late cancel changes nothing
		return nil
	case closed(c.over):
		return c.tooMuch()
	default:
		return aborted(ctx, "run")
	}
}

func (c *collector) tooMuch() error {
	return &errdefs.Error{Code: errdefs.OutputLimit, Op: "run", Msg: "the command wrote more than its output limit"}
}

// read collects one stream. It ends with the stream, which ends with the main
// process, so it needs no context.
func (c *collector) read(p *Process, i int) {
	const chunk = 64 << 10
	var err error
	defer func() {
		if err != nil && err != io.EOF {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}()
	defer errdefs.Recover(&err)
	for {
		var data []byte
		if data, err = p.Read(context.Background(), i, chunk); err != nil {
			return
		}
		c.add(i, data)
	}
}

func (c *collector) add(i int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	part := &c.parts[i]
	part.total += int64(len(data))
	if c.limit <= 0 {
		part.head = append(part.head, data...)
		return
	}
	if !part.cut {
		fits := min(int64(len(data)), c.limit-c.held)
		part.head = appendWithin(part.head, data[:fits], c.limit)
		c.held += fits
		if data = data[fits:]; len(data) == 0 {
			return
		}
		part.split()
	}
	part.roll(data)
	if !closed(c.over) {
		close(c.over)
	}
}

// appendWithin is append that never takes more memory than limit.
func appendWithin(to, data []byte, limit int64) []byte {
	need := len(to) + len(data)
	if need > cap(to) && int64(2*need) > limit {
		grown := make([]byte, len(to), max(int64(need), min(limit, int64(2*cap(to)))))
		copy(grown, to)
		to = grown
	}
	return append(to, data...)
}

// part is what is kept of one stream. Once cut, head keeps the first half of
// what was held by then, and tail the last bytes, as many as the other half had.
type part struct {
	total int64
	head  []byte
	cut   bool
	// tail is a ring that begins at start.
	tail  []byte
	start int
}

func (p *part) split() {
	half := (len(p.head) + 1) / 2
	p.cut = true
	p.head, p.tail = p.head[:half:half], p.head[half:]
}

// roll puts data at the end of tail and lets as much fall out at its beginning.
func (p *part) roll(data []byte) {
	size := len(p.tail)
	if size == 0 {
		return
	}
	if len(data) >= size {
		copy(p.tail, data[len(data)-size:])
		p.start = 0
		return
	}
	n := copy(p.tail[p.start:], data)
	copy(p.tail, data[n:])
	p.start = (p.start + len(data)) % size
}

func (p *part) bytes() []byte {
	if !p.cut {
		return p.head
	}
	out := make([]byte, 0, len(p.head)+len(p.tail))
	out = append(out, p.head...)
	out = append(out, p.tail[p.start:]...)
	return append(out, p.tail[:p.start]...)
}
