//go:build linux

package initproc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// killPatience is how long a tree gets to be gone. Only processes that the
// kernel itself holds, on a dead disk say, take longer than milliseconds.
const killPatience = 5 * time.Second

// kill ends everything that command id has started and reports what is left.
func (s *server) kill(id uint64) {
	defer s.guard(id)
	s.mu.Lock()
	c := s.commands[id]
	s.mu.Unlock()
	left := 0
	// A command that is not known any more has no process left.
	if c != nil {
		left = s.endTree(c, time.Now().Add(killPatience))
	}
	s.conn.Send(wire.Message{Kind: wire.KindKilled, ID: id, Left: left})
}

// endTree stops, then kills, every process that bears c's mark. Stopping comes
// first so that nothing is left that could fork while others are being killed.
func (s *server) endTree(c *command, deadline time.Time) (left int) {
	stopped := map[process]bool{}
	for fresh := true; fresh && time.Now().Before(deadline); {
		fresh = false
		s.each(c, func(p process, pidfd int) {
			if !stopped[p] {
				stopped[p], fresh = true, true
				p.signal(pidfd, unix.SIGSTOP)
			}
		})
	}
	for {
		left = 0
		s.each(c, func(p process, pidfd int) {
			left++
			p.signal(pidfd, unix.SIGKILL)
			if left == 1 {
				// As good a measure as any of how long the kernel takes.
				awaitExit(pidfd)
			}
		})
		if left == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// awaitExit waits a moment for the process to end.
func awaitExit(pidfd int) {
	const moment = 5 // milliseconds
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, moment)
}

// each calls f for every living process of c, with a descriptor that cannot come
// to mean another process.
func (s *server) each(c *command, f func(p process, pidfd int)) {
	s.proc.each(func(pid, pidfd int) {
		if p, alive := s.proc.look(pid); alive && s.belongs(p, c) {
			f(p, pidfd)
		}
	})
}

// each calls f for every process but process 1, with a descriptor that cannot come
// to mean another process; -1 where there is none.
func (p procDir) each(f func(pid, pidfd int)) {
	for _, pid := range p.pids() {
		if pid == 1 {
			continue
		}
		// Opened before looking: what is judged is then either the process that
		// the descriptor means, or that one has ended and cannot be signalled.
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH || err == unix.EINVAL {
			continue
		}
		if err != nil {
			pidfd = -1 // before Linux 5.3, or no descriptor left
		}
		f(pid, pidfd)
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
	}
}

// belongs tells whether p is one of c's processes. One whose mark cannot be
// read is taken to be, unless its session is that of another running command.
func (s *server) belongs(p process, c *command) bool {
	if p.readable {
		return p.mark == c.mark.inode
	}
	// It may be a child of init's that has not executed its program yet, or the
	// opener: look again when no fork is under way.
	s.forking.Lock()
	defer s.forking.Unlock()
	p, alive := s.proc.look(p.pid)
	if p.readable || !alive || p.pid == s.opener {
		return alive && p.readable && p.mark == c.mark.inode
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A session id cannot be taken over, and is not reused while its leader lives.
	other := s.byPid[p.session]
	return other == nil || other == c
}

// process is one process at the moment it was looked at.
type process struct {
	pid     int
	started uint64
	session int
	// mark is its UTS namespace when that is readable.
	mark     uint64
	readable bool
}

// signal sends sig to the process that pidfd means, or, without one, to the pid.
func (p process) signal(pidfd int, sig unix.Signal) {
	if pidfd >= 0 {
		if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != unix.ENOSYS && err != unix.EPERM {
			return
		}
	}
	_ = unix.Kill(p.pid, sig)
}

// procDir is the sandbox's /proc, held open: its own mount, whatever commands
// may one day be able to put over the path.
type procDir struct{ fd int }

func openProc() (procDir, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procDir{}, fmt.Errorf("open /proc: %w", err)
	}
	return procDir{fd}, nil
}

// pids returns the processes there are.
func (p procDir) pids() []int { return p.numbers(".") }

func (p procDir) numbers(dir string) []int {
	fd, err := unix.Openat(p.fd, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	var out []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// look reads a process. It is alive as long as one of its threads can still run
// code; a main thread that has exited leaves a process that looks dead.
func (p procDir) look(pid int) (process, bool) {
	dir := strconv.Itoa(pid)
	st, err := p.stat(dir)
	if err != nil {
		return process{}, false
	}
	proc := process{pid: pid, started: st.started, session: st.session}
	err = unix.ENOENT
	if !st.dead {
		proc.mark, err = p.markOf(dir)
	}
	// A thread on its way out has no namespaces any more. One that has some
	// speaks for the process: its threads cannot differ.
	if gone(err) {
		for _, tid := range p.numbers(dir + "/task") {
			task := dir + "/task/" + strconv.Itoa(tid)
			if st, statErr := p.stat(task); statErr != nil || st.dead {
				continue
			}
			if proc.mark, err = p.markOf(task); !gone(err) {
				break
			}
		}
	}
	proc.readable = err == nil
	return proc, !gone(err)
}

// marks returns the marks that some process bears.
func (p procDir) marks() map[uint64]bool {
	alive := map[uint64]bool{}
	for _, pid := range p.pids() {
		if proc, ok := p.look(pid); ok && proc.readable {
			alive[proc.mark] = true
		}
	}
	return alive
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// markOf returns the number of a task's UTS namespace.
func (p procDir) markOf(task string) (uint64, error) {
	var buf [64]byte
	n, err := unix.Readlinkat(p.fd, task+"/ns/uts", buf[:])
	if err != nil {
		return 0, err
	}
	number, found := strings.CutPrefix(string(buf[:n]), "uts:[")
	if !found {
		return 0, unix.EINVAL
	}
	return strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
}

type taskStat struct {
	dead    bool
	stopped bool
	session int
	started uint64
}

// stat reads what every process may read of every other.
func (p procDir) stat(task string) (taskStat, error) {
	content, err := p.read(task + "/stat")
	if err != nil {
		return taskStat{}, err
	}
	return parseStat(content)
}

func parseStat(content []byte) (st taskStat, err error) {
	// The name in parentheses is the process's own choice, and may have any.
	end := bytes.LastIndexByte(content, ')')
	fields := strings.Fields(string(content[end+1:]))
	const state, session, started = 0, 3, 19 // counted from the field after the name
	if end < 0 || len(fields) <= started {
		return taskStat{}, unix.EINVAL
	}
	st.dead, st.stopped = fields[state] == "Z" || fields[state] == "X", fields[state] == "T"
	if st.session, err = strconv.Atoi(fields[session]); err != nil {
		return taskStat{}, unix.EINVAL
	}
	if st.started, err = strconv.ParseUint(fields[started], 10, 64); err != nil {
		return taskStat{}, unix.EINVAL
	}
	return st, nil
}

// stopped tells whether a process was stopped by a signal.
func (p procDir) stopped(pid int) bool {
	st, err := p.stat(strconv.Itoa(pid))
	return err == nil && st.stopped
}

func (p procDir) read(name string) ([]byte, error) {
	fd, err := unix.Openat(p.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var content []byte
	for {
		var buf [1024]byte
		n, err := unix.Read(fd, buf[:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return content, nil
		default:
			content = append(content, buf[:n]...)
		}
	}
}
