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

	// mu guards the field below it, and is held while an opener is asked for:
	// whoever comes meanwhile wants that one.
	mu   sync.Mutex
	line *openerLine
}

// openerLine is the conversation with one opener process.
type openerLine struct {
	conn *wire.Conn
	gone chan struct{}

	// mu guards the fields below it.
	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]chan reply
}

// errOpenerGone says that the opener ended, or did not answer.
var errOpenerGone = errors.New("the opener has gone")

// openerPatience is how long an opener may take for an answer. Commands can stop
// it as well as kill it; asked for another, init ends the one that was stopped.
const openerPatience = 5 * time.Second

// Open returns a readable descriptor of the regular file at an absolute sandbox
// path. The errno of a refusal is in the error's chain.
func (o *Opener) Open(ctx context.Context, path string) (*os.File, error) {
	r, err := o.ask(ctx, wire.Message{Kind: wire.KindOpen, Path: path})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(r.fds[0]), path), nil
}

// Parent returns the directory that holds path, and path's last name in it. With
// follow, a link in the last component is resolved first; with makeParents,
// missing directories are made.
func (o *Opener) Parent(ctx context.Context, path string, follow, makeParents bool) (dir *os.File, name string, err error) {
	r, err := o.ask(ctx, wire.Message{Kind: wire.KindParent, Path: path, Follow: follow, MakeParents: makeParents})
	if err != nil {
		return nil, "", err
	}
	return os.NewFile(uintptr(r.fds[0]), path), r.message.Name, nil
}

// ask returns an answer with exactly one descriptor.
func (o *Opener) ask(ctx context.Context, m wire.Message) (reply, error) {
	const attempts = 2
	var err error
	for range attempts {
		var line *openerLine
		if line, err = o.connect(ctx); err != nil {
			return reply{}, err
		}
		var r reply
		if r, err = line.ask(ctx, m); err == nil {
			return r, nil
		}
		if !errors.Is(err, errOpenerGone) {
			return reply{}, err
		}
		o.drop(line)
	}
	if o.g.over() {
		return reply{}, o.g.ended("open")
	}
	return reply{}, &errdefs.Error{
		Code: errdefs.Escape, Op: "open", Path: m.Path,
		Msg: "what resolves paths in the sandbox was ended again and again", Err: err,
	}
}

// connect returns the line to a living opener.
func (o *Opener) connect(ctx context.Context) (*openerLine, error) {
	if ctx.Err() != nil {
		return nil, aborted(ctx, "open")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line != nil && !closed(o.line.gone) {
		return o.line, nil
	}
	id, replies, err := o.g.ask(wire.Message{Kind: wire.KindOpener}, nil)
	if err != nil {
		return nil, err
	}
	select {
	case r, ok := <-replies:
		return o.connected(r, ok)
	case <-ctx.Done():
		o.g.giveUp(id, replies)
		return nil, aborted(ctx, "open")
	}
}

// connected holds o.mu.
func (o *Opener) connected(r reply, ok bool) (*openerLine, error) {
	if !ok {
		return nil, o.g.ended("open")
	}
	if len(r.fds) != 1 {
		closeAll(r.fds)
		return nil, errdefs.File("open", "", syscall.Errno(r.message.Errno))
	}
	conn, err := wire.NewConn(r.fds[0])
	if err != nil {
		return nil, err
	}
	o.line = &openerLine{conn: conn, gone: make(chan struct{}), pending: map[uint64]chan reply{}}
	go o.line.serve()
	return o.line, nil
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

func (l *openerLine) serve() {
	_ = l.receive()
	_ = l.conn.Close()
	l.mu.Lock()
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	close(l.gone)
	for _, replies := range pending {
		close(replies)
	}
}

func (l *openerLine) receive() (err error) {
	defer errdefs.Recover(&err)
	for {
		m, fds, err := l.conn.Recv()
		if err != nil {
			return err
		}
		l.mu.Lock()
		replies := l.pending[m.ID]
		delete(l.pending, m.ID)
		l.mu.Unlock()
		if replies == nil {
			closeAll(fds)
			continue
		}
		replies <- reply{message: m, fds: fds}
	}
}

func (l *openerLine) ask(ctx context.Context, m wire.Message) (reply, error) {
	replies := make(chan reply, 1)
	l.mu.Lock()
	if l.pending == nil {
		l.mu.Unlock()
		return reply{}, errOpenerGone
	}
	l.lastID++
	m.ID = l.lastID
	l.pending[m.ID] = replies
	l.mu.Unlock()
	l.conn.Send(m)

	timer := time.NewTimer(openerPatience)
	defer timer.Stop()
	select {
	case <-timer.C:
		l.giveUp(m.ID, replies)
		return reply{}, errOpenerGone
	case r, ok := <-replies:
		if !ok {
			return reply{}, errOpenerGone
		}
		if r.message.Kind != wire.KindOpened || len(r.fds) != 1 {
			closeAll(r.fds)
			return reply{}, refusal(m, r.message)
		}
		return r, nil
	case <-ctx.Done():
		l.giveUp(m.ID, replies)
		return reply{}, aborted(ctx, "open")
	}
}

// refusal is the opener's errno as it is: the caller names operation and path.
func refusal(asked, m wire.Message) error {
	if m.Errno == 0 {
		return errdefs.File("open", asked.Path, unix.EPROTO)
	}
	return syscall.Errno(m.Errno)
}

func (l *openerLine) giveUp(id uint64, replies <-chan reply) {
	l.mu.Lock()
	_, waiting := l.pending[id]
	delete(l.pending, id)
	l.mu.Unlock()
	if waiting {
		return
	}
	// The answer is in the channel, or about to be; or the line is gone.
	select {
	case r := <-replies:
		closeAll(r.fds)
	case <-l.gone:
		select {
		case r := <-replies:
			closeAll(r.fds)
		default:
		}
	}
}
