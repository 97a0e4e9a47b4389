package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// Command is what a generation is to start.
type Command struct {
	// Argv is the argument vector; Argv[0] is an absolute path inside the sandbox.
	Argv []string
	// Env is the whole environment as NAME=value.
	Env []string
	// Dir is the working directory, absolute inside the sandbox.
	Dir string
	// Network is the command's network. Empty means wire.NetworkShared.
	Network wire.Network
	// Stdin asks for a writable standard input; otherwise it is at end of file.
	Stdin bool
	// Script is what the program can read from descriptor wire.ScriptFD, which it
	// has to close before it starts another. Empty gives it no such descriptor.
	Script string
	// Columns and Rows give the command a terminal of that size, each at most 65535,
	// instead of streams: what it writes is read as stdout, stdin is the keyboard, and
	// stderr is at its end. Zero means none.
	Columns, Rows int
	// Memory is where Read and Collect put the output. Nil means Go's own.
	Memory Memory
}

// Exit is how a main process ended.
type Exit struct {
	// Code is its exit code, 128+n after death by signal n.
	Code int
	// Ending says what ended it.
	Ending Ending
	// Usage is what it took.
	Usage Usage
}

// Ending says what ended a main process.
type Ending int

const (
	// Exited is the end by itself, or by something else in the sandbox.
	Exited Ending = iota
	// Killed is the end after a Kill.
	Killed
	// Lost is the end of the whole sandbox, unless a Kill came before.
	Lost
)

// Usage is what a main process and all that it waited for took, as the kernel
// counts. The zero value says that this is not known.
type Usage struct {
	// CPU is user and system time.
	CPU time.Duration
	// MaxRSS is how many bytes the largest of them had resident, and never less
	// than the few MB that init has, which forks it.
	MaxRSS int64
}

// killedCode is the exit code of what SIGKILL ended.
const killedCode = 128 + int(syscall.SIGKILL)

// Process is a command that was started. Its methods may be called at the same
// time, but only one Read per stream.
type Process struct {
	generation *Generation
	id         uint64
	pid        int
	memory     Memory
	// streams has stdout and stderr at 1 and 2.
	streams [3]*stream
	stdin   *input
	// over is closed once exit and err are set.
	over chan struct{}
	exit Exit
	err  error
	// ended is closed once the tree is gone after a kill, or the generation is.
	ended chan struct{}
	// killAnswer has how many processes a kill left.
	killAnswer chan int

	// mu guards the fields below it.
	mu    sync.Mutex
	state processState
	// killed is set once a Kill was sent to init, killTold once it has answered, and
	// killedFirst when the end of the sandbox had not begun when it was sent.
	killed, killTold, killedFirst bool
}

// newProcess is what came of a Started. It takes over the descriptors: stdout,
// stderr and, if asked for, stdin; of a terminal its output and its input.
func newProcess(g *Generation, m wire.Message, fds []int, cmd Command) (*Process, error) {
	defer closeAll(fds)
	terminal := cmd.Columns > 0
	want := 2
	if cmd.Stdin && !terminal {
		want = 3
	}
	if len(fds) != want || m.Pid <= 1 {
		return nil, errors.New("it starts a command without what belongs to one")
	}
	p := &Process{
		generation: g, id: m.ID, pid: m.Pid, memory: cmd.Memory, state: processStarting,
		stdin: &input{turn: make(chan struct{}, 1), terminal: terminal},
		over:  make(chan struct{}), ended: make(chan struct{}), killAnswer: make(chan int, 1),
	}
	if err := p.adopt(fds); err != nil {
		p.Release()
		return nil, err
	}
	p.state, _ = p.state.next(eventStarted)
	return p, nil
}

// adopt makes the streams of init's descriptors, which stay the caller's.
func (p *Process) adopt(fds []int) (err error) {
	var files [4]*os.File // at 1 and 2 the output, at 3 the input
	if p.stdin.terminal {
		if files[1], err = ownTerminal(fds[0]); err == nil {
			files[3], err = ownTerminal(fds[1])
		}
	} else {
		for i, fd := range fds {
			mode := unix.O_RDONLY
			if i == 2 {
				mode = unix.O_WRONLY
			}
			if files[i+1], err = ownPipe(fd, mode); err != nil {
				break
			}
		}
	}
	for i := 1; i <= 2; i++ {
		p.streams[i] = newStream(files[i], func() {
			p.generation.conn.Send(wire.Message{Kind: wire.KindDiscard, ID: p.id, Stream: i})
		})
	}
	p.stdin.file = files[3]
	return err
}

// ownPipe opens the pipe behind a descriptor of init's anew. What it sent shares
// the file's flags with descriptors that it keeps, and with O_NONBLOCK taken away
// a read would hold a thread, whatever deadline is set. Nothing but a pipe is
// opened: of a device or a file it would not be known what that does. Nil without
// an error is a stdin that nobody reads any more.
func ownPipe(fd, mode int) (*os.File, error) {
	if !is(fd, unix.S_IFIFO, mode) {
		return nil, errors.New("it passes a stream that is no pipe")
	}
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENXIO {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take over a stream: %w", err)
	}
	return os.NewFile(uintptr(own), "stream"), nil
}

// ownTerminal takes over our side of a terminal. It cannot be opened anew, which
// would make another: here init could hold a read until the sandbox's end.
func ownTerminal(fd int) (*os.File, error) {
	var st unix.Stat_t
	if !is(fd, unix.S_IFCHR, unix.O_RDWR) || unix.Fstat(fd, &st) != nil || st.Rdev != unix.Mkdev(5, 2) { // ptmx
		return nil, errors.New("it passes a terminal that is none")
	}
	own, err := linux.Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("take over a terminal: %w", err)
	}
	return pollable(own, "terminal"), nil
}

// is tells whether fd is open for exactly that, and what kind of file it is.
func is(fd int, kind uint32, mode int) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&(unix.O_ACCMODE|unix.O_PATH) == mode && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == kind
}

// pollable makes a file that the runtime's poller waits for, so that a wait
// takes no thread and has a deadline.
func pollable(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// Spawn starts a command. The context bounds the start only; ended before, it
// starts nothing, and ended meanwhile it kills what has started.
//
// Errors: ENOENT, ENOTDIR, EACCES for the working directory; Unavailable when
// the program is not there; Busy when the sandbox has no room for another
// process; InvalidArgument, Aborted, Closed.
func (g *Generation) Spawn(ctx context.Context, cmd Command) (*Process, error) {
	if ctx.Err() != nil {
		return nil, aborted(ctx, "spawn")
	}
	if err := cmd.validate(); err != nil {
		return nil, err
	}
	if cmd.Network == "" {
		cmd.Network = wire.NetworkShared
	}
	var fds []int
	if cmd.Script != "" {
		fd, err := wire.SealedMemfd("script", []byte(cmd.Script))
		if err != nil {
			return nil, &errdefs.Error{Code: errdefs.Busy, Op: "spawn", Err: err}
		}
		fds = append(fds, fd)
	}
	asked := &spawning{cmd, make(chan outcome, 1)}
	if err := g.ask(wire.Message{Kind: wire.KindSpawn, Spawn: &wire.Spawn{
		Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir, Network: cmd.Network, Stdin: cmd.Stdin,
		Columns: cmd.Columns, Rows: cmd.Rows,
	}}, &request{spawn: asked}, fds...); err != nil {
		return nil, err
	}
	select {
	case o, ok := <-asked.outcome:
		return g.started(cmd, o, ok)
	case <-ctx.Done():
	}
	// Not given up: what may start now has to be ended, and the caller is to
	// find nothing running when it hears of the abort. Starting takes about a
	// millisecond, and the end of the generation ends this wait too.
	if o := <-asked.outcome; o.process != nil {
		o.process.Release()
		_ = o.process.Kill(context.WithoutCancel(ctx))
	}
	return nil, aborted(ctx, "spawn")
}

func (g *Generation) started(cmd Command, o outcome, ok bool) (*Process, error) {
	switch {
	case !ok:
		return nil, g.ended("spawn")
	case o.process == nil:
		return nil, spawnError(cmd, o.refusal)
	}
	return o.process, nil
}

// maxString is the kernel's limit for one argument or one NAME=value string
// (MAX_ARG_STRLEN, 32 pages), its terminating NUL included.
const maxString = 128 << 10

func (c Command) validate() error {
	if len(c.Argv) == 0 || !strings.HasPrefix(c.Argv[0], "/") {
		return errdefs.Invalid("command", "a command needs the absolute path of a program")
	}
	if !strings.HasPrefix(c.Dir, "/") || strings.ContainsRune(c.Dir, 0) {
		return errdefs.Invalid("workingDirectory", fmt.Sprintf("%q is not an absolute path", c.Dir))
	}
	if slices.ContainsFunc(c.Argv, unfit) {
		return errdefs.Invalid("command", fmt.Sprintf("an argument has a NUL byte, or %d bytes or more", maxString))
	}
	for _, v := range c.Env {
		name, _, found := strings.Cut(v, "=")
		if !found || name == "" || strings.ContainsRune(name, 0) {
			return errdefs.Invalid("env", fmt.Sprintf("%q is not a variable name", name))
		}
		if unfit(v) {
			return errdefs.Invalid("env."+name, fmt.Sprintf("the value has a NUL byte, or name and value have %d bytes or more", maxString-1))
		}
	}
	return nil
}

func unfit(s string) bool { return len(s) >= maxString || strings.ContainsRune(s, 0) }

// spawnError tells why init could not start a command.
func spawnError(cmd Command, m wire.Message) error {
	errno := syscall.Errno(m.Errno)
	if m.Stage == wire.StageChdir {
		return errdefs.File("workingDirectory", cmd.Dir, errno)
	}
	if m.Stage == wire.StageTerminal && errno == unix.ENOENT {
		return errdefs.New(errdefs.Unsupported, "pty", "this host gives a sandbox no terminals")
	}
	fail := &errdefs.Error{Code: errdefs.Internal, Op: "spawn", Err: fmt.Errorf("start command (%s): %w", m.Stage, errno)}
	switch errno {
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOSPC:
		fail.Code, fail.Msg = errdefs.Busy, "the sandbox has no room for another process: "+errno.Error()
	case unix.E2BIG:
		fail.Code, fail.Op, fail.Msg = errdefs.InvalidArgument, "env", "command and environment together are larger than the kernel takes"
	case unix.ENOENT, unix.EACCES, unix.ENOEXEC, unix.ENOTDIR:
		if m.Stage == wire.StageExec {
			fail.Code, fail.Path, fail.Msg = errdefs.Unavailable, cmd.Argv[0], "cannot be run in the sandbox: "+errno.Error()
			fail.Remedy = "install bash where the sandbox shows it, such as /usr/bin, and see that hidePaths leaves it in view"
		}
	}
	return fail
}

// Pid is the main process's id inside the sandbox.
func (p *Process) Pid() int { return p.pid }

// Read waits for output of a stream, 1 or 2, and returns at most limit bytes of
// it, or io.EOF at its end. What was read is never lost: a context that ends
// while there is something leaves it to the next Read. After the main process
// has exited a stream ends as soon as it is empty, even while a background
// child still holds it; that child does not notice.
//
// Errors: Aborted, Busy while another Read of the stream is under way, OutputLimit
// after KeepUnread.
func (p *Process) Read(ctx context.Context, stream, limit int) ([]byte, error) {
	if stream != 1 && stream != 2 {
		return nil, errdefs.Invalid("stream", "must be 1 or 2")
	}
	var block []byte
	data, err := p.streams[stream].read(ctx, limit, func(n int) []byte {
		block = p.memory.resize(block, n)
		return block
	})
	if len(data) == 0 {
		p.memory.resize(block, 0)
		return nil, err
	}
	return block[:len(data)], err
}

// Discard gives up a stream: what the command still writes there is thrown
// away, and the command does not notice. A Read under way ends with io.EOF.
func (p *Process) Discard(stream int) {
	if stream == 1 || stream == 2 {
		p.streams[stream].forsake()
	}
}

// KeepUnread has the output of streams that nobody has begun to read kept, up to 4 MiB
// of each, so that the command need not wait for a reader. If there is more and nobody
// comes within two seconds, the rest is thrown away, and the last Read of the stream says so with OutputLimit.
func (p *Process) KeepUnread() {
	p.streams[1].keep()
	p.streams[2].keep()
}

// Write writes to the command's standard input and waits until it has taken
// everything; a context that ends meanwhile leaves a part written.
//
// Errors: Aborted; EPIPE once nobody reads, after CloseStdin, or when the stdin
// was not asked for.
func (p *Process) Write(ctx context.Context, data []byte) error { return p.stdin.write(ctx, data) }

// CloseStdin ends the command's standard input, and a Write under way. To a
// terminal it is the key that means so, Ctrl-D. Closing twice is a no-op.
func (p *Process) CloseStdin() error { return p.stdin.close() }

// Resize changes the size of the command's terminal, and has the command told with
// SIGWINCH. Errors: Unsupported without a terminal; Closed once the process was given up.
func (p *Process) Resize(columns, rows int) error { return p.stdin.resize(columns, rows) }

// Wait waits for the main process. The context bounds the waiting only. A
// process whose sandbox we stopped was killed; one whose sandbox ended by
// itself has no exit code, but an Internal error.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.over:
		return p.exit, p.err
	default:
	}
	select {
	case <-p.over:
		return p.exit, p.err
	case <-ctx.Done():
		return Exit{}, aborted(ctx, "wait")
	}
}

// Kill ends everything the command has started and returns when it is gone. If
// that cannot be had, the whole generation is ended. Once the main process has
// exited, Kill is a no-op and what runs in the background goes on. The context
// bounds the waiting; the end itself is carried through.
func (p *Process) Kill(ctx context.Context) error {
	over := p.generation.over()
	p.mu.Lock()
	before := p.state
	p.state, _ = before.next(eventKill)
	first := before == processRunning
	p.killed = p.killed || first
	p.killedFirst = p.killedFirst || first && !over
	killed := p.killed
	p.mu.Unlock()
	if !killed {
		return nil
	}
	if first {
		p.generation.conn.Send(wire.Message{Kind: wire.KindKill, ID: p.id})
		go p.carryOutKill()
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return aborted(ctx, "kill")
	}
}

// carryOutKill waits for init's answer to a Kill, and ends the generation when
// that is not what it should be.
func (p *Process) carryOutKill() {
	timer := time.NewTimer(killPatience)
	defer timer.Stop()
	select {
	case left := <-p.killAnswer:
		if left > 0 {
			break
		}
		p.treeGone()
		// An exit is still to come of it; it also comes when the generation ends.
		select {
		case <-p.over:
		case <-timer.C:
			p.generation.condemn()
		}
		return
	case <-timer.C:
	case <-p.generation.done:
	}
	p.generation.condemn()
	<-p.generation.done
	p.treeGone()
}

// treeGone releases those who wait for a kill.
func (p *Process) treeGone() {
	close(p.ended)
	p.settle()
}

// settle lets the generation forget the process once no message of init can
// come for it any more.
func (p *Process) settle() {
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if killed && !closed(p.ended) || !closed(p.over) {
		return
	}
	p.generation.forget(p.id)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answered is init's word that the tree is gone but for so many processes.
func (p *Process) answered(left int) error {
	p.mu.Lock()
	asked := p.killed && !p.killTold
	p.killTold = true
	p.mu.Unlock()
	if !asked || left < 0 {
		return errors.New("it tells of a kill that nobody asked for")
	}
	p.killAnswer <- left
	return nil
}

// exited is init's word that the main process has ended.
func (p *Process) exited(m wire.Message) error {
	ws := syscall.WaitStatus(m.Status)
	exit := Exit{Code: ws.ExitStatus(), Usage: Usage{
		CPU: time.Duration(m.CPUMicros) * time.Microsecond, MaxRSS: int64(m.MaxRSS),
	}}
	if ws.Signaled() {
		exit.Code = 128 + int(ws.Signal())
	}
	const centuries = 1 << 52 // in microseconds, and still fits a Duration
	if exit.Code < 0 || m.CPUMicros < 0 || m.CPUMicros > centuries || m.MaxRSS < 0 {
		return errors.New("it tells an exit that is none")
	}
	if !p.finish(eventExited, exit, nil) {
		return errors.New("it tells an exit twice")
	}
	p.settle()
	return nil
}

// lost ends a process whose generation has ended.
func (p *Process) lost(stopped bool, err error) {
	if stopped {
		err = nil
	}
	p.finish(eventLost, Exit{Code: killedCode, Ending: Lost}, err)
}

// finish reports whether the event was one that may happen.
func (p *Process) finish(e processEvent, exit Exit, err error) bool {
	p.mu.Lock()
	before := p.state
	after, ok := before.next(e)
	p.state = after
	if p.killedFirst {
		exit.Ending = Killed
	}
	p.mu.Unlock()
	if !ok || before == processExited {
		return ok
	}
	p.exit, p.err = exit, err
	close(p.over)
	now := time.Now()
	p.streams[1].exited(now)
	p.streams[2].exited(now)
	return true
}

// Release gives the process up: it goes on, its output is discarded, and its
// stdin ends.
func (p *Process) Release() {
	_ = p.stdin.close()
	_ = p.stdin.giveUp()
	for _, s := range p.streams {
		if s != nil {
			s.forsake()
		}
	}
}

// input is the writing end of a command's stdin.
type input struct {
	// turn is held by the one who writes.
	turn chan struct{}
	// terminal is that file is one, which has a size also when nothing is typed any more.
	terminal bool

	// mu guards the fields below it.
	mu sync.Mutex
	// file is nil once closed, and when no stdin was asked for; a terminal once given up.
	file *os.File
	// ended is set once nothing more may be typed into a terminal.
	ended bool
}

func (in *input) current() *os.File {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return nil
	}
	return in.file
}

func (in *input) write(ctx context.Context, data []byte) error {
	if ctx.Err() != nil {
		return aborted(ctx, "write")
	}
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-ctx.Done():
		return aborted(ctx, "write")
	}
	file := in.current()
	if file == nil {
		return errdefs.File("write", "", unix.EPIPE)
	}
	// The deadline is this write's alone while it has its turn; a callback that
	// comes late has to be over before the next one's begins.
	_ = file.SetWriteDeadline(time.Time{})
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = file.SetWriteDeadline(longAgo)
	})
	_, err := file.Write(data)
	if !stop() {
		<-woken
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return aborted(ctx, "write")
	case errors.Is(err, os.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EIO) && in.terminal:
		return errdefs.File("write", "", unix.EPIPE)
	default:
		return errdefs.File("write", "", err)
	}
}

func (in *input) close() error {
	if in.terminal {
		in.typeEnd()
		return nil
	}
	return in.giveUp()
}

// typeEnd types Ctrl-D, once. Where the command has left more unread than its
// terminal holds, there is no room for it.
func (in *input) typeEnd() {
	const ctrlD = "\x04"
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || in.file == nil {
		return
	}
	in.ended = true
	_ = in.file.SetWriteDeadline(longAgo) // for a write under way
	_ = linux.Hold(in.file, func(fd int) error {
		_, err := unix.Write(fd, []byte(ctrlD))
		return err
	})
}

func (in *input) resize(columns, rows int) error {
	if !in.terminal {
		return errdefs.New(errdefs.Unsupported, "resize", "the command was spawned without a terminal")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.file == nil {
		return errdefs.New(errdefs.Closed, "resize", "the process was given up")
	}
	return errdefs.File("resize", "", linux.Hold(in.file, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	}))
}

// giveUp closes the file.
func (in *input) giveUp() error {
	in.mu.Lock()
	file := in.file
	in.file = nil
	in.mu.Unlock()
	if file == nil {
		return nil
	}
	return file.Close()
}
