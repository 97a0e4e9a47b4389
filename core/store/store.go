package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/internal/rmtree"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
)

// Kind tells sessions from templates.
type Kind string

// The kinds.
const (
	KindSession  Kind = "session"
	KindTemplate Kind = "template"
	// kindHome is of the homes that some sessions have beside their workspace. A
	// template's lies beside the template.
	kindHome Kind = "home"
)

// dir is where entries of the kind lie, below the cache directory, its metadata
// directory and its locks.
func (k Kind) dir() string { return string(k) + "s" }

// Store is one cache directory. It is safe for concurrent use, by several
// processes too.
type Store struct {
	dir    string
	locks  lease.Locker
	closed atomic.Bool
	now    func() time.Time
}

// Open opens the store in cacheDir, an absolute path, and makes what is missing:
// directories of mode 0700 whatever the umask is; those that exist keep theirs.
//
// Errors: ERR_INVALID_ARGUMENT for a cacheDir that cannot be one; EACCES, EROFS
// and the like, with a remedy, for one that cannot be written.
func Open(cacheDir string) (*Store, error) {
	switch {
	case cacheDir == "":
		return nil, errdefs.Invalid("cacheDir", "must not be empty")
	case !filepath.IsAbs(cacheDir):
		return nil, errdefs.Invalid("cacheDir", fmt.Sprintf("must be absolute, and %q is not", cacheDir))
	case strings.IndexByte(cacheDir, 0) >= 0:
		return nil, errdefs.Invalid("cacheDir", "must not contain NUL")
	}
	dir := filepath.Clean(cacheDir)
	s := &Store{dir: dir, locks: lease.Local{Dir: filepath.Join(dir, "metadata", "locks")}, now: time.Now}
	if err := s.ensure(); err != nil {
		return nil, cacheDirError(dir, err)
	}
	return s, nil
}

// cacheDirError is for the person who runs the host, so it names the path.
func cacheDirError(dir string, err error) error {
	e := &errdefs.Error{Code: errdefs.CodeOf(err), Op: "cacheDir", Msg: fmt.Sprintf("%q: %v", dir, err), Err: err}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP):
		e.Code = errdefs.InvalidArgument
		e.Remedy = "set cacheDir to a directory, or to a path where one can be made"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Remedy = "free space there, or set cacheDir to another file system"
	default:
		e.Remedy = fmt.Sprintf("make it writable for uid %d, or set cacheDir to a directory that is", os.Geteuid())
	}
	return e
}

// Close ends the use of the store. Workspaces and leases stay valid.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// ensure makes the directories that are missing. It is called before anything
// is built, not only by Open: cleaners of temporary directories take them away
// under a running process.
func (s *Store) ensure() error {
	// What lies above is not ours alone: the usual mode, by the umask.
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o755); err != nil {
		return bare(err)
	}
	for _, name := range []string{
		"", "sessions", "templates", "homes", "metadata", "metadata/sessions", "metadata/templates",
		"metadata/locks", "metadata/locks/sessions", "metadata/locks/templates",
	} {
		if err := ensureDir(filepath.Join(s.dir, name)); err != nil {
			if name != "" {
				return fmt.Errorf("%s: %w", name, err)
			}
			return err
		}
	}
	return nil
}

func ensureDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if err == nil {
		return bare(os.Chmod(path, 0o700))
	}
	if !errors.Is(err, fs.ErrExist) {
		return bare(err)
	}
	switch st, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist): // a dangling link
		return unix.ENOTDIR
	case err != nil:
		return bare(err)
	case !st.IsDir():
		return unix.ENOTDIR
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// bare drops paths of the host from an error.
func bare(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// failed is the error of op, which was doing what. A host path gets into no
// message, since a model may see it.
func failed(ctx context.Context, op, what string, err error) error {
	var known *errdefs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return &errdefs.Error{Code: errdefs.Aborted, Op: op, Msg: "the operation was aborted", Err: err}
	}
	e := &errdefs.Error{Code: errdefs.CodeOf(err), Op: op, Msg: fmt.Sprintf("%s: %v", what, bareText(err)), Err: err}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Remedy = "free space in cacheDir"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		e.Remedy = fmt.Sprintf("cacheDir and what is in it must be writable for uid %d", os.Geteuid())
	}
	return e
}

// bareText keeps the places that treecopy names, which are relative, and drops
// everything else but the errno.
func bareText(err error) error {
	var path *os.PathError
	if errors.As(err, &path) && filepath.IsAbs(path.Path) {
		return bare(err)
	}
	return err
}

func (s *Store) check(op string) error {
	if s.closed.Load() {
		return errdefs.New(errdefs.Closed, op, "the store is closed")
	}
	return nil
}

// SessionID returns the id of a session: the name of its directory.
func SessionID(sessionKey string) string { return digest(sessionKey)[:32] }

// optionsFormat changes when the same options begin to make other templates.
const optionsFormat = 1

// TemplateID returns the id of a template. Beside the key only what changes a
// template's content is in it.
func TemplateID(ref TemplateRef) string {
	// Values only: Marshal cannot fail.
	options, _ := json.Marshal(struct {
		Format           int    `json:"format"`
		TemplateRevision string `json:"templateRevision,omitempty"`
		Home             bool   `json:"home,omitempty"`
	}{optionsFormat, ref.Revision, ref.Home})
	return digest(ref.Key)[:32] + "-" + digest(string(options))[:16]
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// isSessionID keeps paths out of where an id belongs.
func isSessionID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && strings.ToLower(id) == id
}

func (s *Store) path(kind Kind, name string) string { return filepath.Join(s.dir, kind.dir(), name) }

func keyLock(kind Kind, id string) string   { return kind.dir() + "/" + id + ".key" }
func leaseLock(kind Kind, id string) string { return kind.dir() + "/" + id + ".lease" }

// The beginnings of names that are no ids.
const (
	stagingPrefix = ".staging-"
	trashPrefix   = ".trash-"
)

// openEntry opens a session or template; a missing one is fs.ErrNotExist.
func (s *Store) openEntry(kind Kind, id, name string) (*os.File, error) {
	fd, err := linux.Openat(unix.AT_FDCWD, s.path(kind, name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, &errdefs.Error{
			Code: errdefs.Corrupt, Op: string(kind), Msg: fmt.Sprintf("%s %s is not a directory", kind, id),
			Remedy: fmt.Sprintf("remove %s from cacheDir", filepath.Join(kind.dir(), name)), Err: bare(err),
		}
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), id), nil
}

// stage makes the directory in which an entry is built. The caller holds the
// key, so one that exists is what a dead process left.
func (s *Store) stage(ctx context.Context, kind Kind, id string) (*os.File, error) {
	name := stagingPrefix + id
	if err := s.discard(ctx, kind, name); err != nil {
		return nil, err
	}
	if err := os.Mkdir(s.path(kind, name), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.path(kind, name), 0o700); err != nil {
		return nil, err
	}
	return s.openEntry(kind, id, name)
}

// publish gives a staged entry its name; fs.ErrExist if there is one already.
// The caller holds the key.
func (s *Store) publish(kind Kind, id string) error {
	from, to := s.path(kind, stagingPrefix+id), s.path(kind, id)
	err := linux.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// The file system has no such rename. The key keeps others out meanwhile.
		switch _, statErr := os.Lstat(to); {
		case statErr == nil:
			return fs.ErrExist
		case !errors.Is(statErr, fs.ErrNotExist):
			return statErr
		}
		err = linux.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(path string) error {
	fd, err := linux.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = linux.Fsync(fd)
	if errors.Is(err, unix.EINVAL) { // a file system that cannot sync directories
		err = nil
	}
	return errors.Join(err, linux.Close(fd))
}

// aside renames an entry to a trash name, which it returns; "" if there is none.
// From then on the entry is gone, whatever becomes of the trash.
func (s *Store) aside(kind Kind, name string) (string, error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // documented never to fail
	trash := trashPrefix + strings.TrimPrefix(name, stagingPrefix) + "-" + hex.EncodeToString(random[:])
	err := linux.Renameat2(unix.AT_FDCWD, s.path(kind, name), unix.AT_FDCWD, s.path(kind, trash), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return trash, err
}

// removeTrash deletes what aside has renamed.
func (s *Store) removeTrash(ctx context.Context, kind Kind, trash string) error {
	dir, err := linux.Openat(unix.AT_FDCWD, filepath.Join(s.dir, kind.dir()), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = rmtree.Remove(ctx, dir, trash)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, linux.Close(dir))
}

// cleanUpTime bounds the deletion of what nobody will ask for again. What is
// left after it is trash by its name, for prune.
const cleanUpTime = time.Minute

// discard moves an entry out of the way and deletes it. Only the first can
// fail: what cannot be deleted is trash, and in nobody's way.
func (s *Store) discard(ctx context.Context, kind Kind, name string) error {
	trash, err := s.aside(kind, name)
	if err != nil || trash == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	_ = s.removeTrash(ctx, kind, trash)
	return nil
}
