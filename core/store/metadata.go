package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/atomicfile"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

const schemaVersion = 1

// Metadata are the facts about an entry that its directory does not tell.
type Metadata struct {
	SchemaVersion int    `json:"schemaVersion"`
	Kind          Kind   `json:"kind"`
	ID            string `json:"id"`
	// CreatedAt and LastUsedAt are ISO 8601, UTC, with milliseconds.
	CreatedAt  string `json:"createdAt"`
	LastUsedAt string `json:"lastUsedAt"`
	// Tags are the caller's.
	Tags map[string]string `json:"tags,omitempty"`
	// CloneStrategy is how a session was made. Empty means that it is not known.
	CloneStrategy treecopy.Strategy `json:"cloneStrategy,omitempty"`
	// TemplateRevision is the revision of the template, or of the session's template.
	TemplateRevision string `json:"templateRevision,omitempty"`
	// NetworkPolicy is what was explicitly set for the session. Empty means
	// that nothing was.
	NetworkPolicy string `json:"networkPolicy,omitempty"`
}

// iso writes times as JavaScript does.
func iso(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// maxMetadata bounds how much of a file that may be anything is read.
const maxMetadata = 1 << 20

func (s *Store) metadataPath(kind Kind, id string) string {
	return filepath.Join(s.dir, "metadata", kind.dir(), id+".json")
}

// readMetadata returns nil for metadata that are missing or not what this package
// writes: whatever is wrong with them costs nothing but them. Those that only
// cannot be read now, by this process, are an error: a policy may be in them.
func (s *Store) readMetadata(kind Kind, id string) (*Metadata, error) {
	data, err := readSome(s.metadataPath(kind, id))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the metadata: %w", bare(err))
	}
	var m Metadata
	if json.Unmarshal(data, &m) != nil || m.SchemaVersion != schemaVersion || m.Kind != kind || m.ID != id {
		return nil, nil
	}
	return &m, nil
}

// readSome reads what can be metadata of a file.
func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxMetadata))
}

// writeMetadata replaces the metadata of m's entry. The caller holds its key.
func (s *Store) writeMetadata(m *Metadata) error {
	// Strings, a number and a map of strings: Marshal cannot fail.
	data, _ := json.MarshalIndent(m, "", "  ")
	dir, err := os.Open(filepath.Dir(s.metadataPath(m.Kind, m.ID)))
	if err != nil {
		return err
	}
	err = atomicfile.WriteFile(dir, m.ID+".json", append(data, '\n'), 0o600)
	return errors.Join(err, dir.Close())
}

func (s *Store) newMetadata(kind Kind, id string) *Metadata {
	now := iso(s.now())
	return &Metadata{SchemaVersion: schemaVersion, Kind: kind, ID: id, CreatedAt: now, LastUsedAt: now}
}

// changeMetadata reads, changes and writes; the caller holds the key. Metadata
// that were lost begin anew, as old as the directory says.
func (s *Store) changeMetadata(kind Kind, id string, change func(*Metadata)) error {
	st, err := os.Lstat(s.path(kind, id))
	if err != nil {
		return err // no entry, no metadata
	}
	m, err := s.readMetadata(kind, id)
	if err != nil {
		return err
	}
	if m == nil {
		m = s.newMetadata(kind, id)
		m.CreatedAt = iso(st.ModTime())
	}
	m.LastUsedAt = iso(s.now())
	change(m)
	return s.writeMetadata(m)
}

// touchInterval is how exact lastUsedAt is: good enough for ages in days, and
// rare enough to cost nothing.
const touchInterval = time.Minute

// touch notes that an entry was used, unless that was noted a moment ago or
// someone is at its metadata now. It is not worth an error.
func (s *Store) touch(kind Kind, id string) {
	if m, _ := s.readMetadata(kind, id); m != nil {
		last, err := time.Parse(time.RFC3339, m.LastUsedAt)
		// A time in the future is a clock that was wrong once.
		if age := s.now().Sub(last); err == nil && age >= 0 && age < touchInterval {
			return
		}
	}
	key, err := s.locks.TryAcquire(keyLock(kind, id), lease.Exclusive)
	if err != nil {
		return
	}
	err = s.changeMetadata(kind, id, func(*Metadata) {})
	_ = giveBack(key, err)
}

// giveBack ends a hold of a key after changeMetadata said err. The key of an
// entry that does not exist leaves nothing behind.
func giveBack(key lease.Lease, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return key.Discard()
	}
	return key.Release()
}

// keyTime bounds the wait for someone else's change of the metadata.
const keyTime = 10 * time.Second

// setNetworkPolicy writes a session's policy.
func (s *Store) setNetworkPolicy(id, policy string) error {
	const op = "setNetworkPolicy"
	ctx, cancel := context.WithTimeoutCause(context.Background(), keyTime,
		errdefs.New(errdefs.InUse, op, "another process is changing the session"))
	defer cancel()
	key, err := s.locks.Acquire(ctx, keyLock(KindSession, id), lease.Exclusive)
	if err != nil {
		return failed(ctx, op, "lock the session", err)
	}
	err = s.changeMetadata(KindSession, id, func(m *Metadata) { m.NetworkPolicy = policy })
	released := giveBack(key, err)
	if errors.Is(err, fs.ErrNotExist) {
		err = sessionGone(op)
	}
	return failed(ctx, op, "write the metadata", errors.Join(err, released))
}
