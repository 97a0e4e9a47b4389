// Package treecopy copies a directory tree as it is: links verbatim, hard links
// among the tree's own files, holes, modes, times of files, directories and
// links, owners where the process may give files away, and names byte for byte.
// FIFOs are made anew; sockets and devices are left out and named. Extended
// attributes are not copied.
//
// It goes by directory descriptors and never follows a link. The source must
// not change meanwhile, and nobody else may know the destination: what someone
// hostile could do to either is not looked at.
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// Strategy says how the bytes came to their new place.
type Strategy string

const (
	// Empty means that there was nothing to copy.
	Empty Strategy = "empty"
	// Reflink means that files from 64 KiB on share their blocks with the source.
	Reflink Strategy = "reflink"
	// Copy means that all bytes were copied.
	Copy Strategy = "copy"
)

// Options of a clone. The zero value is the default.
type Options struct {
	// Workers is how many files are copied at once. 0 means one per core, but
	// not more than 4: beyond that, inode creation in the kernel only gets slower.
	Workers int
}

// Result tells what a clone did.
type Result struct {
	Strategy Strategy
	// Skipped has the paths, relative to the source, of the sockets and devices
	// that were left out, in no order.
	Skipped []string
}

const (
	// heldLevels is how many levels of the tree stay open on the way down; what
	// lies above is opened again from the root when it is needed.
	heldLevels = 32
	// batchFiles is how many files of a directory a worker gets at once.
	batchFiles = 32
)

// Clone copies what is in the directory src into the empty directory dst, whose
// mode stays as it is. Both are borrowed. When it fails, the error names the
// path in the source, and dst holds a part that the caller removes; ctx's end is
// such a failure, with its cause.
func Clone(ctx context.Context, src, dst *os.File, opts Options) (Result, error) {
	workers := opts.Workers
	if workers <= 0 {
		workers = min(4, runtime.NumCPU())
	}
	var result Result
	err := linux.Hold(src, func(srcFD int) error {
		return linux.Hold(dst, func(dstFD int) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			c := &clone{
				ctx: ctx, cancel: cancel, src: srcFD, dst: dstFD,
				uid: os.Geteuid(), gid: os.Getegid(),
				linked: map[inode]string{}, work: make(chan batch, workers),
			}
			var running sync.WaitGroup
			for range workers {
				running.Go(c.copyFiles)
			}
			if err := c.walk(); err != nil {
				cancel(err)
			}
			close(c.work)
			running.Wait()
			if err := context.Cause(ctx); err != nil {
				return err // the first failure, or the caller's reason
			}
			result = Result{Strategy: c.strategy(), Skipped: c.skipped}
			return nil
		})
	})
	return result, err
}

type inode struct{ dev, ino uint64 }

// clone is one Clone under way. The walker makes directories, links and FIFOs;
// the workers copy files.
type clone struct {
	ctx      context.Context // of one call, as long as that call
	cancel   context.CancelCauseFunc
	src, dst int // the roots
	uid, gid int
	work     chan batch

	// Of the walker alone.
	some    bool
	skipped []string

	reflink atomic.Int32 // one of the constants below

	mu     sync.Mutex
	linked map[inode]string // files with several names: where the first one is
}

const (
	reflinkUntried = iota
	reflinkWorks
	reflinkRefused
)

func (c *clone) strategy() Strategy {
	switch {
	case !c.some:
		return Empty
	case c.reflink.Load() == reflinkWorks:
		return Reflink
	}
	return Copy
}

// pair is a directory open on both sides. Whoever holds a reference may use it;
// the last one sets the directory's attributes and closes it. Nothing is put
// into the directory afterwards, so its times stay.
type pair struct {
	path     string // relative to the roots; "" is the roots themselves
	src, dst int
	stat     unix.Stat_t
	again    bool // opened once more: its attributes are set already
	refs     atomic.Int32
}

type batch struct {
	dir   *pair
	names []string
}

// level is a directory on the walker's way.
type level struct {
	path string
	dir  *pair // nil while not held
	dirs []string
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func (c *clone) walk() error {
	first, err := c.open(nil, "", ".")
	if err != nil {
		return err
	}
	stack := []level{{dir: first}}
	defer func() {
		for _, l := range stack {
			if l.dir != nil {
				_ = c.release(l.dir)
			}
		}
	}()
	if stack[0].dirs, err = c.list(first); err != nil {
		return err
	}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if len(top.dirs) == 0 {
			dir := top.dir
			stack = stack[:len(stack)-1]
			if dir != nil {
				if err := c.release(dir); err != nil {
					return err
				}
			}
			continue
		}
		if top.dir == nil {
			if top.dir, err = c.reopen(top.path); err != nil {
				return err
			}
		}
		name := top.dirs[len(top.dirs)-1]
		top.dirs = top.dirs[:len(top.dirs)-1]
		sub, err := c.open(top.dir, join(top.path, name), name)
		if err != nil {
			return err
		}
		if len(stack) > heldLevels {
			dir := top.dir
			top.dir = nil
			if err := c.release(dir); err != nil {
				_ = c.release(sub)
				return err
			}
		}
		stack = append(stack, level{path: sub.path, dir: sub})
		if stack[len(stack)-1].dirs, err = c.list(sub); err != nil {
			return err
		}
	}
	return nil
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW

// open opens the directory name on both sides; at the roots, parent is nil.
func (c *clone) open(parent *pair, path, name string) (*pair, error) {
	p := &pair{path: path, src: -1, dst: -1}
	p.refs.Store(1)
	srcDir, dstDir := c.src, c.dst
	if parent != nil {
		srcDir, dstDir = parent.src, parent.dst
	}
	var err error
	if p.src, err = linux.Openat(srcDir, name, dirFlags, 0); err == nil {
		if p.stat, err = linux.Fstat(p.src); err == nil {
			p.dst, err = linux.Openat(dstDir, name, dirFlags, 0)
		}
	}
	if err != nil {
		p.close()
		return nil, at(path, err)
	}
	return p, nil
}

// reopen opens a directory from the roots, in pieces, since paths have a limit
// and trees have not.
func (c *clone) reopen(path string) (*pair, error) {
	p := &pair{path: path, src: -1, dst: -1, again: true}
	p.refs.Store(1)
	var err error
	if p.src, err = openDeep(c.src, path); err == nil {
		p.dst, err = openDeep(c.dst, path)
	}
	if err != nil {
		p.close()
		return nil, at(path, err)
	}
	return p, nil
}

func openDeep(root int, path string) (int, error) {
	const piece = 2048 // below PATH_MAX, above twice the longest name
	fd := -1
	for {
		head := path
		if len(head) > piece {
			head = path[:strings.LastIndexByte(path[:piece], '/')]
		}
		from := root
		if fd >= 0 {
			from = fd
		}
		if head == "" {
			head = "."
		}
		next, err := linux.Openat(from, head, dirFlags, 0)
		if fd >= 0 {
			_ = linux.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		if fd = next; len(head) >= len(path) {
			return fd, nil
		}
		path = path[len(head)+1:]
	}
}

func (p *pair) close() {
	for _, fd := range []int{p.src, p.dst} {
		if fd >= 0 {
			_ = linux.Close(fd)
		}
	}
}

// release gives up a reference.
func (c *clone) release(p *pair) error {
	if p.refs.Add(-1) > 0 {
		return nil
	}
	defer p.close()
	if p.again {
		return nil
	}
	// The root's mode is the caller's business.
	return at(p.path, c.attributes(p.dst, &p.stat, p.path != ""))
}

// attributes gives an open file what st says. The owner comes first: changing it
// clears bits of the mode.
func (c *clone) attributes(fd int, st *unix.Stat_t, mode bool) error {
	if err := c.owner(st, func(uid, gid int) error { return linux.Fchown(fd, uid, gid) }); err != nil {
		return err
	}
	if mode {
		if err := linux.Fchmod(fd, st.Mode&0o7777); err != nil {
			return err
		}
	}
	return linux.Futimens(fd, st.Atim, st.Mtim)
}

// owner keeps a foreign owner where that is allowed.
func (c *clone) owner(st *unix.Stat_t, chown func(uid, gid int) error) error {
	if int(st.Uid) == c.uid && int(st.Gid) == c.gid {
		return nil
	}
	err := chown(int(st.Uid), int(st.Gid))
	// EINVAL: an id that does not exist in this user namespace.
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// list makes everything of p but its files, which go to the workers, and
// returns the names of its directories, made and empty.
func (c *clone) list(p *pair) (dirs []string, err error) {
	var files []string
	send := func() error {
		if len(files) == 0 {
			return nil
		}
		p.refs.Add(1)
		select {
		case c.work <- batch{dir: p, names: files}:
			files = nil
			return nil
		case <-c.ctx.Done():
			p.refs.Add(-1)
			return context.Cause(c.ctx)
		}
	}
	for entry, err := range linux.Entries(p.src) {
		if err != nil {
			return nil, at(p.path, err)
		}
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		c.some = true
		kind := entry.Type
		var st unix.Stat_t
		if kind != unix.DT_REG && kind != unix.DT_DIR {
			if st, err = linux.Lstatat(p.src, entry.Name); err != nil {
				return nil, at(join(p.path, entry.Name), err)
			}
			kind = uint8(st.Mode & unix.S_IFMT >> 12)
		}
		switch kind {
		case unix.DT_REG:
			if files = append(files, entry.Name); len(files) == batchFiles {
				err = send()
			}
		case unix.DT_DIR:
			dirs = append(dirs, entry.Name)
			// Its own mode comes when everything is in it.
			err = linux.Mkdirat(p.dst, entry.Name, 0o700)
		case unix.DT_LNK:
			err = c.link(p, entry.Name, &st)
		case unix.DT_FIFO:
			err = c.fifo(p, entry.Name, &st)
		default:
			c.skipped = append(c.skipped, join(p.path, entry.Name))
		}
		if err != nil {
			return nil, at(join(p.path, entry.Name), err)
		}
	}
	if err := send(); err != nil {
		return nil, err
	}
	// The last entry first out: the walk goes in the order of the listing.
	slices.Reverse(dirs)
	return dirs, nil
}

func (c *clone) link(p *pair, name string, st *unix.Stat_t) error {
	target, err := linux.Readlinkat(p.src, name)
	if err != nil {
		return err
	}
	if first, err := c.first(p, name, st, func() error { return linux.Symlinkat(target, p.dst, name) }); err != nil || !first {
		return err
	}
	return c.finish(p, name, st)
}

func (c *clone) fifo(p *pair, name string, st *unix.Stat_t) error {
	if first, err := c.first(p, name, st, func() error { return linux.Mkfifoat(p.dst, name, 0o600) }); err != nil || !first {
		return err
	}
	if err := c.finish(p, name, st); err != nil {
		return err
	}
	if err := linux.Fchmodat(p.dst, name, st.Mode&0o7777); err != nil {
		return err
	}
	return linux.Lutimensat(p.dst, name, st.Atim, st.Mtim)
}

func (c *clone) finish(p *pair, name string, st *unix.Stat_t) error {
	err := c.owner(st, func(uid, gid int) error { return linux.Lchownat(p.dst, name, uid, gid) })
	if err != nil {
		return err
	}
	return linux.Lutimensat(p.dst, name, st.Atim, st.Mtim)
}

// first calls create for the first name of an inode and links all others to it.
// It creates under the lock, so that whoever finds a name finds the file.
func (c *clone) first(p *pair, name string, st *unix.Stat_t, create func() error) (bool, error) {
	if st.Nlink < 2 {
		return true, create()
	}
	key := inode{uint64(st.Dev), st.Ino}
	path := join(p.path, name)
	c.mu.Lock()
	other, found := c.linked[key]
	if !found {
		defer c.mu.Unlock()
		if err := create(); err != nil {
			return false, err
		}
		c.linked[key] = path
		return true, nil
	}
	c.mu.Unlock()
	dir, base := "", other
	if i := strings.LastIndexByte(other, '/'); i >= 0 {
		dir, base = other[:i], other[i+1:]
	}
	fd, err := openDeep(c.dst, dir)
	if err != nil {
		return false, err
	}
	err = linux.Linkat(fd, base, p.dst, name)
	return false, errors.Join(err, linux.Close(fd))
}

// at names the place in the source where err happened; an error that has a
// place keeps it.
func at(path string, err error) error {
	if err == nil {
		return nil
	}
	var placed *placedError
	if errors.As(err, &placed) {
		return err
	}
	return &placedError{path: path, err: err}
}

type placedError struct {
	path string
	err  error
}

func (e *placedError) Error() string {
	cause := e.err
	// The kernel's name for the call says nothing more than the path does.
	var inner *os.PathError
	if errors.As(cause, &inner) {
		cause = inner.Err
	}
	if e.path == "" {
		return cause.Error()
	}
	return fmt.Sprintf("%q: %v", e.path, cause)
}

func (e *placedError) Unwrap() error { return e.err }
