package pathfs

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

const (
	// resolveAttempts bounds EAGAIN, which openat2 answers for a path with ".."
	// whenever anything on the machine is renamed meanwhile, so that a sandbox
	// renaming without pause cannot hold us. Against a loop of exchanges on
	// another core about every third attempt was lost.
	resolveAttempts = 128
	// maxLinks is the kernel's own bound on links in one path.
	maxLinks = 40
)

// beneath is how every path in the workspace is resolved.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// errEscape says that resolveAttempts were used up.
var errEscape = &errdefs.Error{
	Code: errdefs.Escape,
	Msg:  "the path kept changing while it was resolved",
}

// resolve opens path from root and never leaves root; EXDEV says that path
// leads out of it. The last component is followed.
func (t *Tree) resolve(root int, path string, flags int) (int, error) {
	for range resolveAttempts {
		fd, err := t.resolveOnce(root, path, flags)
		if !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	return -1, errEscape
}

func (t *Tree) resolveOnce(root int, path string, flags int) (int, error) {
	if !t.noOpenat2 {
		fd, err := linux.Openat2(root, path, flags, 0, beneath)
		// EPERM is the answer of a container's seccomp filter; nothing that is
		// opened here can cause it otherwise. Asked anew each time: a filter may
		// be installed later, and the failing call costs next to nothing.
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return fd, err
		}
	}
	w := walker{root: root, at: -1, todo: split(path)}
	defer w.close()
	return w.open(flags)
}

// walker resolves a path one component at a time, with the same answers as
// openat2 with RESOLVE_BENEATH. It never opens "..": going up means to walk
// again, from the root, the directories it came through. Should one of them
// have been replaced, that is EAGAIN.
type walker struct {
	root  int
	at    int      // the directory reached, O_PATH; -1 is root
	via   []string // the real directories between root and at
	todo  []string // components still ahead; "" stands for a trailing slash
	links int
}

// split cuts a path into components. A trailing slash leaves "" at the end: what
// it follows must be a directory.
func split(path string) []string {
	var out []string
	for part := range strings.SplitSeq(path, "/") {
		if part != "" {
			out = append(out, part)
		}
	}
	if strings.HasSuffix(path, "/") {
		out = append(out, "")
	}
	return out
}

func (w *walker) close() {
	if w.at >= 0 {
		_ = linux.Close(w.at)
	}
}

func (w *walker) dir() int {
	if w.at >= 0 {
		return w.at
	}
	return w.root
}

// move makes fd, reached as via, the current directory.
func (w *walker) move(fd int, via []string) {
	w.close()
	w.at, w.via = fd, via
}

func (w *walker) open(flags int) (int, error) {
	for len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if err := w.up(); err != nil {
				return -1, err
			}
			continue
		}
		fd, err := linux.Openat(w.dir(), name, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			return -1, err
		}
		st, err := linux.Fstat(fd)
		if err != nil {
			_ = linux.Close(fd)
			return -1, err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			w.move(fd, append(w.via, name))
		case unix.S_IFLNK:
			err := w.expand(fd)
			_ = linux.Close(fd)
			if err != nil {
				return -1, err
			}
		default:
			_ = linux.Close(fd)
			if len(w.todo) > 0 {
				return -1, unix.ENOTDIR
			}
			return w.final(name, flags)
		}
	}
	return linux.Openat(w.dir(), ".", flags, 0)
}

// final opens what was no link a moment ago.
func (w *walker) final(name string, flags int) (int, error) {
	fd, err := linux.Openat(w.dir(), name, flags|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) {
		return -1, unix.EAGAIN
	}
	return fd, err
}

// expand puts the target of the link fd in front of what is still ahead.
func (w *walker) expand(fd int) error {
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	target, err := linux.Readlinkat(fd, "")
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "/") {
		return unix.EXDEV
	}
	w.todo = append(split(target), w.todo...)
	return nil
}

// up goes to the parent of the directory reached.
func (w *walker) up() error {
	if len(w.via) == 0 {
		return unix.EXDEV
	}
	via := w.via[:len(w.via)-1]
	fd := -1
	for _, name := range via {
		from := w.root
		if fd >= 0 {
			from = fd
		}
		next, err := linux.Openat(from, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if fd >= 0 {
			_ = linux.Close(fd)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return unix.EAGAIN
		}
		if err != nil {
			return err
		}
		fd = next
	}
	w.move(fd, via)
	return nil
}
