//go:build linux

package initproc

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// child describes a process to start from a thread that has become its like.
type child struct {
	argv, env []string
	// path is the program. Empty means argv[0].
	path string
	// dir is its working directory. Empty means the root.
	dir string
	// files become its descriptors from 0 on; it gets no others.
	files []int
}

// fork starts c. The caller holds forking, and registers the child before it
// lets go of it.
func (s *server) fork(c child) (int, error) {
	if c.path == "" {
		c.path = c.argv[0]
	}
	if c.dir == "" {
		c.dir = "/"
	}
	files := make([]uintptr, len(c.files))
	for i, fd := range c.files {
		files[i] = uintptr(fd)
	}
	if holds("init8") {
		defer s.keepMoving(unix.Gettid())()
	}
	// A session of its own, so that a command can be signalled as a group and
	// has no terminal. No parent-death signal: it would follow this thread.
	pidfd := -1
	pid, err := syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{
		Dir: c.dir, Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", c.path, err)
	}
	s.attend(pidfd)
	return pid, nil
}

const (
	// stuckAfter is far more than an exec takes, and still not felt when it is
	// a cold disk that the exec waits for.
	stuckAfter = 50 * time.Millisecond
	// stuckInterval is the time from then on: whoever has stopped it will go on doing so.
	stuckInterval = time.Millisecond
	// hopelessAfter ends a child that something stops again and again.
	hopelessAfter = 3 * time.Second
)

// keepMoving looks after the fork on thread tid until the returned function is
// called. The forking thread sleeps until its child has executed its program, and
// until then any command, having the same user id, may stop the child and so hold
// up init. A timer, not a goroutine: it almost never has anything to do.
func (s *server) keepMoving(tid int) (done func()) {
	started := time.Now()
	// mu guards over, so that no signal is sent once done has returned.
	var mu sync.Mutex
	var over bool
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(stuckAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		sig := unix.SIGCONT
		if time.Since(started) > hopelessAfter {
			sig = unix.SIGKILL
		}
		// Cannot hit another process: the child is not reaped before the fork has
		// returned, and no other child has this thread as its parent.
		for _, pid := range s.proc.childrenOf(tid) {
			_ = unix.Kill(pid, sig)
		}
		timer.Reset(stuckInterval)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

// reap collects dead children: the opener, orphans, whose parent init has become,
// and commands, where attend does not. It goes by SIGCHLD: a goroutine that waited
// in the kernel would hold a processor, and the runtime would look after it
// 10,000 times a second, at the expense of whatever command runs.
func (s *server) reap(children <-chan os.Signal) {
	for range children {
		s.collect()
	}
}

// attend collects a child of ours once it has exited. The news comes sooner by
// its descriptor, which it takes over, than by SIGCHLD, whose way leads through
// three goroutines. Without one (before Linux 5.2) it comes by SIGCHLD alone.
func (s *server) attend(pidfd int) {
	if pidfd < 0 {
		return
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return
	}
	f := os.NewFile(uintptr(pidfd), "child")
	go func() {
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, err := unix.Poll(poll, 0)
			return err != nil || poll[0].Revents != 0
		})
		s.collect()
	}()
}

// collect reaps what is dead and tells of the commands among it.
func (s *server) collect() {
	for _, m := range s.reapAll() {
		s.conn.Send(m)
	}
	s.sweep()
}

// reapAll returns the messages to send for the commands among the dead.
func (s *server) reapAll() (exits []wire.Message) {
	s.forking.Lock()
	defer s.forking.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		if pid == s.opener {
			s.opener = 0
		}
		s.mu.Lock()
		if c := s.byPid[pid]; c != nil {
			delete(s.byPid, pid)
			c.exited = true
			c.closeHungUp()
			exits = append(exits, wire.Message{Kind: wire.KindExited, ID: c.id, Status: uint32(status)})
		}
		s.mu.Unlock()
	}
	collectGarbage()
	return exits
}

// collectGarbage runs under forking. A collection stops all goroutines, and
// would wait for a forking thread whose child somebody has stopped, while the
// goroutine that continues the child waits for the collection. Commands end
// often enough for this to be the place.
func collectGarbage() {
	const plenty = 32 << 20
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample) // without stopping anything
	if sample[0].Value.Kind() == metrics.KindUint64 && sample[0].Value.Uint64() > plenty {
		runtime.GC()
	}
}

// startOpener replaces the opener with a fresh one and passes its socket on.
func (s *server) startOpener(id uint64) {
	defer s.guard(id)
	throwAwayThread()
	if err := dropPrivileges(s.pass); err != nil {
		s.fail(id, wire.StageSetup, err)
		return
	}
	theirs, ours, err := wire.Pair()
	if err != nil {
		s.fail(id, wire.StageSetup, err)
		return
	}
	defer unix.Close(ours)

	s.forking.Lock()
	defer s.forking.Unlock()
	if s.opener != 0 {
		// Not reaped yet, so the number is still its own. It may be stopped, or
		// be waiting on a file system for ever: asking for a new one is enough.
		_ = unix.Kill(s.opener, unix.SIGKILL)
	}
	// init has closed the descriptor it was started from; the child's own
	// /proc/self/exe is the same program.
	pid, err := s.fork(child{
		path: "/proc/self/exe", argv: []string{"init", openerVerb},
		files: []int{s.null, s.null, s.null, ours},
	})
	if err != nil {
		_ = unix.Close(theirs)
		s.fail(id, wire.StageExec, err)
		return
	}
	s.opener = pid
	s.conn.Send(wire.Message{Kind: wire.KindOpener, ID: id, Pid: pid}, theirs)
}

// childrenOf returns the children that thread tid of this process has forked.
func (p procDir) childrenOf(tid int) []int {
	list, err := p.read("self/task/" + strconv.Itoa(tid) + "/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
