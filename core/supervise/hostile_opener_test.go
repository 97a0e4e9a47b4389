package supervise

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// answers has a peer's opener answer the first question, or with it both attempts
// of the call, like that, and from then on as it should.
func answers(questions int, answer func(conn *wire.Conn, m wire.Message)) func(p *peer) {
	return func(p *peer) {
		p.answer = func(n int, conn *wire.Conn, m wire.Message) {
			if n > questions {
				properAnswer(conn, m)
				return
			}
			answer(conn, m)
		}
	}
}

// opens has it answer with such a descriptor.
func opens(fds ...func() int) func(p *peer) {
	return answers(1, func(conn *wire.Conn, m wire.Message) {
		var got []int
		for _, make := range fds {
			got = append(got, make())
		}
		conn.Send(wire.Message{Kind: wire.KindOpened, ID: m.ID, Name: "x"}, got...)
	})
}

func file(path string, flags int) func() int { return func() int { return opening(path, flags) } }

// hostileOpeners are the ways in which an opener goes wrong, and how a call ends then.
var hostileOpeners = map[string]struct {
	change func(p *peer)
	// parent asks for a directory instead of a file.
	parent bool
	code   errdefs.Code
}{
	"a directory for a file":        {change: opens(file("/", unix.O_RDONLY)), code: errdefs.Internal},
	"a device":                      {change: opens(file("/dev/zero", unix.O_RDONLY)), code: errdefs.Internal},
	"a socket":                      {change: opens(openSocket), code: errdefs.Internal},
	"a pipe":                        {change: opens(func() int { return pipeEnds()[0] }), code: errdefs.Internal},
	"a path":                        {change: opens(file("/etc/hosts", unix.O_PATH)), code: errdefs.Internal},
	"a file to write":               {change: opens(func() int { return memfd(1) }), code: errdefs.Internal},
	"a file of procfs":              {change: opens(file("/proc/self/stat", unix.O_RDONLY)), code: errdefs.Internal},
	"a file for a directory":        {change: opens(file("/etc/hosts", unix.O_RDONLY)), parent: true, code: errdefs.Internal},
	"a directory of procfs":         {change: opens(file("/proc/self", unix.O_RDONLY)), parent: true, code: errdefs.Internal},
	"nothing":                       {change: opens(), code: errdefs.Internal},
	"two files":                     {change: opens(file("/etc/hosts", 0), file("/etc/hosts", 0)), code: errdefs.Internal},
	"a refusal that opens":          {change: refuses(2, file("/etc/hosts", 0)), code: errdefs.Internal},
	"a refusal for no reason":       {change: refuses(0), code: errdefs.Internal},
	"a refusal below zero":          {change: refuses(-1), code: errdefs.Internal},
	"a refusal of an unknown errno": {change: refuses(4000), code: errdefs.Internal},
	"an answer of another kind": {change: answers(1, func(conn *wire.Conn, m wire.Message) {
		conn.Send(wire.Message{Kind: wire.KindExited, ID: m.ID}, opening("/etc/hosts", 0))
	}), code: errdefs.Internal},
	"to what nobody asked": {change: answers(2, func(conn *wire.Conn, m wire.Message) {
		conn.Send(wire.Message{Kind: wire.KindOpened, ID: m.ID + 1}, opening("/etc/hosts", 0))
	}), code: errdefs.Escape},
	"a flood of them": {change: answers(2, func(conn *wire.Conn, m wire.Message) {
		for range 100_000 {
			conn.Send(wire.Message{Kind: wire.KindOpened, ID: m.ID + 1, Name: strings.Repeat("x", 100)})
		}
	}), code: errdefs.Escape},
	"an end":  {change: answers(2, func(conn *wire.Conn, _ wire.Message) { _ = conn.Close() }), code: errdefs.Escape},
	"silence": {change: answers(2, func(*wire.Conn, wire.Message) {}), code: errdefs.Escape},
	"no opener": {change: func(p *peer) {
		opener, refused := p.opener, false
		p.opener = func(m wire.Message, socket int) {
			if refused {
				opener(m, socket)
				return
			}
			refused = true
			_ = unix.Close(socket)
			p.send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Stage: wire.StageExec, Errno: int(unix.EAGAIN)})
		}
	}, code: "EAGAIN"},
}

func refuses(errno int, fds ...func() int) func(p *peer) {
	return answers(1, func(conn *wire.Conn, m wire.Message) {
		var got []int
		for _, make := range fds {
			got = append(got, make())
		}
		conn.Send(wire.Message{Kind: wire.KindFailed, ID: m.ID, Errno: errno}, got...)
	})
}

func TestHostileOpener_EveryCallEndsAndTheNextOneWorks(t *testing.T) {
	nothingLeft(t, func(t *testing.T) {
		for name, tc := range hostileOpeners {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := takenOver(t, name, time.Minute)
				ask := func() (f *os.File, err error) {
					within(t, generous, "the call", func() {
						if tc.parent {
							f, _, err = g.Opener().Parent(context.Background(), "/asked/for", false, false)
						} else {
							f, err = g.Opener().Open(context.Background(), "/asked/for")
						}
					})
					return f, err
				}
				_, err := ask()
				require.Equal(t, tc.code, errdefs.CodeOf(err), "%v", err)
				require.Less(t, len(err.Error()), 200)
				f, err := ask()
				require.NoError(t, err)
				require.NoError(t, f.Close())
				stop(t, g)
			})
		}
	})
}

// What was given up is remembered until it is answered, and no longer.
func TestHostileOpener_LateAnswersAreDropped(t *testing.T) {
	nothingLeft(t, func(t *testing.T) {
		g := takenOver(t, "it answers late", time.Minute)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := g.Opener().Open(ctx, "/x")
				if errdefs.CodeOf(err) != errdefs.Aborted {
					t.Errorf("%v", err)
				}
			})
		}
		within(t, generous, "an aborted call", all.Wait)
		line := g.opener.line
		questions := func() int {
			line.mu.Lock()
			defer line.mu.Unlock()
			return len(line.asked)
		}
		require.Eventually(t, func() bool { return questions() == 0 }, generous, time.Millisecond, "what was given up is remembered")
	})
}

// While one waits for init to start an opener, another can give up.
func TestHostileOpener_NobodyWaitsForAnother(t *testing.T) {
	g := takenOver(t, "silence on the opener", time.Second)
	first := make(chan error, 1)
	go func() {
		_, err := g.Opener().Open(context.Background(), "/x")
		first <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	within(t, generous, "a call that was given up", func() {
		_, err := g.Opener().Open(ctx, "/x")
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	})
	select {
	case err := <-first:
		require.FailNow(t, "it did not wait", "%v", err)
	default:
	}
	within(t, generous, "the first call", func() {
		require.Equal(t, errdefs.Internal, errdefs.CodeOf(<-first))
	})
}
