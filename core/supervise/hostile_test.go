package supervise

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// peer is an init, and its opener, that was taken over. It does what those do,
// but for what was replaced.
type peer struct {
	conn *wire.Conn
	// hello comes before everything else.
	hello  func()
	spawn  func(m wire.Message)
	kill   func(m wire.Message)
	opener func(m wire.Message, socket int)
	census func(m wire.Message)
	// end comes once the supervisor has closed the socket.
	end func()
	// answer is the opener's, to the question that is the nth of all.
	answer func(n int, conn *wire.Conn, m wire.Message)

	// mu guards the field below it.
	mu        sync.Mutex
	questions int
}

// hostile is the program of a peer.
func hostile(scenario string) {
	conn, err := wire.NewConn(wire.ControlFD)
	if err != nil {
		return
	}
	p := &peer{conn: conn}
	p.hello = func() { p.send(wire.Message{Kind: wire.KindHello, Version: wire.Version}) }
	p.spawn = func(m wire.Message) { p.started(m.ID, p.streams(m.Spawn)...) }
	p.kill = func(m wire.Message) {
		p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID})
		p.send(wire.Message{Kind: wire.KindExited, ID: m.ID, Status: uint32(unix.SIGKILL)})
	}
	p.opener = func(m wire.Message, socket int) {
		p.send(wire.Message{Kind: wire.KindOpener, ID: m.ID, Pid: 2})
		p.serveOpener(socket)
	}
	p.census = func(m wire.Message) { p.send(wire.Message{Kind: wire.KindCensus, ID: m.ID}) }
	p.end = func() {}
	p.answer = func(_ int, conn *wire.Conn, m wire.Message) { properAnswer(conn, m) }
	for _, change := range []func(*peer){hostileInits[scenario].change, hostileOpeners[scenario].change, otherPeers[scenario]} {
		if change != nil {
			change(p)
		}
	}
	p.serve()
	p.end()
}

func (p *peer) serve() {
	p.hello()
	for {
		m, fds, err := p.conn.Recv()
		if err != nil {
			return
		}
		switch m.Kind {
		case wire.KindSpawn:
			p.spawn(m)
		case wire.KindKill:
			p.kill(m)
		case wire.KindOpener:
			p.opener(m, fds[0])
		case wire.KindCensus:
			p.census(m)
		}
	}
}

func (p *peer) serveOpener(socket int) {
	conn, err := wire.NewConn(socket)
	if err != nil {
		return
	}
	go func() {
		defer func() { _ = conn.Close() }()
		for {
			m, _, err := conn.Recv()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.questions++
			n := p.questions
			p.mu.Unlock()
			p.answer(n, conn, m)
		}
	}()
}

func properAnswer(conn *wire.Conn, m wire.Message) {
	if m.Kind == wire.KindOpen {
		conn.Send(wire.Message{Kind: wire.KindOpened, ID: m.ID}, opening("/etc/hosts", unix.O_RDONLY))
	} else {
		conn.Send(wire.Message{Kind: wire.KindOpened, ID: m.ID, Name: "x"}, opening("/", unix.O_RDONLY))
	}
}

func (p *peer) send(m wire.Message, fds ...int) { p.conn.Send(m, fds...) }

func (p *peer) started(id uint64, fds ...int) {
	p.send(wire.Message{Kind: wire.KindStarted, ID: id, Pid: 2}, fds...)
}

// packet sends what need not be a message.
func (p *peer) packet(content string, fds ...int) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_ = unix.Sendmsg(wire.ControlFD, []byte(content), rights, nil, 0)
}

// streams are what belongs to a command.
func (p *peer) streams(spawn *wire.Spawn) []int {
	if spawn.Columns > 0 {
		return []int{opening("/dev/ptmx", unix.O_RDWR), opening("/dev/ptmx", unix.O_RDWR)}
	}
	return p.pipes(spawn.Stdin)
}

// pipes are the supervisor's ends of a command's streams. The others stay open.
func (p *peer) pipes(stdin bool) []int {
	out, errs := pipeEnds(), pipeEnds()
	if !stdin {
		return []int{out[0], errs[0]}
	}
	return []int{out[0], errs[0], pipeEnds()[1]}
}

func pipeEnds() [2]int {
	var ends [2]int
	_ = unix.Pipe2(ends[:], unix.O_CLOEXEC)
	return ends
}

func opening(path string, flags int) int {
	fd, _ := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	return fd
}

// openSocket is one end of a socket; the other stays open.
func openSocket() int {
	fds, _ := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	return fds[0]
}

func memfd(size int64) int {
	fd, _ := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC)
	_ = unix.Ftruncate(fd, size)
	return fd
}

// instead has a peer answer a Spawn with what start gives.
func instead(start func(p *peer, m wire.Message)) func(p *peer) {
	return func(p *peer) { p.spawn = func(m wire.Message) { start(p, m) } }
}

// stdout has a peer start commands with that as their stdout.
func stdout(make func() int) func(p *peer) {
	return instead(func(p *peer, m wire.Message) {
		fds := p.streams(m.Spawn)
		if m.Spawn.Columns == 0 {
			fds[0] = make()
		}
		p.started(m.ID, fds...)
	})
}

// screen has a peer start commands with that as their terminal.
func screen(make func() int) func(p *peer) {
	return instead(func(p *peer, m wire.Message) {
		fds := p.streams(m.Spawn)
		if m.Spawn.Columns > 0 {
			fds[1] = make()
		}
		p.started(m.ID, fds...)
	})
}

// packets has a peer answer a Spawn with a packet.
func packets(content string, fds ...func() int) func(p *peer) {
	return instead(func(p *peer, _ wire.Message) {
		var got []int
		for _, make := range fds {
			got = append(got, make())
		}
		p.packet(content, got...)
	})
}

// after has a peer say more once a command has started.
func after(say func(p *peer, id uint64)) func(p *peer) {
	return instead(func(p *peer, m wire.Message) {
		p.started(m.ID, p.streams(m.Spawn)...)
		say(p, m.ID)
	})
}

const (
	nothingAsked = "it answers what nobody asked"
	noCommand    = "it tells the end of a command that does not run"
	notATerminal = "it passes a terminal that is none"
	notAPipe     = "it passes a stream that is no pipe"
	noBelongings = "it starts a command without what belongs to one"
	notAnAnswer  = "it answers something else than was asked"
	noReason     = "it refuses without a reason"
	noKill       = "it tells of a kill that nobody asked for"
	noEnd        = "it tells of an end that nobody waits for"
	notForUs     = "it sends what is not for us"
	noAnswer     = "it gave no answer within"
)

// hostileInits are the ways in which an init goes wrong, and what is said of each.
var hostileInits map[string]struct {
	change func(p *peer)
	why    string
}

func init() { // a table that refers to itself by way of hostile
	hostileInits = map[string]struct {
		change func(p *peer)
		why    string
	}{
		"starts what nobody asked for": {instead(func(p *peer, m wire.Message) { p.started(m.ID+1000, p.pipes(false)...) }), nothingAsked},
		"starts a command twice":       {after(func(p *peer, id uint64) { p.started(id, p.pipes(true)...) }), nothingAsked},
		"starts without descriptors":   {instead(func(p *peer, m wire.Message) { p.started(m.ID) }), noBelongings},
		"starts with too few":          {instead(func(p *peer, m wire.Message) { p.started(m.ID, p.streams(m.Spawn)[1:]...) }), noBelongings},
		"starts with too many":         {instead(func(p *peer, m wire.Message) { p.started(m.ID, append(p.streams(m.Spawn), openSocket())...) }), noBelongings},
		"starts process 1": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindStarted, ID: m.ID, Pid: 1}, p.streams(m.Spawn)...)
		}), noBelongings},
		"a directory for stdout":     {stdout(func() int { return opening("/", unix.O_RDONLY) }), notAPipe},
		"a file for stdout":          {stdout(func() int { return opening("/etc/hosts", unix.O_RDONLY) }), notAPipe},
		"a device for stdout":        {stdout(func() int { return opening("/dev/zero", unix.O_RDONLY) }), notAPipe},
		"a socket for stdout":        {stdout(openSocket), notAPipe},
		"a path for stdout":          {stdout(func() int { return opening("/etc/hosts", unix.O_PATH) }), notAPipe},
		"the writing end for stdout": {stdout(func() int { return pipeEnds()[1] }), notAPipe},
		"its own socket for stdout":  {stdout(func() int { fd, _ := unix.Dup(wire.ControlFD); return fd }), notAPipe},
		"the reading end for stdin": {instead(func(p *peer, m wire.Message) {
			fds := p.streams(m.Spawn)
			if m.Spawn.Stdin && len(fds) == 3 {
				fds[2] = pipeEnds()[0]
			}
			p.started(m.ID, fds...)
		}), notAPipe},
		"a device for a terminal": {screen(func() int { return opening("/dev/zero", unix.O_RDWR) }), notATerminal},
		"a pipe for a terminal":   {screen(func() int { return pipeEnds()[1] }), notATerminal},
		"an opener for a command": {instead(func(p *peer, m wire.Message) { p.send(wire.Message{Kind: wire.KindOpener, ID: m.ID}) }), notAnAnswer},
		"a command for an opener": {func(p *peer) { p.opener = func(m wire.Message, _ int) { p.started(m.ID, p.pipes(false)...) } }, notAnAnswer},
		"an opener with a descriptor": {func(p *peer) {
			p.opener = func(m wire.Message, s int) { p.send(wire.Message{Kind: wire.KindOpener, ID: m.ID}, s) }
		}, notAnAnswer},
		"a refusal without an errno": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Stage: wire.StageExec})
		}), noReason},
		"a refusal below zero": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Stage: wire.StageExec, Errno: -5})
		}), noReason},
		"a refusal with many words": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Stage: wire.Stage(strings.Repeat("x", 1<<20)), Errno: 2})
		}), noReason},
		"a refusal with descriptors": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Stage: wire.StageExec, Errno: 2}, p.pipes(true)...)
		}), notAnAnswer},
		"an exit before the start": {instead(func(p *peer, m wire.Message) {
			p.send(wire.Message{Kind: wire.KindExited, ID: m.ID})
			p.started(m.ID, p.streams(m.Spawn)...)
		}), noCommand},
		// Of a command that is being killed more is known by then.
		"an exit twice": {after(func(p *peer, id uint64) {
			p.send(wire.Message{Kind: wire.KindExited, ID: id})
			p.send(wire.Message{Kind: wire.KindExited, ID: id})
		}), "it tells "},
		"an exit that is a stop":  {after(func(p *peer, id uint64) { p.send(wire.Message{Kind: wire.KindExited, ID: id, Status: 0x137f}) }), "it tells an exit that is none"},
		"an exit after ages":      {after(func(p *peer, id uint64) { p.send(wire.Message{Kind: wire.KindExited, ID: id, CPUMicros: 1 << 62}) }), "it tells an exit that is none"},
		"an exit with descriptor": {after(func(p *peer, _ uint64) { p.send(wire.Message{Kind: wire.KindExited, ID: 1 << 60}, openSocket()) }), noCommand},
		"a kill unasked":          {after(func(p *peer, id uint64) { p.send(wire.Message{Kind: wire.KindKilled, ID: id}) }), noKill},
		"a kill twice": {func(p *peer) {
			p.kill = func(m wire.Message) {
				p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID})
				p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID})
			}
		}, noKill},
		"a kill that leaves less than none": {func(p *peer) {
			p.kill = func(m wire.Message) { p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID, Left: -1}) }
		}, noKill},
		"hello twice":             {instead(func(p *peer, _ wire.Message) { p.send(wire.Message{Kind: wire.KindHello, Version: wire.Version}) }), notForUs},
		"an unknown kind":         {instead(func(p *peer, m wire.Message) { p.send(wire.Message{Kind: "nonsense", ID: m.ID}, openSocket()) }), notForUs},
		"a message of ours":       {instead(func(p *peer, m wire.Message) { p.send(m) }), notForUs},
		"a bad frame":             {packets("\xff\xff\xff"), "decode control message"},
		"half a frame":            {packets("\x03\x07start"), "decode control message"},
		"a frame of nothing":      {packets("", func() int { return memfd(0) }), ""},
		"a frame too large":       {packets(strings.Repeat("x", wire.MaxFrame+1)), "cut short"},
		"too many descriptors":    {packets("\x03\x07started", many(wire.MaxFDs+1)...), "cut short"},
		"a message without memfd": {packets("\x00"), "without its memfd"},
		"a memfd too large":       {packets("\x00", func() int { return memfd(wire.MaxMessage + 1) }), "no sealed memfd"},
		"a memfd that may change": {packets("\x00", func() int { return memfd(100) }), "no sealed memfd"},
		"a pipe for a memfd":      {packets("\x00", func() int { return pipeEnds()[0] }), "no sealed memfd"},
		"a flood":                 {instead(func(p *peer, _ wire.Message) { p.flood() }), noCommand},
		"a count below none": {func(p *peer) {
			p.census = func(m wire.Message) { p.send(wire.Message{Kind: wire.KindCensus, ID: m.ID, Left: -1}) }
		}, notAnAnswer},
		"a command for a count": {func(p *peer) { p.census = func(m wire.Message) { p.started(m.ID, p.pipes(false)...) } }, notAnAnswer},
		"quiet unasked":         {after(func(p *peer, _ uint64) { p.send(wire.Message{Kind: wire.KindQuiet}) }), noEnd},
		"quiet twice": {func(p *peer) {
			p.census = func(m wire.Message) {
				p.send(wire.Message{Kind: wire.KindCensus, ID: m.ID, Left: 1})
				p.send(wire.Message{Kind: wire.KindQuiet})
				p.send(wire.Message{Kind: wire.KindQuiet})
			}
		}, noEnd},
		"silence on a count":    {func(p *peer) { p.census = func(wire.Message) {} }, noAnswer},
		"silence on commands":   {instead(func(*peer, wire.Message) {}), noAnswer},
		"silence on the opener": {func(p *peer) { p.opener = func(wire.Message, int) {} }, noAnswer},
		"it closes its socket":  {instead(func(*peer, wire.Message) { _ = unix.Shutdown(wire.ControlFD, unix.SHUT_RDWR) }), ""},
		"it exits":              {instead(func(*peer, wire.Message) { os.Exit(0) }), ""},
		"it stays when it is told to go": {func(p *peer) {
			p.spawn = func(wire.Message) { p.packet("\xff") }
			p.end = func() { signal.Ignore(unix.SIGTERM, unix.SIGHUP); select {} }
		}, "decode control message"},
	}
}

func many(n int) (fds []func() int) {
	for range n {
		fds = append(fds, func() int { return memfd(0) })
	}
	return fds
}

func (p *peer) flood() {
	for range 100_000 {
		if unix.Sendmsg(wire.ControlFD, []byte("\x03\x06exited\x04\x63"), nil, nil, unix.MSG_NOSIGNAL) != nil {
			return
		}
	}
}

// takenOver starts a sandbox whose init is the peer of that scenario.
func takenOver(t testing.TB, scenario string, patience time.Duration) *Generation {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	// The race detector would have its program linger for a second at the end.
	cfg := fake(t, "GORACE=atexit_sleep_ms=0 exec '"+self+"' helper hostile '"+scenario+"'")
	cfg.AnswerTimeout = patience
	g, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, g) })
	return g
}

// calls makes one of each call at once and returns the errors that came of them.
func calls(g *Generation) map[string]error {
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[string]error{}
	call := func(name string, f func() error) {
		all.Go(func() {
			err := f()
			mu.Lock()
			defer mu.Unlock()
			got[name] = err
		})
	}
	ctx := context.Background()
	command := bash("true")
	call("spawn", func() error {
		p, err := g.Spawn(ctx, command)
		if err == nil {
			defer p.Release()
			_, err = p.Wait(ctx)
		}
		return err
	})
	withInput := command
	withInput.Stdin = true
	call("spawn with stdin", func() error {
		p, err := g.Spawn(ctx, withInput)
		if err != nil {
			return err
		}
		var readers sync.WaitGroup
		for i := 1; i <= 2; i++ {
			readers.Go(func() {
				for {
					if _, err := p.Read(ctx, i, 4096); err != nil {
						call("read", func() error { return err })
						return
					}
				}
			})
		}
		call("wait", func() error { _, err := p.Wait(ctx); return err })
		call("write", func() error { return p.Write(ctx, make([]byte, 1<<20)) })
		err = p.Kill(ctx)
		readers.Wait()
		p.Release()
		return err
	})
	terminal := command
	terminal.Columns, terminal.Rows = 80, 24
	call("spawn with a terminal", func() error {
		p, err := g.Spawn(ctx, terminal)
		if err == nil {
			_ = p.Resize(90, 30)
			_ = p.CloseStdin()
			err = p.Kill(ctx)
			p.Release()
		}
		return err
	})
	call("aborted run", func() error {
		_, err := Run(ctx, g, command, Limits{Timeout: 50 * time.Millisecond})
		return err
	})
	call("open", func() error {
		f, err := g.Opener().Open(ctx, "/x")
		if err == nil {
			_ = f.Close()
		}
		return err
	})
	call("quiet", func() error { _, _, err := g.Quiet(ctx); return err })
	call("parent", func() error {
		f, _, err := g.Opener().Parent(ctx, "/x", false, false)
		if err == nil {
			_ = f.Close()
		}
		return err
	})
	all.Wait()
	return got
}

// within fails the test, and shows who waits, when f does not return.
func within(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		require.FailNow(t, what+" hangs", "%s", stacks())
	}
}

// typed asserts that callers can tell what kind of error it is.
func typed(t testing.TB, name string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, io.EOF) {
		return
	}
	var known *errdefs.Error
	require.ErrorAs(t, err, &known, "%s: %v", name, err)
	require.NotEmpty(t, known.Code, "%s: %v", name, err)
	require.Less(t, len(err.Error()), 1000, "%s: it is the peer that speaks", name)
}

const generous = time.Minute

// nothingLeft runs tests that leave no descriptor, goroutine or process behind.
func nothingLeft(t *testing.T, f func(t *testing.T)) {
	stop(t, takenOver(t, "", generous)) // opens what stays open
	before, descriptors, goroutines := children(t), fds(t), runtime.NumGoroutine()
	t.Run("scenarios", f)
	for name, left := range map[string]func() bool{
		"process":    func() bool { return children(t) > before },
		"descriptor": func() bool { return fds(t) > descriptors },
		"goroutine":  func() bool { return runtime.NumGoroutine() > goroutines },
	} {
		for end := time.Now().Add(generous); left(); runtime.Gosched() {
			require.False(t, time.Now().After(end), "a %s is left, of %d and %d:\n%s\n%s", name, descriptors, goroutines, fdList(), stacks())
		}
	}
}

func stacks() []byte {
	all := make([]byte, 1<<20)
	return all[:runtime.Stack(all, true)]
}

func TestHostileInit_EveryCallEnds(t *testing.T) {
	nothingLeft(t, func(t *testing.T) {
		for name, tc := range hostileInits {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				patience := generous
				if strings.HasPrefix(tc.why, noAnswer) {
					patience = time.Second
				}
				g := takenOver(t, name, patience)
				within(t, generous, "a call", func() {
					for call, err := range calls(g) {
						typed(t, call, err)
					}
				})
				within(t, generous, "the sandbox", func() { <-g.Done() })
				_, err := g.Spawn(t.Context(), bash("true"))
				require.Equal(t, errdefs.Internal, errdefs.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, tc.why)
				_, err = g.Opener().Open(t.Context(), "/x")
				require.Equal(t, errdefs.Internal, errdefs.CodeOf(err), "%v", err)
				stop(t, g)
			})
		}
	})
}

// otherPeers are those that one test each is about.
var otherPeers = map[string]func(p *peer){
	"it exits after its hello": func(p *peer) { p.hello = func() { p.packet("\x03\x05hello\x06\x01"); os.Exit(3) } },
	"it does not kill":         func(p *peer) { p.kill = func(wire.Message) {} },
	"it never tells the exit": func(p *peer) {
		p.kill = func(m wire.Message) { p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID}) }
	},
	"it kills all but one": func(p *peer) {
		p.kill = func(m wire.Message) { p.send(wire.Message{Kind: wire.KindKilled, ID: m.ID, Left: 1}) }
	},
	"it makes reads block": func(p *peer) {
		p.spawn = func(m wire.Message) {
			fds := p.streams(m.Spawn)
			var kept []int
			for _, fd := range fds {
				dup, _ := unix.Dup(fd)
				kept = append(kept, dup)
			}
			p.started(m.ID, fds...)
			go func() {
				for range 5000 {
					for _, fd := range kept {
						_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
					}
					<-time.After(time.Millisecond)
				}
			}()
		}
	},
	"it answers late": func(p *peer) {
		p.answer = func(_ int, conn *wire.Conn, m wire.Message) {
			time.AfterFunc(300*time.Millisecond, func() { properAnswer(conn, m) })
		}
	},
}

func TestHostileInit_ExitsAfterItsHello(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	g, err := Start(t.Context(), fake(t, "exec '"+self+"' helper hostile 'it exits after its hello'"))
	if err != nil { // it was noticed so soon
		require.Equal(t, errdefs.Unavailable, errdefs.CodeOf(err))
		return
	}
	within(t, generous, "the sandbox", func() { <-g.Done() })
	_, err = g.Spawn(t.Context(), bash("true"))
	require.Equal(t, errdefs.Internal, errdefs.CodeOf(err))
}

// A kill that init does not carry out, or only says so, is the kernel's.
func TestHostileInit_AKillIsCarriedThrough(t *testing.T) {
	nothingLeft(t, func(t *testing.T) {
		for _, name := range []string{"it does not kill", "it never tells the exit", "it kills all but one"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := takenOver(t, name, time.Minute)
				within(t, generous, "a run", func() {
					_, err := Run(t.Context(), g, bash("true"), Limits{Timeout: 50 * time.Millisecond})
					require.Equal(t, errdefs.Timeout, errdefs.CodeOf(err), "%v", err)
				})
				within(t, generous, "the sandbox", func() { <-g.Done() })
				require.Zero(t, known0(g))
			})
		}
	})
}

// It shares its descriptors with us, but not how they are read and written.
func TestHostileInit_CannotMakeUsBlock(t *testing.T) {
	nothingLeft(t, func(t *testing.T) {
		g := takenOver(t, "it makes reads block", time.Minute)
		cmd := bash("true")
		cmd.Stdin = true
		p := spawn(t, g, cmd)
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			within(t, generous, "a read", func() {
				_, err := p.Read(ctx, 1, 100)
				require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err), "%v", err)
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		within(t, generous, "a write", func() {
			require.Equal(t, errdefs.Aborted, errdefs.CodeOf(p.Write(ctx, make([]byte, 1<<20))))
		})
		within(t, generous, "the release", p.Release)
	})
}
