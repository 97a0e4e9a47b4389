package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// withHome is a template that has a home, and was built with a file in it.
var withHome = TemplateRef{Key: "t", Home: true}

func makeTemplateWithHome(t *testing.T, s *Store) {
	t.Helper()
	st, reused, err := s.BeginTemplate(t.Context(), withHome, nil)
	require.NoError(t, err)
	require.False(t, reused)
	writeInHome(t, st.Workspace(), ".config/tool", "template's")
	require.NoError(t, os.WriteFile(filepath.Join(st.Workspace().Path(), "f"), nil, 0o644))
	require.NoError(t, st.Publish(t.Context()))
}

func writeInHome(t *testing.T, ws *Workspace, name, content string) {
	t.Helper()
	home, err := ws.OpenHome(t.Context())
	require.NoError(t, err)
	defer home.Dir.Close()
	opened, err := home.Dir.Stat()
	require.NoError(t, err)
	named, err := os.Stat(home.Path)
	require.NoError(t, err)
	require.True(t, os.SameFile(opened, named))
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(home.Path, name)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(home.Path, name), []byte(content), 0o644))
}

func readInHome(t *testing.T, ws *Workspace, name string) string {
	t.Helper()
	home, err := ws.OpenHome(t.Context())
	require.NoError(t, err)
	defer home.Dir.Close()
	data, err := os.ReadFile(filepath.Join(home.Path, name))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return ""
	}
	return string(data)
}

func newSession(t *testing.T, s *Store, key string, made NewSession) *Workspace {
	t.Helper()
	ws, err := s.OpenSession(t.Context(), key, made)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

func TestHome_IsClonedWithTheTemplateAndIsTheSessionsOwn(t *testing.T) {
	s := open(t)
	makeTemplateWithHome(t, s)
	made := NewSession{Template: &withHome, Home: true}
	one, other := newSession(t, s, "one", made), newSession(t, s, "other", made)
	require.Equal(t, "template's", readInHome(t, one, ".config/tool"))
	writeInHome(t, one, ".config/tool", "one's")
	require.Equal(t, "one's", readInHome(t, newSession(t, s, "one", made), ".config/tool"), "as durable as the workspace")
	require.Equal(t, "template's", readInHome(t, other, ".config/tool"))
	require.NoFileExists(t, filepath.Join(one.Path(), ".config/tool"))
	require.Equal(t, filepath.Join(s.dir, "homes", one.ID()), filepath.Join(s.dir, "homes", SessionID("one")))

	info, err := os.Stat(s.path(kindHome, one.ID()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestHome_OfATemplateWithoutOneIsEmpty(t *testing.T) {
	s := open(t)
	makeTemplate(t, s, "t", map[string]string{"f": ""})
	_, err := s.OpenSession(t.Context(), "s", NewSession{Template: &withHome, Home: true})
	requireCode(t, s, err, errdefs.TemplateNotFound)

	makeTemplateWithHome(t, s)
	require.NoError(t, os.RemoveAll(s.path(KindTemplate, homeOf(TemplateID(withHome)))))
	ws := newSession(t, s, "s", NewSession{Template: &withHome, Home: true})
	require.Empty(t, readInHome(t, ws, ".config/tool"))
	require.FileExists(t, filepath.Join(ws.Path(), "f"))
}

func TestHome_IsMadeForASessionThatHasNone(t *testing.T) {
	s := open(t)
	ws := newSession(t, s, "s", NewSession{})
	require.NoDirExists(t, s.path(kindHome, ws.ID()))
	done := make(chan error)
	for range 8 {
		go func() {
			home, err := ws.OpenHome(context.Background())
			if err == nil {
				err = home.Dir.Close()
			}
			done <- err
		}()
	}
	for range 8 {
		require.NoError(t, <-done)
	}
	writeInHome(t, ws, "f", "kept")
	require.Equal(t, "kept", readInHome(t, ws, "f"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, os.RemoveAll(s.path(kindHome, ws.ID())))
	_, err := ws.OpenHome(ctx)
	requireCode(t, s, err, errdefs.Aborted)

	require.NoError(t, os.WriteFile(s.path(kindHome, ws.ID()), nil, 0o600))
	_, err = ws.OpenHome(t.Context())
	requireCode(t, s, err, errdefs.Corrupt)
}

func TestHome_GoesWithTheSession(t *testing.T) {
	s := open(t)
	ws := newSession(t, s, "s", NewSession{Home: true})
	writeInHome(t, ws, "f", "old")
	require.NoError(t, s.DeleteSession(t.Context(), ws.ID()))
	require.Empty(t, names(t, filepath.Join(s.dir, "homes")))
	again := newSession(t, s, "s", NewSession{Home: true})
	require.Empty(t, readInHome(t, again, "f"))

	// What a process that was killed amid a deletion has left is not the next one's.
	require.NoError(t, os.RemoveAll(again.Path()))
	writeInHome(t, again, "f", "old")
	require.Empty(t, readInHome(t, newSession(t, s, "s", NewSession{Home: true}), "f"))
}

func TestHome_OfATemplateIsPublishedWithItOrNotAtAll(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), withHome, nil)
	require.NoError(t, err)
	writeInHome(t, st.Workspace(), "f", "discarded")
	require.NoError(t, st.Discard())
	require.Empty(t, names(t, filepath.Join(s.dir, "templates")))

	// A home that a killed process has published alone, and a staging of one.
	left := s.path(KindTemplate, homeOf(TemplateID(withHome)))
	require.NoError(t, os.Mkdir(left, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(left, "f"), []byte("left"), 0o600))
	makeTemplateWithHome(t, s)
	ws := newSession(t, s, "s", NewSession{Template: &withHome, Home: true})
	require.Empty(t, readInHome(t, ws, "f"))
	require.Equal(t, "template's", readInHome(t, ws, ".config/tool"))
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), trashPrefix) {
			out = append(out, e.Name())
		}
	}
	return out
}
