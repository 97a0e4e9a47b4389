package supervise

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

const (
	// silence is how long a stream must have been empty, after the main process
	// has exited, to count as ended: the tail of a pipeline or of a process
	// substitution writes a little later than its shell exits.
	silence = 20 * time.Millisecond
	// lateOutput ends that waiting however much a background child still writes.
	lateOutput = 200 * time.Millisecond

	// heavy is how much lies in the pipe, half of what one holds, when the command
	// writes faster than it is read.
	heavy = 32 << 10
	// wide is the capacity that a heavy stream's pipe gets: the most that every user
	// may ask for. Measured: of 1 GiB each read then brings 16 times as much.
	wide = 1 << 20
	// gathering is how long a read of a heavy stream lets the command go on writing
	// before it takes less than a quarter of the pipe. A reader that takes each page
	// as it comes costs all three sides a switch of threads per page.
	gathering = 200 * time.Microsecond
)

// room makes place for n bytes of output. Asked again it may be the same place.
type room func(n int) []byte

func ownRoom(n int) []byte { return make([]byte, n) }

// stream is the reading end of a command's stdout or stderr. It is pulled:
// nothing is read ahead, so a slow reader makes the command wait; see keep for what
// nobody reads.
type stream struct {
	// gone is called once, without mu, when nobody reads any more although there
	// may still be something. At the end of the pipe it is not: nobody writes there.
	gone func()

	// mu guards the fields below it.
	mu sync.Mutex
	// file is nil once the stream has ended or was discarded.
	file    *os.File
	reading bool
	// seq numbers the reads; cancelled is the read whose caller gave up.
	seq, cancelled uint64
	exitedAt       time.Time
	// rest is what may still be read once lateOutput has passed: what lay in
	// the pipe then. Negative until that is known.
	rest int
	// kept is set once keep has begun to read ahead.
	kept *kept

	// What follows belongs to the read under way.

	// heavy is whether the read before found that much.
	heavy bool
	// tried is set once the pipe was to become wide, and wide if it did.
	tried, wide bool
}

func newStream(file *os.File, gone func()) *stream {
	return &stream{file: file, gone: gone, rest: -1}
}

var longAgo = time.Unix(1, 0)

// errHungUp is the end of the pipe itself: nobody is left who could write to it.
var errHungUp = errors.New("nobody writes any more")

// read returns at least one byte and at most limit, or io.EOF. The bytes lie in a
// place that it has had made once they had come.
func (s *stream) read(ctx context.Context, limit int, place room) ([]byte, error) {
	if limit <= 0 {
		return nil, errdefs.Invalid("maxBytes", "must be positive")
	}
	if ctx.Err() != nil {
		return nil, aborted(ctx, "read")
	}
	s.mu.Lock()
	kept := s.kept
	s.mu.Unlock()
	if kept != nil {
		if data, err := kept.take(limit); len(data) > 0 || err != nil {
			return append(place(len(data))[:0], data...), err
		}
	}
	return s.readPipe(ctx, limit, place)
}

// readPipe is read for what is not kept.
func (s *stream) readPipe(ctx context.Context, limit int, place room) ([]byte, error) {
	s.mu.Lock()
	if s.reading {
		s.mu.Unlock()
		return nil, errdefs.New(errdefs.Busy, "read", "another read of this stream is under way")
	}
	file := s.file
	if file == nil {
		s.mu.Unlock()
		return nil, io.EOF
	}
	s.reading = true
	s.seq++
	seq := s.seq
	s.mu.Unlock()

	stop := context.AfterFunc(ctx, func() { s.interrupt(seq) })
	defer stop()
	data, err := s.pull(ctx, file, seq, limit, place)
	s.mu.Lock()
	s.reading = false
	s.mu.Unlock()
	switch err {
	case errHungUp:
		s.close()
		return nil, io.EOF
	case io.EOF:
		s.discard()
	}
	return data, err
}

// interrupt wakes the given read, if it is still the current one.
func (s *stream) interrupt(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading && s.seq == seq && s.file != nil {
		s.cancelled = seq
		_ = s.file.SetReadDeadline(longAgo)
	}
}

func (s *stream) pull(ctx context.Context, file *os.File, seq uint64, limit int, place room) ([]byte, error) {
	for {
		limit, err := s.arm(ctx, file, seq, limit)
		if err != nil {
			return nil, err
		}
		data, err := s.readAvailable(file, limit, place)
		if len(data) > 0 {
			s.spend(len(data))
			return data, nil
		}
		if err == errHungUp {
			return nil, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, io.EOF // a discard closed the file meanwhile
		}
		s.mu.Lock()
		over := !s.exitedAt.IsZero() && s.cancelled != seq
		s.mu.Unlock()
		if over {
			return nil, io.EOF
		}
	}
}

// arm sets how long the next wait may take and how much may be read.
func (s *stream) arm(ctx context.Context, file *os.File, seq uint64, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancelled == seq {
		return 0, aborted(ctx, "read")
	}
	now := time.Now()
	switch {
	case s.exitedAt.IsZero():
		_ = file.SetReadDeadline(time.Time{})
	case now.Before(s.exitedAt.Add(lateOutput)):
		_ = file.SetReadDeadline(now.Add(silence))
	default:
		if s.rest < 0 {
			s.rest = pending(file)
		}
		if s.rest == 0 {
			return 0, io.EOF
		}
		_ = file.SetReadDeadline(now.Add(silence)) // never waited for: there is something
		limit = min(limit, s.rest)
	}
	return limit, nil
}

func (s *stream) spend(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rest > 0 {
		s.rest -= n
	}
}

// exited tells the stream that the main process is gone.
func (s *stream) exited(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.exitedAt.IsZero() {
		return
	}
	s.exitedAt = now
	if s.file != nil && s.cancelled != s.seq {
		_ = s.file.SetReadDeadline(now.Add(silence))
	}
}

// discard ends the stream. What is written to it from now on is thrown away
// inside the sandbox; a read under way ends.
func (s *stream) discard() {
	if s.close() {
		s.gone()
	}
}

// close closes the file and reports whether it was open.
func (s *stream) close() bool {
	s.mu.Lock()
	file := s.file
	s.file = nil
	s.mu.Unlock()
	if file == nil {
		return false
	}
	_ = file.Close()
	return true
}

// pending returns how many bytes lie in the pipe.
func pending(file *os.File) (n int) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

// readAvailable waits until there is something and takes what there is, up to
// limit. It returns errHungUp at the end, and takes what is there also when the
// deadline has passed.
func (s *stream) readAvailable(file *os.File, limit int, place room) ([]byte, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, io.EOF
	}
	var data []byte
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		data, readErr = s.take(int(fd), limit, place)
		return len(data) > 0 || readErr != nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// It may have passed before we came to look, on a busy host: then there
		// was no look at all, and what is there would be lost.
		_ = raw.Control(func(fd uintptr) { data, readErr = s.take(int(fd), limit, place) })
	}
	if len(data) > 0 {
		return data, nil
	}
	if readErr != nil {
		return nil, readErr
	}
	return nil, err
}

// take reads once, without waiting. It returns nothing when there is nothing, and
// errHungUp at the end of the pipe.
func (s *stream) take(fd, limit int, place room) ([]byte, error) {
	avail := s.available(fd)
	if avail == 0 {
		// Empty or at its end: only a read tells, which here never finds anything
		// unless it came just now.
		var one [1]byte
		n, err := readOnce(fd, one[:])
		if n == 0 {
			return nil, err
		}
		return append(place(1)[:0], one[0]), nil
	}
	data := place(min(avail, limit))
	n, err := readOnce(fd, data)
	return data[:n], err
}

// available returns how much lies in the pipe. It widens the pipe of a heavy
// stream, and gives its command time to write more.
func (s *stream) available(fd int) int {
	avail, _ := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if s.heavy && s.wide && avail > 0 && avail < wide/4 {
		// Nothing waits for it: the pipe has room for as long.
		time.Sleep(gathering) //permit:time.Sleep too short to be worth ending early
		avail, _ = unix.IoctlGetInt(fd, unix.TIOCINQ)
	}
	if avail > 0 {
		s.heavy = avail >= heavy
	}
	if s.heavy && !s.tried {
		s.tried = true
		// A terminal has no such capacity, and an ordinary user whose pipes hold
		// 64 MiB together gets no more: then it stays as it is.
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, wide)
		s.wide = err == nil
	}
	return avail
}

// readOnce reads without waiting. Nothing and no error is an empty pipe.
func readOnce(fd int, data []byte) (int, error) {
	for {
		n, err := unix.Read(fd, data)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.EIO:
			return 0, errHungUp // the end of a terminal
		case err != nil:
			return 0, err
		case n == 0:
			return 0, errHungUp
		default:
			return n, nil
		}
	}
}
