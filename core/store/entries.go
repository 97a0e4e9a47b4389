package store

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// Entry is what is known of a session, for those who decide what to keep.
type Entry struct {
	ID   string
	Tags map[string]string
	// LastUsedAt falls back to the directory's own time where the metadata are
	// lost or broken, and is never in the future.
	LastUsedAt time.Time
}

// Sessions returns the sessions there are. One that vanishes meanwhile, or that
// cannot be looked at, is not in the list and spoils nothing.
func (s *Store) Sessions() ([]Entry, error) {
	names, err := os.ReadDir(s.path(KindSession, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, bare(err)
	}
	var entries []Entry
	for _, name := range names {
		if !isSessionID(name.Name()) {
			continue
		}
		if e, err := s.entry(name.Name()); err == nil {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

func (s *Store) entry(id string) (Entry, error) {
	st, err := os.Lstat(s.path(KindSession, id))
	if err != nil {
		return Entry{}, bare(err)
	}
	e := Entry{ID: id, LastUsedAt: st.ModTime()}
	if m, _ := s.readMetadata(KindSession, id); m != nil {
		e.Tags = m.Tags
		if last, err := time.Parse(time.RFC3339, m.LastUsedAt); err == nil {
			e.LastUsedAt = last
		}
	}
	if now := s.now(); e.LastUsedAt.After(now) {
		e.LastUsedAt = now
	}
	return e, nil
}
