// Package rmtree removes a directory tree that someone hostile may be changing
// at the same time.
//
// It goes by directory descriptors, never follows a link and never crosses into
// another mount. It needs a fixed number of descriptors however deep the tree
// is. Directories whose mode forbids their owner to empty them are given the
// mode 0700 first. What vanishes by itself is fine.
package rmtree

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

const (
	// heldLevels is how many levels of the tree stay open. Below that, the way
	// back up goes through "..", checked against the inode it has to be.
	heldLevels = 32
	// passes bounds how often a directory that refuses to become empty is
	// emptied again, and how often a tree that is moved about is begun anew:
	// someone who creates files without pause must not hold us for ever.
	passes = 16
)

// errMoved says that ".." was not the directory we came from.
var errMoved = errors.New("directory moved while it was removed")

// Remove removes name in dir, whatever it is; what does not exist is ENOENT.
// A tree that keeps changing is ENOTEMPTY or EAGAIN after a bounded effort; a
// mount point inside is EBUSY. When it fails or ctx ends, part of the tree is gone.
func Remove(ctx context.Context, dir int, name string) error {
	err := linux.Unlinkat(dir, name, 0)
	if !isDir(err, dir, name) {
		return err
	}
	for range passes {
		w := walk{ctx: ctx}
		err = w.remove(dir, name)
		w.close()
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	return unix.EAGAIN
}

// isDir reports whether unlink failed because name is a directory. POSIX wants
// EPERM for that, and some file systems obey; but EPERM is also what a sticky
// directory and an immutable file answer.
func isDir(err error, dir int, name string) bool {
	if !errors.Is(err, unix.EPERM) {
		return errors.Is(err, unix.EISDIR)
	}
	st, err := linux.Lstatat(dir, name)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

type level struct {
	name     string // in the directory above
	fd       int    // -1 while not held
	dev, ino uint64
	dirs     []string // subdirectories seen and not yet removed
	passes   int
	opened   bool // mode already made 0700
}

// walk is one attempt. Its stack runs from the tree's root to where it is now.
type walk struct {
	ctx   context.Context
	stack []level
}

func (w *walk) close() {
	for _, l := range w.stack {
		if l.fd >= 0 {
			_ = linux.Close(l.fd)
		}
	}
}

func (w *walk) remove(dir int, name string) error {
	entered, err := w.enter(dir, name)
	if err != nil || !entered {
		return err
	}
	for {
		if err := context.Cause(w.ctx); err != nil {
			return err
		}
		top := &w.stack[len(w.stack)-1]
		if n := len(top.dirs); n > 0 {
			sub := top.dirs[n-1]
			top.dirs = top.dirs[:n-1]
			if _, err := w.enter(top.fd, sub); err != nil {
				return err
			}
			continue
		}
		parent := dir
		if len(w.stack) > 1 {
			if err := w.reopenParent(); err != nil {
				return err
			}
			parent = w.stack[len(w.stack)-2].fd
		}
		done, err := w.leave(parent)
		if err != nil {
			return err
		}
		if done && len(w.stack) == 0 {
			return nil
		}
	}
}

// enter opens the directory name in parent, empties it of all but directories
// and puts it on the stack. False means that there was no directory to enter.
func (w *walk) enter(parent int, name string) (bool, error) {
	fd, opened, err := openDir(parent, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		// Replaced by a file or a link meanwhile.
		return false, w.unlink(parent, name)
	case errors.Is(err, unix.EXDEV):
		return false, unix.EBUSY
	case err != nil:
		return false, err
	}
	st, err := linux.Fstat(fd)
	if err != nil {
		_ = linux.Close(fd)
		return false, err
	}
	w.stack = append(w.stack, level{name: name, fd: fd, dev: uint64(st.Dev), ino: st.Ino, opened: opened})
	// The level above is reopened through ".." when it is needed again.
	if depth := len(w.stack); depth > heldLevels {
		if above := &w.stack[depth-2]; depth-2 >= heldLevels-1 && above.fd >= 0 {
			_ = linux.Close(above.fd)
			above.fd = -1
		}
	}
	return true, w.empty(&w.stack[len(w.stack)-1])
}

// unlink removes what is no directory any more; it may have become one again.
func (w *walk) unlink(parent int, name string) error {
	err := linux.Unlinkat(parent, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if isDir(err, parent, name) {
		return errMoved
	}
	return err
}

// empty unlinks everything in l but directories, whose names it collects.
func (w *walk) empty(l *level) error {
	l.passes++
	if _, err := linux.Seek(l.fd, 0, unix.SEEK_SET); err != nil {
		return err
	}
	l.dirs = nil
	seen := 0
	for entry, err := range linux.Entries(l.fd) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the directory itself was removed
		}
		if err != nil {
			return err
		}
		if seen++; seen%256 == 0 {
			if err := context.Cause(w.ctx); err != nil {
				return err
			}
		}
		if entry.Type == unix.DT_DIR {
			l.dirs = append(l.dirs, entry.Name)
			continue
		}
		err = linux.Unlinkat(l.fd, entry.Name, 0)
		if errors.Is(err, unix.EACCES) && makeWritable(l) {
			err = linux.Unlinkat(l.fd, entry.Name, 0)
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case isDir(err, l.fd, entry.Name):
			l.dirs = append(l.dirs, entry.Name)
		default:
			return err
		}
	}
	return nil
}

// makeWritable gives l the mode 0700, once.
func makeWritable(l *level) bool {
	if l.opened {
		return false
	}
	l.opened = true
	return linux.Fchmod(l.fd, 0o700) == nil
}

// reopenParent opens the level above the current one if it is not held.
func (w *walk) reopenParent() error {
	top, above := &w.stack[len(w.stack)-1], &w.stack[len(w.stack)-2]
	if above.fd >= 0 {
		return nil
	}
	fd, err := linux.Openat(top.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.EACCES) && makeWritable(top) {
		fd, err = linux.Openat(top.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errMoved
	}
	if err != nil {
		return err
	}
	st, err := linux.Fstat(fd)
	if err == nil && (uint64(st.Dev) != above.dev || st.Ino != above.ino) {
		// Someone moved the directory: ".." is a stranger, perhaps outside the tree.
		err = errMoved
	}
	if err != nil {
		_ = linux.Close(fd)
		return err
	}
	above.fd = fd
	return nil
}

// leave removes the current level, empty by now, from parent. False means that
// something was put into it meanwhile and it has been listed again.
func (w *walk) leave(parent int) (bool, error) {
	top := &w.stack[len(w.stack)-1]
	err := linux.Unlinkat(parent, top.name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EACCES) && len(w.stack) > 1 && makeWritable(&w.stack[len(w.stack)-2]) {
		err = linux.Unlinkat(parent, top.name, unix.AT_REMOVEDIR)
	}
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		if top.passes >= passes {
			return false, unix.ENOTEMPTY
		}
		return false, w.empty(top)
	case errors.Is(err, unix.ENOTDIR):
		return false, errMoved
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	_ = linux.Close(top.fd)
	w.stack = w.stack[:len(w.stack)-1]
	return true, nil
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW

// openDir opens a subdirectory for listing; opened says that its mode had to be
// changed for that.
func openDir(parent int, name string) (fd int, opened bool, err error) {
	fd, err = openHere(parent, name, dirFlags)
	if !errors.Is(err, unix.EACCES) {
		return fd, false, err
	}
	// By descriptor, not by name: the name may be a link to anything by now.
	path, err := openHere(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, false, err
	}
	defer func() { _ = linux.Close(path) }()
	if linux.ChmodPath(path, 0o700) != nil {
		return -1, false, unix.EACCES
	}
	fd, err = linux.Openat(path, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return fd, true, err
}

// openHere opens name in parent unless something is mounted on it. Where
// openat2 is missing, a mount is not noticed here, and its root cannot be
// removed: EBUSY in the end.
func openHere(parent int, name string, flags int) (int, error) {
	fd, err := linux.Openat2(parent, name, flags, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV|unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return linux.Openat(parent, name, flags, 0)
	}
	return fd, err
}
