//go:build linux

package initproc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// server is init's state. A request that takes time has a goroutine of its own.
type server struct {
	conn *wire.Conn
	pass pass
	proc procDir
	null int
	// exits has the pidfds of children, see attend.
	exits *linux.Poll
	// children is the descriptor limit of what init starts.
	children unix.Rlimit

	// bounding is init's bounding set.
	bounding []uintptr
	marks    marks
	network  isolatedNetwork
	watchdog watchdog

	// forking is held from before a fork until the child is registered and
	// reported, and while reaping: so no child is reaped unknown, and no Exited
	// overtakes its Started. Taken before mu.
	forking sync.Mutex
	// opener is the process id of the living opener, or 0. Guarded by forking.
	opener int
	// lastDeath is when a child was reaped that was no opener, or when init
	// started. Guarded by forking.
	lastDeath time.Time
	// wanted says that the supervisor waits for the moment when nothing runs.
	wanted atomic.Bool

	// sweeping is held while exited commands are forgotten. Taken before mu.
	sweeping sync.Mutex

	// mu guards the fields below it. It is never held around a system call that
	// can block.
	mu sync.Mutex
	// commands has those that run, and those whose main process has exited until
	// the next sweep finds that nothing is left of them.
	commands map[uint64]*command
	// byPid has the commands whose main process runs.
	byPid map[int]*command
	// sweepAt is the number of exited commands that makes the next sweep due.
	sweepAt int
}

// serve answers until the supervisor has gone.
func (s *server) serve() {
	s.conn.Send(wire.Message{Kind: wire.KindHello, Version: wire.Version})
	for {
		m, fds, err := s.conn.Recv()
		if err != nil {
			return
		}
		if m.Kind != wire.KindSpawn && m.Kind != wire.KindOpener {
			closeAll(fds) // no other request brings any
		}
		switch m.Kind {
		case wire.KindSpawn:
			s.wanted.Store(false)
			go s.spawn(m, fds)
		case wire.KindOpener:
			go s.startOpener(m.ID, fds)
		case wire.KindKill:
			go s.kill(m.ID)
		case wire.KindDiscard:
			s.discard(m.ID, m.Stream)
		case wire.KindCensus:
			go s.census(m.ID)
		default:
			// Both sides come from one build: this is no message of ours.
			return
		}
	}
}

// fail reports a failed request.
func (s *server) fail(id uint64, stage wire.Stage, err error) {
	s.conn.Send(wire.Message{Kind: wire.KindFailed, ID: id, Stage: stage, Errno: int(errnoOf(err))})
}

// guard turns a panic in a request's goroutine into a failure of that request,
// so that a bug costs one command and not the sandbox.
func (s *server) guard(id uint64) {
	if r := recover(); r != nil {
		s.fail(id, wire.StageSetup, fmt.Errorf("panic: %v", r))
	}
}

// errnoOf returns the errno in err's chain, and EIO for what the kernel did not say.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO
}
