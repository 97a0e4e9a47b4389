package pathfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/internal/rmtree"
)

// Opener resolves what lies outside the workspace, as the sandbox sees it. Its
// errors hold an errno where the kernel refused. What it returns is the caller's
// to close.
type Opener interface {
	// Open returns a readable descriptor of the regular file at an absolute
	// sandbox path.
	Open(ctx context.Context, path string) (*os.File, error)
	// Parent returns the directory that holds path, and path's last name in it.
	// With follow, a link in the last component is resolved first, dangling or
	// not; with makeParents, missing directories are made with mode 0755.
	Parent(ctx context.Context, path string, follow, makeParents bool) (dir *os.File, name string, err error)
}

// Tree is the file API over one workspace. Its methods may be called
// concurrently. Paths are sandbox paths, absolute or relative to Mount.
//
// Errors are *errdefs.Error: the errno's name as code, ERR_INVALID_ARGUMENT for
// a path that cannot be one, ERR_ABORTED when ctx has ended, ERR_ESCAPE when the
// path kept changing, and what Check returned.
type Tree struct {
	// Root is the workspace's directory. It is borrowed; closing it while an
	// operation runs does that operation no harm.
	Root *os.File
	// Mount is where the sandbox has the workspace: a clean absolute path, such
	// as "/workspace".
	Mount string
	// Opener resolves what leaves the workspace. Nil refuses it with ERR_UNSUPPORTED.
	Opener Opener
	// Check is called once for every operation and ends it when it fails. Nil
	// checks nothing.
	Check func() error

	// noOpenat2 forces the walk by components, as a kernel without openat2 does.
	noOpenat2 bool
}

// IsMissing reports whether err says that there is nothing at a path: ENOENT,
// or ENOTDIR for a path that goes on below a file.
func IsMissing(err error) bool {
	switch errdefs.CodeOf(err) {
	case "ENOENT", "ENOTDIR":
		return true
	}
	return false
}

// dirMode is the mode of directories made on the way to a file, whatever the umask.
const dirMode = 0o755

// maxPath is PATH_MAX, with the NUL.
const maxPath = 4096

// place is where a path points to.
type place struct {
	abs string // as the sandbox sees it, absolute, not folded
	rel string // relative to the root; "" if the path does not begin under Mount
}

// locate says where path points to, without looking at any file. ".." is left
// for whoever resolves it: folding it would be wrong behind a link.
func (t *Tree) locate(path string) (place, error) {
	switch {
	case path == "":
		return place{}, errdefs.Invalid("path", "must not be empty")
	case strings.IndexByte(path, 0) >= 0:
		return place{}, errdefs.Invalid("path", "must not contain NUL")
	case len(path) >= maxPath:
		return place{}, unix.ENAMETOOLONG
	}
	if path[0] != '/' {
		return place{abs: t.Mount + "/" + path, rel: path}, nil
	}
	p := place{abs: path}
	rest := path
	for want := range strings.SplitSeq(strings.Trim(t.Mount, "/"), "/") {
		var got string
		got, rest = next(rest)
		if got != want {
			return p, nil
		}
	}
	if p.rel = strings.TrimLeft(rest, "/"); p.rel == "" {
		p.rel = "."
	}
	return p, nil
}

// next cuts the first component off an absolute path, skipping "." and empty ones.
func next(path string) (name, rest string) {
	for {
		path = strings.TrimLeft(path, "/")
		name, rest = path, ""
		if i := strings.IndexByte(path, '/'); i >= 0 {
			name, rest = path[:i], path[i:]
		}
		if name != "." {
			return name, rest
		}
		path = rest
	}
}

// last cuts off the last component. dir is "." when there is nothing before it,
// and "/" for a path right under the root; slash says that path ends in one.
func last(path string) (dir, name string, slash bool) {
	trimmed := strings.TrimRight(path, "/")
	slash = trimmed != path
	i := strings.LastIndexByte(trimmed, '/')
	dir, name = trimmed[:i+1], trimmed[i+1:]
	if dir == "" {
		dir = "."
	}
	return dir, name, slash
}

// begin checks what every operation checks first.
func (t *Tree) begin(ctx context.Context, op, path string) (place, error) {
	p, err := t.locate(path)
	if err != nil {
		return place{}, fail(op, path, err)
	}
	if ctx.Err() != nil {
		return place{}, errdefs.Abort(ctx, op, path)
	}
	if t.Check != nil {
		if err := t.Check(); err != nil {
			return place{}, fail(op, path, err)
		}
	}
	return p, nil
}

// errNotRegular is returned for FIFOs, devices and sockets.
var errNotRegular = &errdefs.Error{Code: "EINVAL", Msg: "not a regular file", Err: unix.EINVAL}

// errOutside is returned when there is nobody to ask what lies outside the workspace.
var errOutside = &errdefs.Error{Code: errdefs.Unsupported, Msg: "outside the workspace, and no sandbox to resolve it in"}

// fail returns err as the error of op on the sandbox path.
func fail(op, path string, err error) error {
	var known *errdefs.Error
	if !errors.As(err, &known) {
		if errors.Is(err, os.ErrClosed) {
			return &errdefs.Error{Code: errdefs.Closed, Op: op, Path: path, Msg: "closed", Err: err}
		}
		return errdefs.File(op, path, err)
	}
	if known.Op != "" || known.Path != "" {
		return err
	}
	named := *known
	named.Op, named.Path = op, path
	return &named
}

// Open opens the regular file at path for reading. Links are followed. A
// directory is EISDIR, anything else that is no regular file EINVAL; neither
// blocks. A missing file answers true to [IsMissing]. The file is the caller's to
// close.
func (t *Tree) Open(ctx context.Context, path string) (*os.File, error) {
	const op = "read"
	p, err := t.begin(ctx, op, path)
	if err != nil {
		return nil, err
	}
	var f *os.File
	err = unix.EXDEV
	if p.rel != "" {
		err = linux.Hold(t.Root, func(root int) error {
			// O_NONBLOCK: opening a FIFO or a leased file must not wait for anybody.
			fd, err := t.resolve(root, p.rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
			if err != nil {
				return err
			}
			f = os.NewFile(uintptr(fd), path)
			return nil
		})
	}
	if errors.Is(err, unix.EXDEV) {
		if t.Opener == nil {
			return nil, fail(op, path, errOutside)
		}
		f, err = t.Opener.Open(ctx, p.abs)
	}
	if errors.Is(err, unix.ENXIO) {
		err = errNotRegular // a socket
	}
	if err != nil {
		return nil, fail(op, path, err)
	}
	if err := regular(f); err != nil {
		_ = f.Close()
		return nil, fail(op, path, err)
	}
	return f, nil
}

// regular refuses everything but regular files.
func regular(f *os.File) error {
	return linux.Hold(f, func(fd int) error {
		st, err := linux.Fstat(fd)
		if err != nil {
			return err
		}
		return regularMode(st.Mode)
	})
}

func regularMode(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errNotRegular
}

// WriteFile replaces the content of the file at path by data; see [Tree.Create].
func (t *Tree) WriteFile(ctx context.Context, path string, data []byte) error {
	r, err := t.Create(ctx, path)
	if err != nil {
		return err
	}
	const part = 1 << 20 // between two looks at ctx
	for len(data) > 0 {
		if ctx.Err() != nil {
			return errors.Join(errdefs.Abort(ctx, "write", path), r.Discard())
		}
		n := min(part, len(data))
		if _, err := r.Write(data[:n]); err != nil {
			return errors.Join(err, r.Discard())
		}
		data = data[n:]
	}
	return r.Commit()
}

// Remove removes the file or link at path, never what a link points to. A
// directory is EISDIR, as rm has it, unless recursive is set; then the tree is
// removed, directories without permissions included. With force a missing path
// is no error. The workspace itself, "." and ".." are EBUSY. When a recursive
// removal fails, part of the tree is gone.
func (t *Tree) Remove(ctx context.Context, path string, recursive, force bool) error {
	const op = "remove"
	p, err := t.begin(ctx, op, path)
	if err != nil {
		return err
	}
	err = linux.Hold(t.Root, func(root int) error {
		dir, name, slash, err := t.parent(ctx, root, p)
		if err != nil {
			return err
		}
		defer func() { _ = linux.Close(dir) }()
		if slash {
			if err := isDirectory(dir, name); err != nil {
				return err
			}
		}
		if !recursive {
			// EISDIR for a directory, also where the file system says EPERM.
			err := linux.Unlinkat(dir, name, 0)
			if errors.Is(err, unix.EPERM) && isDirectory(dir, name) == nil {
				return unix.EISDIR
			}
			return err
		}
		return rmtree.Remove(ctx, dir, name)
	})
	switch {
	case err == nil:
		return nil
	case force && IsMissing(err) && !errors.Is(err, errLinkSlash):
		return nil
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return errdefs.Abort(ctx, op, path)
	}
	return fail(op, path, err)
}

// errLinkSlash refuses "link/": it is neither the link nor, for a removal, its target.
var errLinkSlash = &errdefs.Error{Code: "ENOTDIR", Msg: "is a link, not a directory", Err: unix.ENOTDIR}

// isDirectory wants name to be a directory, as a trailing slash does.
func isDirectory(dir int, name string) error {
	st, err := linux.Lstatat(dir, name)
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return nil
	case unix.S_IFLNK:
		return errLinkSlash
	}
	return unix.ENOTDIR
}

// parent opens the directory that holds p's last component, which is not followed.
func (t *Tree) parent(ctx context.Context, root int, p place) (dir int, name string, slash bool, err error) {
	above, name, slash := last(p.abs)
	if name == "" || name == "." || name == ".." || p.rel == "." {
		return -1, "", false, unix.EBUSY
	}
	dir, err = -1, unix.EXDEV
	if p.rel != "" {
		above, _, _ := last(p.rel)
		dir, err = t.resolve(root, above, unix.O_PATH|unix.O_DIRECTORY)
	}
	if !errors.Is(err, unix.EXDEV) {
		return dir, name, slash, err
	}
	// Without the trailing slash: the opener is asked for a name.
	dir, name, err = t.outside(ctx, above+name, false, false)
	if err != nil {
		return -1, "", false, err
	}
	// Another way to the workspace itself: emptied first, refused afterwards.
	if same(root, dir, name) {
		_ = linux.Close(dir)
		return -1, "", false, unix.EBUSY
	}
	return dir, name, slash, nil
}

// same reports whether name in dir is the directory root.
func same(root, dir int, name string) bool {
	fd, err := linux.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer func() { _ = linux.Close(fd) }()
	a, errA := linux.Fstat(root)
	b, errB := linux.Fstat(fd)
	return errA == nil && errB == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// outside asks the opener for the directory of an absolute sandbox path. Its
// answer is checked: the process it comes from lives among the sandbox's own.
func (t *Tree) outside(ctx context.Context, abs string, follow, makeParents bool) (int, string, error) {
	if t.Opener == nil {
		return -1, "", errOutside
	}
	f, name, err := t.Opener.Parent(ctx, abs, follow, makeParents)
	if err != nil {
		return -1, "", err
	}
	defer func() { _ = f.Close() }()
	switch {
	case name == "", name == ".", name == "..":
		return -1, "", unix.EBUSY
	case strings.ContainsAny(name, "/\x00"):
		return -1, "", errors.New("the opener answered with a path, not a name")
	}
	dir := -1
	err = linux.Hold(f, func(fd int) error {
		// Opened anew rather than duplicated: this fails unless it is a directory.
		var err error
		dir, err = linux.Openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
		return err
	})
	return dir, name, err
}

// mkdirAll makes the directories of path that are missing, and opens the last.
// Each is reached from the root again, so none is made where a link leads out.
func (t *Tree) mkdirAll(root int, path string) (int, error) {
	parts := split(path)
	dir, err := t.resolve(root, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	for i, name := range parts {
		if name == "" {
			continue
		}
		made, err := makeDir(dir, name)
		_ = linux.Close(dir)
		if err != nil {
			return -1, err
		}
		if dir, err = t.resolve(root, strings.Join(parts[:i+1], "/"), unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, err
		}
		if made {
			t.open(dir)
		}
	}
	return dir, nil
}

// makeDir makes a directory; false means that something of the name was there.
func makeDir(dir int, name string) (bool, error) {
	if name == "." || name == ".." {
		return false, nil
	}
	err := linux.Mkdirat(dir, name, dirMode)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	// A read-only or unwritable directory refuses before it looks whether the
	// name exists; then nothing had to be made.
	if _, statErr := linux.Lstatat(dir, name); statErr == nil {
		return false, nil
	}
	return false, err
}

// open undoes the umask on a directory just made. By descriptor: the name may
// be something else by now, and then nothing but a directory of ours changes.
func (t *Tree) open(dir int) {
	st, err := linux.Fstat(dir)
	if err != nil || st.Mode&0o777 == dirMode || int(st.Uid) != os.Geteuid() {
		return
	}
	// The directory works without, so a refusal is not worth failing for.
	_ = linux.ChmodPath(dir, st.Mode&^uint32(0o777)&0o7777|dirMode)
}
