//go:build linux

package initproc

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	// dir is its working directory. Empty means that of the forking thread.
	dir string
	// files become its descriptors from 0 on; it gets no others.
	files []int
	// terminal makes the terminal at 0 that of its session.
	terminal bool
}

// fork starts c. The caller holds forking, and registers the child before it
// lets go of it.
func (s *server) fork(c child) (int, error) {
	if c.path == "" {
		c.path = c.argv[0]
	}
	files := make([]uintptr, len(c.files))
	for i, fd := range c.files {
		files[i] = uintptr(fd)
	}
	if holds("init8") {
		defer s.watchdog.begin()()
	}
	// A session of its own, so that a command can be signalled as a group and
	// has no terminal. No parent-death signal: it would follow this thread.
	pidfd := -1
	pid, err := syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{
		Dir: c.dir, Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.terminal, PidFD: &pidfd},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", c.path, err)
	}
	s.attend(pidfd)
	return pid, nil
}

const (
	// stuckAfter is far more than an exec takes.
	stuckAfter = 20 * time.Millisecond
	// stuckInterval is the time from then on: whoever has stopped it will go on doing so.
	stuckInterval = time.Millisecond
	// thawAfter bounds how long all others are being stopped for one child's sake, and
	// then how long they are.
	thawAfter = 50 * time.Millisecond
	// hopelessAfter ends a child that is stopped even so.
	hopelessAfter = 3 * time.Second
)

// watchdog looks after the fork that is under way. The forking thread sleeps until
// its child has executed its program, and until then any command, having the same
// user id, may stop the child and so hold up init. To continue it is not enough: who
// stops it without pause wins that race most of the time. So all others are stopped
// until it is through.
//
// Its timer is left to run out when a fork has ended in time, as forks do: to
// stop it, and to set it anew for the next, would wake a thread each time.
type watchdog struct {
	proc procDir
	// forks counts those that have ended.
	forks atomic.Uint64

	// mu guards the fields below it, so that no signal is sent once the fork is over.
	mu sync.Mutex
	// tid is the forking thread, 0 when there is none.
	tid     int
	started time.Time
	armed   bool
}

// begin watches a fork of the calling thread until the returned function is called.
func (w *watchdog) begin() (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tid, w.started = unix.Gettid(), time.Now()
	if !w.armed {
		w.armed = true
		time.AfterFunc(stuckAfter, w.look)
	}
	return w.end
}

func (w *watchdog) end() {
	w.forks.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tid = 0
}

func (w *watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tid == 0 {
		w.armed = false
		return
	}
	if rest := stuckAfter - time.Since(w.started); rest > 0 {
		time.AfterFunc(rest, w.look)
		return
	}
	// Cannot be another process: the child is not reaped before the fork has
	// returned, and no other child has this thread as its parent. One that is not
	// stopped waits for a disk.
	for _, pid := range w.proc.childrenOf(w.tid) {
		switch {
		case !w.proc.stopped(pid):
		case time.Since(w.started) > hopelessAfter:
			_ = unix.Kill(pid, unix.SIGKILL)
		default:
			w.free(pid)
		}
	}
	time.AfterFunc(stuckInterval, w.look)
}

// free continues a stopped child, and sees to it that nobody can stop it again until
// it has executed its program.
func (w *watchdog) free(child int) {
	before := w.forks.Load()
	others := w.stopOthers(child)
	deadline := time.Now().Add(thawAfter)
	for w.forks.Load() == before && time.Now().Before(deadline) {
		// A last signal may still have been on its way.
		if w.proc.stopped(child) {
			_ = unix.Kill(child, unix.SIGCONT)
		}
		time.Sleep(stuckInterval / 10) //permit:time.Sleep nothing tells when a child has executed its program
	}
	for pid := range others {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// stopOthers stops every process but child and returns those that were not stopped yet.
func (w *watchdog) stopOthers(child int) map[int]bool {
	others := map[int]bool{}
	deadline := time.Now().Add(thawAfter)
	for fresh := true; fresh && time.Now().Before(deadline); {
		fresh = false
		w.proc.each(func(pid, pidfd int) {
			if pid != child && !others[pid] && !w.proc.stopped(pid) {
				others[pid], fresh = true, true
				process{pid: pid}.signal(pidfd, unix.SIGSTOP)
			}
		})
	}
	return others
}

// tidyAfter is when those who wait for a command's end have it.
const tidyAfter = 2 * time.Millisecond

// reap collects dead children: the opener, orphans, whose parent init has become,
// and commands, where attend does not. It goes by SIGCHLD: a goroutine that waited
// in the kernel would hold a processor, and the runtime would look after it
// 10,000 times a second, at the expense of whatever command runs.
func (s *server) reap(children <-chan os.Signal) {
	for range children {
		s.collect()
		time.Sleep(tidyAfter) //permit:time.Sleep nothing ends init early but its own end
		s.tidy()
	}
}

// attend has a child collected as soon as it has exited. It takes over the
// child's pidfd; without one (before Linux 5.2) the news comes by SIGCHLD alone,
// whose way leads through three threads.
func (s *server) attend(pidfd int) {
	if pidfd < 0 {
		return
	}
	if err := s.exits.Add(pidfd); err != nil {
		_ = unix.Close(pidfd)
	}
}

// collectExits collects the children that were given to attend.
func (s *server) collectExits() {
	for {
		var events [16]unix.EpollEvent
		n, err := s.exits.Wait(events[:])
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			_ = unix.Close(int(e.Fd))
		}
		s.collect()
	}
}

// collect reaps what is dead and tells of the commands among it: somebody waits
// for that, and not for what tidy does.
func (s *server) collect() {
	s.forking.Lock()
	defer s.forking.Unlock()
	for {
		var status unix.WaitStatus
		var used unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, &used)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == s.opener {
			s.opener = 0
		} else {
			s.lastDeath = time.Now()
		}
		s.mu.Lock()
		c := s.byPid[pid]
		if c != nil {
			delete(s.byPid, pid)
			c.exited = true
		}
		s.mu.Unlock()
		if c != nil {
			s.conn.Send(wire.Message{
				Kind: wire.KindExited, ID: c.id, Status: uint32(status),
				CPUMicros: int((used.Utime.Nano() + used.Stime.Nano()) / 1000),
				MaxRSS:    int(used.Maxrss << 10), // the kernel counts in KiB
			})
		}
	}
}

// tidy gives back what exited commands have left.
func (s *server) tidy() {
	s.forking.Lock()
	collectGarbage()
	s.forking.Unlock()
	s.mu.Lock()
	for _, c := range s.commands {
		if c.exited {
			c.closeHungUp()
		}
	}
	s.mu.Unlock()
	s.sweep()
	s.marks.want()
	s.tellQuiet()
}

// collectGarbage runs under forking. A collection stops all goroutines, and
// would wait for a forking thread whose child somebody has stopped, while the
// goroutine that continues the child waits for the collection. Commands end
// often enough for this to be the place.
func collectGarbage() {
	const plenty = 2 << 20 // several times what init needs at once
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples) // without stopping anything
	used, free := samples[0].Value, samples[1].Value
	switch {
	case free.Kind() == metrics.KindUint64 && free.Uint64() > 2*plenty:
		// What a storm of kills has left. Where garbage is collected by hand the
		// runtime gives no memory back by itself.
		debug.FreeOSMemory()
	case used.Kind() == metrics.KindUint64 && used.Uint64() > plenty:
		runtime.GC()
	}
}

// startOpener replaces the opener with a fresh one, which gets the one descriptor
// of the request: its end of a conversation with the supervisor.
func (s *server) startOpener(id uint64, fds []int) {
	defer closeAll(fds)
	defer s.guard(id)
	throwAwayThread()
	if len(fds) != 1 {
		s.fail(id, wire.StageSetup, unix.EINVAL)
		return
	}
	if err := dropPrivileges(s.pass, s.bounding); err != nil {
		s.fail(id, wire.StageSetup, err)
		return
	}

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
		path: "/proc/self/exe", argv: []string{"init", openerVerb}, dir: "/",
		files: []int{s.null, s.null, s.null, fds[0]},
	})
	if err != nil {
		s.fail(id, wire.StageExec, err)
		return
	}
	s.opener = pid
	s.conn.Send(wire.Message{Kind: wire.KindOpener, ID: id, Pid: pid})
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
