package supervise

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// Opener resolves paths inside a generation, by a process of ours in there. It
// implements pathfs.Opener.
//
// Commands run under the same user id and can kill that process. Then the
// generation asks init for another and tries the operation once more; both
// operations can be done twice without harm.
type Opener struct {
	g *Generation

	// mu guards the field below it.
	mu sync.Mutex
	// line is the one that whoever comes next shares, nil when there is none.
	line *openerLine
}

// openerLine is the conversation with one opener process.
type openerLine struct {
	conn *wire.Conn
	// started is closed once init has started the process, or err is set.
	started chan struct{}
	err     error
	gone    chan struct{}

	// mu guards the fields below it.
	mu     sync.Mutex
	lastID uint64
	// asked is nil once the line is gone.
	asked map[uint64]*question
}

// question is a request to an opener that waits for its answer.
type question struct {
	answer chan answer
	// expiry ends the line when no answer comes.
	expiry *time.Timer
	// abandoned is set once nobody waits: the answer, when it comes, is dropped.
	abandoned bool
}

type answer struct {
	message wire.Message
	fds     []int
}

// errOpenerGone says that the opener ended, or did not answer.
var errOpenerGone = errors.New("the opener has gone")

// openerPatience is how long an opener may take for an answer. Commands can stop
// it as well as kill it; asked for another, init ends the one that was stopped.
const openerPatience = 5 * time.Second

// Open returns a readable descriptor of the regular file at an absolute sandbox
// path. The errno of a refusal is in the error's chain.
func (o *Opener) Open(ctx context.Context, path string) (*os.File, error) {
	f, _, err := o.ask(ctx, wire.Message{Kind: wire.KindOpen, Path: path})
	return f, err
}

// Parent returns the directory that holds path, and path's last name in it. With
// follow, a link in the last component is resolved first; with makeParents,
// missing directories are made.
func (o *Opener) Parent(ctx context.Context, path string, follow, makeParents bool) (dir *os.File, name string, err error) {
	return o.ask(ctx, wire.Message{Kind: wire.KindParent, Path: path, Follow: follow, MakeParents: makeParents})
}

// ask returns what was asked for, and the name in the answer.
func (o *Opener) ask(ctx context.Context, m wire.Message) (*os.File, string, error) {
	const attempts = 2
	var err error
	for range attempts {
		var line *openerLine
		if line, err = o.connect(ctx); err != nil {
			return nil, "", err
		}
		var f *os.File
		var name string
		if f, name, err = line.ask(ctx, m); err == nil {
			return f, name, nil
		}
		if !errors.Is(err, errOpenerGone) {
			return nil, "", err
		}
		o.drop(line)
	}
	if o.g.over() {
		return nil, "", o.g.ended("open")
	}
	return nil, "", &errdefs.Error{
		Code: errdefs.Escape, Op: "open", Path: m.Path,
		Msg: "what resolves paths in the sandbox was ended again and again", Err: err,
	}
}

// connect returns the line to a living opener.
func (o *Opener) connect(ctx context.Context) (*openerLine, error) {
	if ctx.Err() != nil {
		return nil, aborted(ctx, "open")
	}
	line, err := o.current()
	if err != nil {
		return nil, err
	}
	select {
	case <-line.started:
		if line.err != nil {
			o.drop(line)
		}
		return line, line.err
	case <-ctx.Done():
		return nil, aborted(ctx, "open") // the start goes on, for the next one
	}
}

// current returns the line there is, or a new one whose opener init is to start.
func (o *Opener) current() (*openerLine, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line != nil && !closed(o.line.gone) {
		return o.line, nil
	}
	// Made by us: of a socket that came from inside, somebody there could keep our end.
	ours, theirs, err := wire.Pair()
	if err != nil {
		return nil, errdefs.File("open", "", err)
	}
	conn, err := wire.NewConn(ours)
	if err != nil {
		_ = unix.Close(theirs)
		return nil, errdefs.File("open", "", err)
	}
	line := &openerLine{
		conn: conn, started: make(chan struct{}), gone: make(chan struct{}), asked: map[uint64]*question{},
	}
	if err := o.g.ask(wire.Message{Kind: wire.KindOpener}, &request{opener: line}, theirs); err != nil {
		_ = conn.Close()
		return nil, err
	}
	o.line = line
	go line.serve()
	return line, nil
}

// drop lets the next call ask for a fresh opener.
func (o *Opener) drop(line *openerLine) {
	_ = line.conn.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line == line {
		o.line = nil
	}
}

// close ends the conversation; the generation has ended.
func (o *Opener) close() {
	o.mu.Lock()
	line := o.line
	o.line = nil
	o.mu.Unlock()
	if line != nil {
		_ = line.conn.Close()
		<-line.gone
	}
}

// begun is init's answer to the request for an opener.
func (l *openerLine) begun(m wire.Message) {
	if m.Kind == wire.KindFailed {
		l.fail(errdefs.File("open", "", syscall.Errno(m.Errno)))
		return
	}
	close(l.started)
}

// fail ends a line whose opener was never started.
func (l *openerLine) fail(err error) {
	l.err = err
	close(l.started)
	_ = l.conn.Close()
}

func (l *openerLine) serve() {
	_ = l.receive()
	_ = l.conn.Close()
	l.mu.Lock()
	asked := l.asked
	l.asked = nil
	l.mu.Unlock()
	close(l.gone)
	for _, q := range asked {
		q.expiry.Stop()
		close(q.answer)
	}
}

// receive hands on answers. What answers nothing that was asked ends the line, so
// that an opener that was taken over can make us do no more than we have asked for.
func (l *openerLine) receive() (err error) {
	defer errdefs.Recover(&err)
	for {
		m, fds, err := l.conn.Recv()
		if err != nil {
			return err
		}
		if !l.take(m, fds) {
			closeAll(fds)
			return errors.New("it answers what nobody asked")
		}
	}
}

// take reports whether the answer is one, and then owns the descriptors.
func (l *openerLine) take(m wire.Message, fds []int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[m.ID]
	if q == nil {
		return false
	}
	delete(l.asked, m.ID)
	q.expiry.Stop()
	if q.abandoned {
		closeAll(fds)
		return true
	}
	q.answer <- answer{m, fds} // has room for the one that comes
	return true
}

func (l *openerLine) ask(ctx context.Context, m wire.Message) (*os.File, string, error) {
	q := &question{answer: make(chan answer, 1)}
	l.mu.Lock()
	if l.asked == nil {
		l.mu.Unlock()
		return nil, "", errOpenerGone
	}
	l.lastID++
	m.ID = l.lastID
	l.asked[m.ID] = q
	q.expiry = time.AfterFunc(openerPatience, func() { _ = l.conn.Close() })
	l.mu.Unlock()
	l.conn.Send(m)

	select {
	case a, ok := <-q.answer:
		if !ok {
			return nil, "", errOpenerGone
		}
		f, err := opened(m, a)
		if errdefs.CodeOf(err) == errdefs.Internal {
			_ = l.conn.Close() // not what we have started
		}
		return f, a.message.Name, err
	case <-ctx.Done():
		l.abandon(m.ID, q)
		return nil, "", aborted(ctx, "open")
	}
}

// opened is the file of an answer. A refusal is the opener's errno as it is: the
// caller names operation and path. The file is looked at, since we are the ones
// who will use it: reading a device, or a file of procfs, can wait for ever.
func opened(asked wire.Message, a answer) (*os.File, error) {
	if a.message.Kind == wire.KindFailed && a.message.Errno > 0 && len(a.fds) == 0 {
		return nil, syscall.Errno(a.message.Errno)
	}
	usable := a.message.Kind == wire.KindOpened && len(a.fds) == 1
	if usable && asked.Kind == wire.KindParent {
		// O_PATH where it may be entered but not listed.
		usable = is(a.fds[0], unix.S_IFDIR, unix.O_RDONLY) || is(a.fds[0], unix.S_IFDIR, unix.O_PATH)
	} else if usable {
		usable = is(a.fds[0], unix.S_IFREG, unix.O_RDONLY)
	}
	var fs unix.Statfs_t
	usable = usable && unix.Fstatfs(a.fds[0], &fs) == nil && fs.Type != unix.PROC_SUPER_MAGIC
	if !usable {
		closeAll(a.fds)
		return nil, &errdefs.Error{
			Code: errdefs.Internal, Op: "open", Path: asked.Path,
			Msg: "what resolves paths in the sandbox gave no proper answer",
		}
	}
	return os.NewFile(uintptr(a.fds[0]), asked.Path), nil
}

// abandon gives a question up. It is known until it is answered, or expires.
func (l *openerLine) abandon(id uint64, q *question) {
	l.mu.Lock()
	_, waiting := l.asked[id]
	q.abandoned = true
	l.mu.Unlock()
	if !waiting {
		a := <-q.answer // there already, or closed as the line ends
		closeAll(a.fds)
	}
}
