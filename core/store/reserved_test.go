package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func reserve(t *testing.T, s *Store) *Reserved {
	t.Helper()
	r, err := s.Reserve(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Discard()) })
	return r
}

func TestReserved_BecomesTheSessionThatIsMadeNext(t *testing.T) {
	s := open(t)
	makeTemplate(t, s, "t", map[string]string{"f": "template's"})
	r := reserve(t, s)
	reserved, err := os.Stat(r.Workspace().Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), reserved.Mode().Perm())

	ws := newSession(t, s, "s", NewSession{Template: &TemplateRef{Key: "t"}, Reserved: r})
	require.True(t, r.Spent())
	require.True(t, r.Became(ws))
	made, err := os.Stat(ws.Path())
	require.NoError(t, err)
	require.True(t, os.SameFile(reserved, made))
	require.FileExists(t, filepath.Join(ws.Path(), "f"))
	require.NoFileExists(t, filepath.Join(s.dir, "metadata/locks", keyLock(KindSession, r.Workspace().ID())))

	other := newSession(t, s, "other", NewSession{Reserved: r})
	require.False(t, r.Became(other), "it is there once")
	require.NoError(t, r.Discard())
	require.FileExists(t, filepath.Join(ws.Path(), "f"))
}

func TestReserved_IsKeptWhenTheSessionIsThere(t *testing.T) {
	s := open(t)
	newSession(t, s, "s", NewSession{})
	r := reserve(t, s)
	ws := newSession(t, s, "s", NewSession{Reserved: r})
	require.False(t, r.Spent())
	require.False(t, r.Became(ws))
	require.NoError(t, r.Discard())
	require.Equal(t, []string{ws.ID()}, names(t, filepath.Join(s.dir, "sessions")))
}

func TestReserved_ThatIsGoneIsDoneWithout(t *testing.T) {
	s := open(t)
	removed, discarded := reserve(t, s), reserve(t, s)
	require.NoError(t, os.RemoveAll(removed.Workspace().Path()))
	require.NoError(t, discarded.Discard())
	for key, r := range map[string]*Reserved{"a": removed, "b": discarded} {
		ws := newSession(t, s, key, NewSession{Reserved: r})
		require.DirExists(t, ws.Path())
		require.False(t, r.Became(ws))
	}
}

func TestReserved_IsSpentThoughTheSessionFails(t *testing.T) {
	s := open(t)
	r := reserve(t, s)
	_, err := s.OpenSession(t.Context(), "s", NewSession{Template: &TemplateRef{Key: "none"}, Reserved: r})
	requireCode(t, s, err, errdefs.TemplateNotFound)
	require.False(t, r.Spent(), "nothing was made of it")

	makeTemplate(t, s, "t", map[string]string{"f": ""})
	require.NoError(t, os.Mkdir(s.metadataPath(KindSession, SessionID("s")), 0o700))
	_, err = s.OpenSession(t.Context(), "s", NewSession{Template: &TemplateRef{Key: "t"}, Reserved: r})
	require.Error(t, err)
	require.True(t, r.Spent())
	require.NoError(t, os.Remove(s.metadataPath(KindSession, SessionID("s"))))
	require.Empty(t, names(t, filepath.Join(s.dir, "sessions")))
}
