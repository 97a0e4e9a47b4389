package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

const (
	// defaultHelloTimeout is for a host under a load of hundreds; 10 s were seen
	// to be too few there. Without load a start takes 10 ms.
	defaultHelloTimeout = 30 * time.Second
	// slowMount is added to that for each hidden path: bwrap reads the whole
	// list of mounts anew for each mount, which takes seconds for a thousand.
	slowMount = 20 * time.Millisecond
	// stopGrace is what init gets to end everything by itself; then the kernel does.
	stopGrace = 2 * time.Second
	// killPatience is more than init itself takes before it reports what is left.
	killPatience = 8 * time.Second
	// defaultAnswerTimeout is as much as a start may take, and for the same reason.
	defaultAnswerTimeout = 30 * time.Second
)

// The descriptors of bwrap, and of init until it closes all but wire.ControlFD.
const (
	argsFD  = wire.ControlFD + 1
	imageFD = wire.ControlFD + 2
	// directoriesFD is the first of the directories', which the files' follow.
	directoriesFD = wire.ControlFD + 3
)

// Config is what a generation is started with. All files stay the caller's and
// may be closed once Start has returned.
type Config struct {
	// Launcher forks. Nil means Default.
	Launcher *Launcher
	// Bwrap is the program, as FindBwrap returned it.
	Bwrap Bwrap
	// Spec says what the sandbox shows. Start sets its descriptor numbers.
	Spec bwrap.Spec
	// Workspace is the session's directory; where bwrap takes no descriptors,
	// Spec.Workspace.Path is mounted. Nil mounts that path, or nothing if that is empty too.
	Workspace *os.File
	// Home is the directory of a home beside the workspace, likewise with
	// Spec.Home.Path. Nil means the same as of Workspace.
	Home *os.File
	// Image is the init program, see package image.
	Image *os.File
	// HelloTimeout bounds the start. Zero means 30 s, and more the more is hidden.
	HelloTimeout time.Duration
	// AnswerTimeout bounds how long init may take to start a command or an opener;
	// one that takes longer is taken for dead, and the generation ends. Zero means 30 s.
	AnswerTimeout time.Duration
}

// Generation is one live sandbox. Its methods may be called at the same time.
type Generation struct {
	child  *Child
	conn   *wire.Conn
	shell  string
	user   string
	opener Opener
	hello  chan error
	done   chan struct{}
	// patience is Config.AnswerTimeout.
	patience time.Duration
	// quieted holds a value once init has said that nothing runs any more.
	quieted chan struct{}

	// mu guards the fields below it.
	mu sync.Mutex
	// init is process 1 itself, nil where the kernel would not tell who it is.
	// That bwrap's end takes init with it is the second line only.
	init    *os.File
	state   generationState
	stopped bool // by us, not by itself
	// broken is why we ended it when it was not asked for, nil if it ended by itself.
	broken    error
	lastID    uint64
	pending   map[uint64]*request
	processes map[uint64]*Process
	// busy is set from init's word that something runs to its word that nothing does.
	busy bool
}

// request is a message to init that waits for its answer, which is handed to
// whichever of these is set.
type request struct {
	spawn  *spawning
	opener *openerLine
	// census has room for one answer, and is closed when the generation ends.
	census chan wire.Message
	// expiry ends the generation when no answer comes.
	expiry *time.Timer
}

// spawning is a Spawn under way. The channel gets one outcome, or is closed
// without when the generation ends.
type spawning struct {
	command Command
	outcome chan outcome
}

// outcome is what came of a Spawn: a process, or init's refusal.
type outcome struct {
	process *Process
	refusal wire.Message
}

// ErrExited is the cause of an Unavailable when bwrap or init gave up.
var ErrExited = errors.New("bwrap exited")

// Start starts a sandbox and returns once its init has spoken: all mounts are
// made by then.
//
// Errors: Unavailable when the host cannot build it, with what bwrap wrote as
// Detail and a Remedy; Aborted when ctx ends first. Nothing is left then.
func Start(ctx context.Context, cfg Config) (*Generation, error) {
	if ctx.Err() != nil {
		return nil, aborted(ctx, "start")
	}
	if cfg.Launcher == nil {
		cfg.Launcher = Default()
	}
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = defaultHelloTimeout + slowMount*time.Duration(len(cfg.Spec.Host.Hidden))
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = defaultAnswerTimeout
	}
	g, stderr, err := launch(cfg)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(cfg.HelloTimeout)
	defer timer.Stop()
	var cause error
	select {
	case cause = <-g.hello:
		if cause == nil {
			g.watchInit()
			return g, nil
		}
		cause = fmt.Errorf("%w: %w", ErrExited, cause)
	case <-g.child.Done():
		cause = ErrExited
		select {
		case spoken := <-g.hello: // said before the end
			if spoken != nil {
				cause = fmt.Errorf("%w: %w", ErrExited, spoken)
			}
		default:
		}
	case <-timer.C:
		cause = fmt.Errorf("no sign of life within %v", cfg.HelloTimeout)
	case <-ctx.Done():
		cause = aborted(ctx, "start")
	}
	g.abandon()
	if known := (*errdefs.Error)(nil); errors.As(cause, &known) {
		return nil, known
	}
	return nil, diagnose(cfg, stderr.text(), cause)
}

// launch starts bwrap and the goroutines that attend to it.
func launch(cfg Config) (*Generation, *capture, error) {
	spec := cfg.Spec
	spec.FirstFD = directoriesFD
	number := func(dir *os.File) int {
		if dir == nil {
			return 0
		}
		spec.FirstFD++
		return spec.FirstFD - 1
	}
	spec.Workspace.FD = number(cfg.Workspace)
	spec.Home.FD = number(cfg.Home)
	args, err := bwrap.Plan(spec, cfg.Bwrap.Features)
	if errdefs.CodeOf(err) == errdefs.Unavailable {
		return nil, nil, setupFailed(facts(cfg), err)
	}
	if err != nil {
		return nil, nil, err
	}
	k := &kit{}
	defer k.close()
	control, stderr, err := k.fill(cfg, args)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare sandbox: %w", err)
	}
	child, err := cfg.Launcher.Start(Exec{
		Path: cfg.Bwrap.Path,
		// No path and no option: everybody on the host can read this.
		Argv:  []string{"bwrap", "--args", strconv.Itoa(argsFD), "--", "/proc/self/fd/" + strconv.Itoa(imageFD)},
		Env:   bwrapEnvironment(),
		Dir:   "/",
		Files: k.files,
	})
	if err != nil {
		_ = unix.Close(control)
		_ = stderr.Close()
		return nil, nil, startFailed(cfg, err)
	}
	conn, err := wire.NewConn(control)
	if err != nil {
		_ = child.Kill()
		_ = stderr.Close()
		return nil, nil, fmt.Errorf("prepare sandbox: %w", err)
	}
	g := &Generation{
		child: child, conn: conn, shell: cfg.Spec.Host.Shell, user: cfg.Spec.Identity.User(),
		hello: make(chan error, 1), done: make(chan struct{}), patience: cfg.AnswerTimeout, quieted: make(chan struct{}, 1),
		pending: map[uint64]*request{}, processes: map[uint64]*Process{},
	}
	g.opener.g = g
	captured := newCapture(stderr)
	go g.serve()
	go func() {
		// Should someone else hold the socket's other end, we would wait for ever.
		<-child.Done()
		_ = conn.Close()
	}()
	return g, captured, nil
}

// Shell is the path of bash inside the sandbox.
func (g *Generation) Shell() string { return g.shell }

// User is the name of whom commands run as, inside the sandbox.
func (g *Generation) User() string { return g.user }

// Done is closed once nothing of the sandbox is left, whoever ended it.
func (g *Generation) Done() <-chan struct{} { return g.done }

// Opener resolves paths inside the sandbox.
func (g *Generation) Opener() *Opener { return &g.opener }

// Stop ends the sandbox with everything in it and returns when nothing is left.
// The context bounds the waiting; the end itself, once begun, is carried
// through. Stopping again, or at the same time, is a wait for the same end.
func (g *Generation) Stop(ctx context.Context) error {
	g.condemn()
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return aborted(ctx, "stop")
	}
}

// condemn begins the end. init takes the end of its socket for the order to
// kill everything and go.
func (g *Generation) condemn() {
	g.mu.Lock()
	if g.state != generationEnded {
		g.stopped = true
	}
	g.state, _ = g.state.next(eventStop)
	g.mu.Unlock()
	_ = g.conn.Close()
}

// abandon ends a sandbox that never came up. Not by killing bwrap, while that may
// still get there: its child waits for its leave to go on, and whoever kills bwrap
// before leaves a process that waits for ever and has nobody to end it.
func (g *Generation) abandon() {
	g.condemn()
	<-g.done
}

// serve receives until init has gone, and then sees to the rest.
func (g *Generation) serve() {
	err := g.receive()
	select {
	case g.hello <- err:
	default:
	}
	_ = g.conn.Close()
	g.finish()
}

// receive returns why it ended.
func (g *Generation) receive() (err error) {
	defer errdefs.Recover(&err)
	if err := g.greet(); err != nil {
		return err
	}
	for {
		m, fds, err := g.conn.Recv()
		if err == nil {
			err = g.dispatch(m, fds)
		}
		if errors.Is(err, io.EOF) {
			return err // it has gone, or we have
		}
		if err != nil {
			g.breakOff(err)
			return err
		}
	}
}

// greet waits for init's first words.
func (g *Generation) greet() error {
	m, fds, err := g.conn.Recv()
	if err != nil {
		return fmt.Errorf("no word from init: %w", err)
	}
	closeAll(fds)
	if m.Kind != wire.KindHello || m.Version != wire.Version {
		return &errdefs.Error{
			Code: errdefs.Internal, Op: "start",
			Msg:    fmt.Sprintf("init speaks version %d of the protocol, not %d", m.Version, wire.Version),
			Remedy: "reinstall the package: its parts come from different builds",
		}
	}
	g.mu.Lock()
	g.state, _ = g.state.next(eventHello)
	g.mu.Unlock()
	g.hello <- nil
	return nil
}

// dispatch handles a message in the order of arrival: a Started is known before
// its Exited is looked at. It owns the descriptors.
//
// What answers no request of ours, or says what cannot be, is an error and ends
// the generation. An init that was taken over can so make us do no more than we
// have asked for, and say nothing that its own would not have said.
func (g *Generation) dispatch(m wire.Message, fds []int) error {
	switch m.Kind {
	case wire.KindStarted, wire.KindFailed, wire.KindOpener, wire.KindCensus:
		return g.answer(m, fds)
	case wire.KindQuiet:
		closeAll(fds)
		return g.fallenQuiet()
	case wire.KindExited, wire.KindKilled:
		closeAll(fds)
		p := g.process(m.ID)
		if p == nil {
			return errors.New("it tells the end of a command that does not run")
		}
		if m.Kind == wire.KindKilled {
			return p.answered(m.Left)
		}
		return p.exited(m)
	default:
		closeAll(fds)
		return errors.New("it sends what is not for us")
	}
}

// answer hands an answer to the request it is for, which waits on if this is none.
func (g *Generation) answer(m wire.Message, fds []int) error {
	g.mu.Lock()
	r := g.pending[m.ID]
	g.mu.Unlock()
	if r == nil {
		closeAll(fds)
		return errors.New("it answers what nobody asked")
	}
	refused := m.Kind == wire.KindFailed
	if refused && (m.Errno <= 0 || !m.Stage.Known()) {
		closeAll(fds)
		return errors.New("it refuses without a reason")
	}
	var p *Process
	switch {
	case r.spawn != nil && m.Kind == wire.KindStarted:
		var err error
		if p, err = newProcess(g, m, fds, r.spawn.command); err != nil {
			return err
		}
	case refused && len(fds) == 0:
	case r.opener != nil && m.Kind == wire.KindOpener && len(fds) == 0:
	case r.census != nil && m.Kind == wire.KindCensus && len(fds) == 0 && m.Left >= 0 && m.QuietMs >= 0:
	default:
		closeAll(fds)
		return errors.New("it answers something else than was asked")
	}
	r.expiry.Stop()
	g.mu.Lock()
	delete(g.pending, m.ID)
	if p != nil {
		g.processes[m.ID] = p
	}
	g.busy = g.busy || r.census != nil && m.Left > 0
	g.mu.Unlock()
	switch {
	case r.spawn != nil:
		r.spawn.outcome <- outcome{p, m}
	case r.opener != nil:
		r.opener.begun(m)
	default:
		r.census <- m
	}
	return nil
}

// breakOff ends a generation whose init does not do what init does.
func (g *Generation) breakOff(why error) {
	g.mu.Lock()
	if g.state == generationLive && g.broken == nil {
		g.broken = why
	}
	g.mu.Unlock()
	_ = g.conn.Close()
}

func (g *Generation) process(id uint64) *Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.processes[id]
}

// forget drops a process of which no message will come.
func (g *Generation) forget(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.processes, id)
}

// finish sees to it that bwrap and init are gone, and ends the generation.
func (g *Generation) finish() {
	defer close(g.done)
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-g.child.Done():
	case <-timer.C:
		g.watchInit() // of a start that hangs nobody knows yet who it is
	}
	g.killInit()
	_ = g.child.Kill()
	<-g.child.Done()

	g.mu.Lock()
	g.state, _ = g.state.next(eventGone)
	err := g.endedLocked("run")
	stopped := g.stopped
	pending, processes := g.pending, g.processes
	g.pending, g.processes = nil, nil
	g.mu.Unlock()
	g.killInit() // found only now
	for _, r := range pending {
		r.expiry.Stop()
		switch {
		case r.spawn != nil:
			close(r.spawn.outcome)
		case r.opener != nil:
			r.opener.fail(err)
		default:
			close(r.census)
		}
	}
	for _, p := range processes {
		p.lost(stopped, err)
	}
	g.opener.close()
}

// killInit ends process 1, and with it all of the sandbox, and waits for that.
// It is a no-op when init has ended, as it has unless something went wrong.
func (g *Generation) killInit() {
	g.mu.Lock()
	init := g.init
	g.init = nil
	g.mu.Unlock()
	if init == nil {
		return
	}
	defer func() { _ = init.Close() }()
	raw, err := init.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) != nil {
			return
		}
		const moment = 1000 // ms; only a process stuck in the kernel takes longer
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, moment)
	})
}

// watchInit gets hold of process 1, to be sure of its end later.
func (g *Generation) watchInit() {
	init := initOf(g.child)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == generationEnded && init != nil {
		_ = init.Close()
		return
	}
	g.init = init
}

// initOf finds bwrap's one child.
func initOf(bwrap *Child) *os.File {
	name := fmt.Sprintf("/proc/%d/task/%d/children", bwrap.Pid, bwrap.Pid)
	children := func() string {
		data, err := os.ReadFile(name)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	list := children()
	pid, err := strconv.Atoi(list)
	if err != nil {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if children() != list {
		// Gone since: the number may have become somebody else's.
		_ = unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "init")
}

// over reports whether the sandbox has ended or is about to.
func (g *Generation) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state != generationLive
}

// ended returns the error of a call that comes when the sandbox has gone.
func (g *Generation) ended(op string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endedLocked(op)
}

func (g *Generation) endedLocked(op string) error {
	if g.stopped {
		return errdefs.New(errdefs.Closed, op, "the sandbox was stopped")
	}
	ended := errdefs.New(errdefs.Internal, op, "the sandbox ended unexpectedly")
	if g.broken != nil {
		ended.Msg = "the sandbox had to be ended, its init was not itself any more: " + g.broken.Error()
	}
	return ended
}

// ask sends a request to init, with descriptors that it takes over.
func (g *Generation) ask(m wire.Message, r *request, fds ...int) error {
	g.mu.Lock()
	if g.state != generationLive {
		defer g.mu.Unlock()
		closeAll(fds)
		return g.endedLocked(string(m.Kind))
	}
	g.lastID++
	m.ID = g.lastID
	g.pending[m.ID] = r
	r.expiry = time.AfterFunc(g.patience, func() {
		g.breakOff(fmt.Errorf("it gave no answer within %v", g.patience))
	})
	g.mu.Unlock()
	g.conn.Send(m, fds...)
	return nil
}

func aborted(ctx context.Context, op string) error { return errdefs.Abort(ctx, op, "") }

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
