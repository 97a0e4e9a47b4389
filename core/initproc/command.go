//go:build linux

package initproc

import (
	"fmt"
	"io"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// command is what init remembers of a command. Its fields are guarded by the
// server's mu.
type command struct {
	id   uint64
	pid  int
	mark mark
	// exited is set once the main process has been reaped.
	exited bool
	// streams are read ends of stdout and stderr, at 0 and 1, and -1 once nobody
	// needs them. As long as init has one, a child in the background does not
	// notice that the supervisor has stopped reading. They stay out of the poller,
	// which would wake init at every write.
	streams [2]int
}

// pipes are the standard streams of a command that is being started.
type pipes struct {
	// inside are the command's ends: stdin, stdout, stderr, and wire.ScriptFD if there is one.
	inside []int
	// outside go to the supervisor: stdout, stderr and, when asked for, stdin; or the
	// output and the input of a terminal.
	outside []int
	// kept are init's own stdout and stderr; of a terminal only the first.
	kept [2]int
	// null stands in for a stdin that was not asked for, and is not closed.
	null int
}

// spawn starts a command and reports how that went. It owns fds, the command's
// script or nothing.
func (s *server) spawn(m wire.Message, fds []int) {
	defer s.guard(m.ID)
	throwAwayThread()
	if m.Spawn == nil || len(m.Spawn.Argv) == 0 || len(fds) > 1 {
		closeAll(fds)
		s.fail(m.ID, wire.StageSetup, unix.EINVAL)
		return
	}
	p, stage, err := s.openStreams(m.Spawn, fds)
	if err != nil {
		s.fail(m.ID, stage, err)
		return
	}
	if stage, err := s.start(m.ID, m.Spawn, p); err != nil {
		p.close()
		s.fail(m.ID, stage, err)
	}
}

// start runs on a thread of its own, which it turns into the command's. On
// success the outside and kept ends of p have new owners.
func (s *server) start(id uint64, spawn *wire.Spawn, p *pipes) (wire.Stage, error) {
	mark, err := s.marks.enter(s.pass)
	if err != nil {
		return wire.StageSetup, err
	}
	err = s.network.enter(spawn.Network, s.pass)
	if err == nil {
		err = dropPrivileges(s.pass, s.bounding)
	}
	if err != nil {
		mark.release()
		return wire.StageSetup, err
	}
	if err := s.enterDirectory(spawn.Dir); err != nil {
		mark.release()
		return wire.StageChdir, fmt.Errorf("working directory: %w", err)
	}

	s.forking.Lock()
	defer s.forking.Unlock()
	pid, err := s.fork(child{argv: spawn.Argv, env: spawn.Env, files: p.inside, terminal: spawn.Columns > 0})
	if err != nil {
		mark.release()
		return wire.StageExec, err
	}
	s.limit(pid)
	p.closeInside()

	c := &command{id: id, pid: pid, mark: mark, streams: p.kept}
	s.mu.Lock()
	s.commands[id], s.byPid[pid] = c, c
	s.mu.Unlock()
	s.conn.Send(wire.Message{Kind: wire.KindStarted, ID: id, Pid: pid}, p.outside...)
	return "", nil
}

// enterDirectory makes dir, found with the command's rights, the working directory of
// this thread alone, for its child to begin in. The child itself does not look for it:
// how long that takes is up to the sandbox, and until its exec the child can be stopped.
func (s *server) enterDirectory(dir string) error {
	if err := s.pass.call(unix.SYS_UNSHARE, unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Chdir(dir)
}

// limit gives a fresh child the commands' limit of open files: nothing in Go sets
// one between fork and exec.
func (s *server) limit(pid int) {
	// Cannot fail for a child of the same user, and one that has gone needs none.
	_ = s.pass.call(unix.SYS_PRLIMIT64, uintptr(pid), unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&s.children)))
}

// openStreams makes the standard streams. It takes over further, the descriptors
// that the command gets besides.
func (s *server) openStreams(spawn *wire.Spawn, further []int) (*pipes, wire.Stage, error) {
	if spawn.Columns > 0 {
		p, err := s.openTerminal(spawn.Columns, spawn.Rows, further)
		return p, wire.StageTerminal, err
	}
	p, err := s.openPipes(spawn.Stdin, further)
	return p, wire.StageSetup, err
}

// openTerminal makes a terminal, and a command's standard streams of it.
func (s *server) openTerminal(columns, rows int, further []int) (p *pipes, err error) {
	p = &pipes{inside: append([]int{-1, -1, -1}, further...), kept: [2]int{-1, -1}, null: s.null}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	// Non-blocking for all of its descriptors, which are one open file.
	master, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("make terminal: %w", err)
	}
	p.kept[0] = master
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return p, fmt.Errorf("unlock terminal: %w", err)
	}
	size := unix.Winsize{Col: uint16(columns), Row: uint16(rows)}
	if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &size); err != nil {
		return p, fmt.Errorf("size terminal: %w", err)
	}
	// Not by its path: the number may have become another terminal's.
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return p, fmt.Errorf("open terminal: %w", errno)
	}
	for fd := range 3 {
		p.inside[fd] = int(slave)
	}
	for range 2 {
		outside, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return p, fmt.Errorf("duplicate terminal: %w", err)
		}
		p.outside = append(p.outside, outside)
	}
	return p, nil
}

// openPipes makes standard streams that are pipes.
func (s *server) openPipes(stdin bool, further []int) (p *pipes, err error) {
	p = &pipes{inside: append([]int{s.null, -1, -1}, further...), kept: [2]int{-1, -1}, null: s.null}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for i := range p.kept {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return p, fmt.Errorf("make pipe: %w", err)
		}
		p.kept[i], p.inside[i+1] = ends[0], ends[1]
		// The reading end only: a program may not expect EAGAIN when it writes.
		if _, err := unix.FcntlInt(uintptr(ends[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return p, fmt.Errorf("set pipe non-blocking: %w", err)
		}
		outside, err := unix.FcntlInt(uintptr(ends[0]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return p, fmt.Errorf("duplicate pipe: %w", err)
		}
		p.outside = append(p.outside, outside)
	}
	if stdin {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return p, fmt.Errorf("make pipe: %w", err)
		}
		p.inside[0] = ends[0]
		p.outside = append(p.outside, ends[1])
	}
	return p, nil
}

// closeInside closes the command's ends.
func (p *pipes) closeInside() {
	for i, fd := range p.inside {
		if fd >= 0 && fd != p.null && !slices.Contains(p.inside[:i], fd) {
			_ = unix.Close(fd)
		}
	}
}

// close closes all ends.
func (p *pipes) close() {
	p.closeInside()
	for _, fd := range p.outside {
		_ = unix.Close(fd)
	}
	for _, fd := range p.kept {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// discard takes note that the supervisor has closed its end of a stream: what
// is written to it from now on is read here and thrown away.
func (s *server) discard(id uint64, stream int) {
	if stream != 1 && stream != 2 {
		return
	}
	s.mu.Lock()
	fd := -1
	if c := s.commands[id]; c != nil {
		fd, c.streams[stream-1] = c.streams[stream-1], -1
	}
	s.mu.Unlock()
	if fd < 0 {
		return
	}
	if hungUp(fd) {
		_ = unix.Close(fd) // the usual case: the supervisor has read to the end
		return
	}
	f := os.NewFile(uintptr(fd), "stream")
	go func() {
		defer f.Close()
		_, _ = io.Copy(io.Discard, f)
	}()
}

// sweep forgets exited commands of which nothing is left, once enough have come
// together: looking costs a walk through all processes.
func (s *server) sweep() {
	// Two at once would close a mark twice, the second time somebody else's descriptor.
	if !s.sweeping.TryLock() {
		return
	}
	defer s.sweeping.Unlock()
	const least = 32
	var exited []*command
	s.mu.Lock()
	if len(s.commands)-len(s.byPid) >= max(s.sweepAt, least) {
		for _, c := range s.commands {
			if c.exited {
				exited = append(exited, c)
			}
		}
	}
	s.mu.Unlock()
	if len(exited) == 0 {
		return
	}
	// Only now: of a command that exits meanwhile it says nothing.
	alive := s.proc.marks()
	s.mu.Lock()
	defer s.mu.Unlock()
	left := 0
	for _, c := range exited {
		c.closeHungUp()
		if alive[c.mark.inode] || c.streams != [2]int{-1, -1} {
			left++
			continue
		}
		c.mark.release()
		delete(s.commands, c.id)
	}
	s.sweepAt = 2 * left
}

// closeHungUp closes the streams that nobody writes to any more: they have done
// what they were kept for, whether or not the supervisor has read to the end.
func (c *command) closeHungUp() {
	for i, fd := range c.streams {
		if fd >= 0 && hungUp(fd) {
			_ = unix.Close(fd)
			c.streams[i] = -1
		}
	}
}

// hungUp tells whether nobody is left who could write to the pipe.
func hungUp(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	_, _ = unix.Poll(poll, 0)
	return poll[0].Revents&unix.POLLHUP != 0
}
