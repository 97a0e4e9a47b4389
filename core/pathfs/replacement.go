package pathfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/atomicfile"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// Replacement is new content for a file, on its way. The old content stays
// until Commit; after a failed Write, a Discard, or the end of the process it is
// still there. It is safe for concurrent use.
type Replacement struct {
	path  string
	check func() error
	file  *atomicfile.File
}

// fileMode is the mode of a file that did not exist before, whatever the umask.
const fileMode = 0o644

// Create begins to replace the content of the file at path. Missing directories
// are made (mode 0755). A link in the last component is followed, even to a name
// that does not exist yet. A directory is EISDIR, anything else that is no
// regular file EINVAL. The replacement must be ended with Commit or Discard.
func (t *Tree) Create(ctx context.Context, path string) (*Replacement, error) {
	const op = "write"
	p, err := t.begin(ctx, op, path)
	if err != nil {
		return nil, err
	}
	var file *atomicfile.File
	err = linux.Hold(t.Root, func(root int) error {
		err := error(unix.EXDEV)
		if p.rel != "" {
			file, err = t.createInside(root, p.rel)
		}
		if errors.Is(err, unix.EXDEV) {
			file, err = t.createOutside(ctx, p.abs)
		}
		return err
	})
	if err != nil {
		return nil, fail(op, path, err)
	}
	return &Replacement{path: path, check: t.Check, file: file}, nil
}

// createInside follows the links of the last component itself, since what is
// replaced is a name in a directory, not what an open file stands for.
func (t *Tree) createInside(root int, rel string) (*atomicfile.File, error) {
	for hop := 0; hop <= maxLinks; hop++ {
		above, name, slash := last(rel)
		if slash || name == "" || name == "." || name == ".." {
			return nil, unix.EISDIR
		}
		dir, err := t.resolve(root, above, unix.O_PATH|unix.O_DIRECTORY)
		if errors.Is(err, fs.ErrNotExist) && hop == 0 {
			// Only for the path asked for; what a link names is not made up.
			dir, err = t.mkdirAll(root, above)
		}
		if err != nil {
			return nil, err
		}
		target, file, err := begin(dir, name)
		_ = linux.Close(dir)
		if err != nil || file != nil {
			return file, err
		}
		if strings.HasPrefix(target, "/") {
			return nil, unix.EXDEV
		}
		if rel = above + "/" + target; len(rel) >= maxPath {
			return nil, unix.ENAMETOOLONG
		}
	}
	return nil, unix.ELOOP
}

// createOutside lets the opener follow the links. One that is there all the
// same was put there since, and the opener is asked again.
func (t *Tree) createOutside(ctx context.Context, abs string) (*atomicfile.File, error) {
	if _, name, slash := last(abs); slash || name == "" || name == "." || name == ".." {
		return nil, unix.EISDIR
	}
	for range maxLinks {
		dir, name, err := t.outside(ctx, abs, true, true)
		if errors.Is(err, unix.EBUSY) {
			return nil, unix.EISDIR // "/", "." or ".." behind a link
		}
		if err != nil {
			return nil, err
		}
		_, file, err := begin(dir, name)
		_ = linux.Close(dir)
		if err != nil || file != nil {
			return file, err
		}
	}
	return nil, errEscape
}

// begin starts to replace name in dir, or returns the target of the link that
// name is.
func begin(dir int, name string) (target string, file *atomicfile.File, err error) {
	opts := atomicfile.Options{Mode: fileMode}
	st, err := linux.Lstatat(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", nil, err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		target, err = linux.Readlinkat(dir, name)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			// No link any more: the name itself, looked at once more.
			return name, nil, nil
		}
		return target, nil, err
	default:
		if err := regularMode(st.Mode); err != nil {
			return "", nil, err
		}
		// Set-id bits are dropped, as writing to the file would drop them.
		opts.Mode = st.Mode & 0o1777
		if int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
			opts.Owner = &atomicfile.Owner{UID: int(st.Uid), GID: int(st.Gid)}
		}
	}
	file, err = atomicfile.Create(dir, name, opts)
	return "", file, err
}

// Write adds p to the new content. After an error, such as ENOSPC, the
// replacement can only be discarded, and the old content stays.
func (r *Replacement) Write(p []byte) (int, error) {
	n, err := r.file.Write(p)
	return n, r.fail(err)
}

// Commit puts the new content in place. When it fails, the old content stays and
// the replacement is over. A second call is ERR_CLOSED.
func (r *Replacement) Commit() error {
	if r.check != nil {
		if err := r.check(); err != nil {
			return errors.Join(r.fail(err), r.Discard())
		}
	}
	return r.fail(r.file.Commit())
}

// Discard drops the new content. After Commit it does nothing.
func (r *Replacement) Discard() error { return r.fail(r.file.Discard()) }

func (r *Replacement) fail(err error) error {
	if err == nil {
		return nil
	}
	return fail("write", r.path, err)
}
