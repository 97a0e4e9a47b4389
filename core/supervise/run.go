package supervise

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

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
	// Started is set unless nothing ran: then there is a Duration at most.
	Started bool
	// ExitCode is 128+n after death by signal n.
	ExitCode int
	// Ending says what ended the main process, Usage what it took.
	Ending Ending
	Usage  Usage
	// Stdout and Stderr are what was captured: everything, or of a stream that was
	// cut the beginning and the end, with a line between them that says how much is
	// missing. No character is cut in two, as far as the stream is UTF-8.
	Stdout, Stderr []byte
	// StdoutTruncated and StderrTruncated are set when the stream was cut, for
	// being over the output limit.
	StdoutTruncated, StderrTruncated bool
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
	// The order is carried through whatever the caller does.
	c := &collector{limit: limit, kill: func() { _ = p.Kill(context.WithoutCancel(ctx)) }}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		if !closed(p.over) { // a late cancel changes nothing
			c.end(aborted(ctx, "run"))
		}
	})
	var reader sync.WaitGroup
	reader.Go(func() { c.read(p, 2) })
	c.read(p, 1)
	reader.Wait()
	exit, err := p.Wait(context.WithoutCancel(ctx))
	if !stop() {
		<-cancelled
	}
	c.ending.Wait()
	if c.why != nil {
		err = c.why
	} else if err == nil {
		err = c.err
	}
	return Result{
		Started: true, ExitCode: exit.Code, Ending: exit.Ending, Usage: exit.Usage,
		Stdout: c.parts[1].bytes(), Stderr: c.parts[2].bytes(),
		StdoutTruncated: c.parts[1].cut, StderrTruncated: c.parts[2].cut,
		StdoutTotal: c.parts[1].total, StderrTotal: c.parts[2].total, Duration: time.Since(began),
	}, err
}

// collector gathers both streams under one limit.
type collector struct {
	limit int64
	kill  func()
	// ending is waited for once no more can be added to it.
	ending sync.WaitGroup

	// mu guards the fields below it.
	mu    sync.Mutex
	held  int64
	parts [3]part
	// why is the first reason to end the command.
	why error
	// err is our own mistake, if there was one.
	err error
}

// end has the command killed, once, and does not wait.
func (c *collector) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(why)
}

func (c *collector) endLocked(why error) {
	if c.why != nil {
		return
	}
	c.why = why
	c.ending.Go(c.kill)
}

func tooMuch() error {
	return &errdefs.Error{Code: errdefs.OutputLimit, Op: "run", Msg: "the command wrote more than its output limit"}
}

// read collects one stream. It ends with the stream, which ends with the main
// process, so it needs no context.
func (c *collector) read(p *Process, i int) {
	var err error
	defer func() {
		if err != nil && err != io.EOF {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}()
	defer errdefs.Recover(&err)
	part := &c.parts[i]
	part.memory, part.limit = p.memory, c.limit
	for {
		var data []byte
		if data, err = p.streams[i].read(context.Background(), c.most(part), part.room); err != nil {
			return
		}
		c.add(part, data)
	}
}

// most is how much a read may bring: one byte over the limit tells that there is more.
func (c *collector) most(part *part) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit <= 0 || part.cut {
		return wide
	}
	return int(min(wide, c.limit-c.held+1))
}

// add counts data, which lies in the part's room.
func (c *collector) add(part *part, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	part.total += int64(len(data))
	if !part.cut {
		fits := len(data)
		if c.limit > 0 {
			fits = int(min(int64(fits), c.limit-c.held))
		}
		part.head = part.head[:len(part.head)+fits]
		c.held += int64(fits)
		if data = data[fits:]; len(data) == 0 {
			return
		}
		part.split()
	}
	part.roll(data)
	c.endLocked(tooMuch())
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

// part is what is kept of one stream; its reader alone touches it. Once cut, head
// keeps the first half of what was held by then, and tail the last bytes, as many as
// the other half had.
type part struct {
	memory Memory
	// limit is the collector's, more than which is no use. Zero means none.
	limit int64
	total int64
	// block is what memory gave; head and tail lie in it.
	block []byte
	head  []byte
	cut   bool
	// tail is a ring that begins at start.
	tail  []byte
	start int
}

// room returns place for n bytes right behind head, or once cut anywhere.
func (p *part) room(n int) []byte {
	if p.cut {
		return make([]byte, n)
	}
	end := len(p.head) + n
	if end > len(p.block) {
		double := 2 * len(p.block)
		if p.limit > 0 {
			double = int(min(int64(double), p.limit))
		}
		p.block = p.memory.resize(p.block, max(end, double))
		p.head = p.block[:len(p.head)]
	}
	return p.block[len(p.head):end]
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

// bytes returns what was kept, in memory. At the cut stands a line of its own, so that the
// bytes on its two sides cannot be taken for one character, number or line.
func (p *part) bytes() []byte {
	if !p.cut {
		return p.memory.resize(p.block, len(p.head))
	}
	head := p.head[:len(p.head)-brokenEnd(p.head)]
	tail := slices.Concat(p.tail[p.start:], p.tail[:p.start])
	tail = tail[brokenStart(tail):]
	newline := ""
	if len(head) > 0 && head[len(head)-1] != '\n' {
		newline = "\n"
	}
	line := fmt.Sprintf("%s[... %d bytes left out ...]\n", newline, p.total-int64(len(head)+len(tail)))
	captured := slices.Concat(head, []byte(line), tail)
	p.block = p.memory.resize(p.block, len(captured))
	copy(p.block, captured)
	return p.block
}

// brokenEnd returns how many bytes at the end of data begin a character whose
// rest is missing.
func brokenEnd(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if last := data[len(data)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}

// brokenStart returns how many bytes at the start of data end a character whose
// beginning is missing.
func brokenStart(data []byte) (n int) {
	for n < len(data) && n < utf8.UTFMax-1 && !utf8.RuneStart(data[n]) {
		n++
	}
	return n
}
