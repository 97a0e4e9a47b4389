package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "a", "cache"))
	require.NoError(t, err)
	t.Cleanup(func() {
		requireConsistent(t, s)
		require.NoError(t, s.Close())
	})
	return s
}

// requireConsistent is what holds at any time no call is under way: every
// name is an entry's, and metadata and entries belong together.
func requireConsistent(t *testing.T, s *Store) {
	t.Helper()
	for _, kind := range []Kind{KindSession, KindTemplate} {
		entries, err := os.ReadDir(filepath.Join(s.dir, kind.dir()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a test took it away
		}
		require.NoError(t, err)
		there := map[string]bool{}
		for _, e := range entries {
			require.NotEqual(t, ".", e.Name()[:1], "left behind: %s", e.Name())
			there[e.Name()] = true
		}
		files, err := os.ReadDir(filepath.Join(s.dir, "metadata", kind.dir()))
		require.NoError(t, err)
		for _, f := range files {
			require.True(t, there[strings.TrimSuffix(f.Name(), ".json")], "metadata of nothing: %s", f.Name())
		}
	}
}

func requireCode(t *testing.T, s *Store, err error, code errdefs.Code) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, errdefs.CodeOf(err), "%v", err)
	if s != nil {
		require.NotContains(t, string(errdefs.Marshal(err)), s.dir)
	}
}

func makeTemplate(t *testing.T, s *Store, key string, files map[string]string) {
	t.Helper()
	st, reused, err := s.BeginTemplate(t.Context(), TemplateRef{Key: key}, nil)
	require.NoError(t, err)
	require.False(t, reused)
	for name, content := range files {
		path := filepath.Join(st.Workspace().Path(), name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	require.NoError(t, st.Publish(t.Context()))
}

func metadata(t *testing.T, s *Store, kind Kind, id string) *Metadata {
	t.Helper()
	m, err := s.readMetadata(kind, id)
	require.NoError(t, err)
	return m
}

func openSession(t *testing.T, s *Store, key string, template *TemplateRef) *Workspace {
	t.Helper()
	ws, err := s.OpenSession(t.Context(), key, NewSession{Template: template})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ws.Close()) })
	return ws
}

func TestOpen_ModesDoNotDependOnTheUmask(t *testing.T) {
	parent := t.TempDir()
	old := unix.Umask(0)
	s, err := Open(filepath.Join(parent, "loose"))
	unix.Umask(0o777)
	tight, tightErr := Open(filepath.Join(parent, "tight"))
	unix.Umask(old)
	require.NoError(t, err)
	require.NoError(t, tightErr)
	for _, s := range []*Store{s, tight} {
		makeTemplate(t, s, "t", map[string]string{"f": "f"})
		openSession(t, s, "s", &TemplateRef{Key: "t"})
		require.NoError(t, filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
			require.NoError(t, err)
			st, err := d.Info()
			require.NoError(t, err)
			if filepath.Base(path) == "f" {
				return nil // the template's own
			}
			want := os.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			require.Equal(t, want, st.Mode().Perm(), path)
			return nil
		}))
	}
}

func TestOpen_Refuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "half"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "half/sessions"), nil, 0o644))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	for name, path := range map[string]string{
		"empty": "", "relative": "cache", "NUL": "/tmp/a\x00b", "a file": dir + "/f", "below a file": dir + "/f/x",
		"a file inside": dir + "/half", "a dangling link": dir + "/dangling", "a loop": dir + "/loop", "a long name": dir + "/" + strings.Repeat("n", 300),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(path)
			requireCode(t, nil, err, errdefs.InvalidArgument)
			require.ErrorContains(t, err, "cacheDir")
		})
	}
	for name, mode := range map[string]os.FileMode{"unwritable": 0o555, "unreadable": 0} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() == 0 {
				t.Log("root writes everywhere: the case needs an ordinary user")
				return
			}
			path := filepath.Join(dir, name)
			require.NoError(t, os.Mkdir(path, 0o755))
			require.NoError(t, os.Chmod(path, mode))
			_, err := Open(path)
			requireCode(t, nil, err, "EACCES")
			require.ErrorContains(t, err, path)
			var e *errdefs.Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, e.Remedy, "writable")
		})
	}
}

func TestOpen_ReadOnlyFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=64k"); err != nil {
		require.NotZero(t, os.Geteuid(), "root mounts: %v", err)
		t.Log("only root mounts")
		return
	}
	defer func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	for _, path := range []string{dir, filepath.Join(dir, "cache")} {
		_, err := Open(path)
		requireCode(t, nil, err, "EROFS")
	}
}

func TestStore_Closed(t *testing.T) {
	s, err := Open(t.TempDir())
	require.NoError(t, err)
	ws := openSession(t, s, "s", nil)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.OpenSession(t.Context(), "s", NewSession{})
	requireCode(t, s, err, errdefs.Closed)
	_, _, err = s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	requireCode(t, s, err, errdefs.Closed)
	requireCode(t, s, s.DeleteSession(t.Context(), ws.ID()), errdefs.Closed)
	require.NoError(t, ws.Check(), "a workspace stays valid")
}

func TestIDs(t *testing.T) {
	require.Equal(t, "1add55581aaea687f8c5e7919f217cb6", SessionID("session-key"),
		"the name of a durable session must never change")
	require.Equal(t, "d5c544214de5221460f268cc728b2a11-3f0a99256beeb89a", TemplateID(TemplateRef{Key: "template-key"}))
	require.NotEqual(t, TemplateID(TemplateRef{Key: "k"}), TemplateID(TemplateRef{Key: "k", Revision: "1"}))
	require.NotEqual(t, TemplateID(TemplateRef{Key: "k", Revision: "1"}), TemplateID(TemplateRef{Key: "k", Revision: "2"}))
	require.True(t, isSessionID(SessionID("x")))
	for _, id := range []string{"", "..", "../" + SessionID("x")[3:], strings.ToUpper(SessionID("x")), SessionID("x") + "0"} {
		require.False(t, isSessionID(id), id)
	}
}

func TestMetadata_OnDisk(t *testing.T) {
	s := open(t)
	s.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", 3600)) }
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t", Revision: "r1"}, map[string]string{"agent": "a"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(st.Workspace().Path(), "f"), nil, 0o644))
	require.NoError(t, st.Publish(t.Context()))
	ws, err := s.OpenSession(t.Context(), "s", NewSession{
		Template: &TemplateRef{Key: "t", Revision: "r1"}, Tags: map[string]string{"x": "y"},
	})
	require.NoError(t, err)
	require.NoError(t, ws.SetNetworkPolicy("deny-all"))
	require.NoError(t, ws.Close())
	for path, want := range map[string]string{
		"templates/" + TemplateID(TemplateRef{Key: "t", Revision: "r1"}): `{"schemaVersion":1,"kind":"template","id":"` + TemplateID(TemplateRef{Key: "t", Revision: "r1"}) + `",
			"createdAt":"2026-01-02T02:04:05.678Z","lastUsedAt":"2026-01-02T02:04:05.678Z","tags":{"agent":"a"},"templateRevision":"r1"}`,
		"sessions/" + SessionID("s"): `{"schemaVersion":1,"kind":"session","id":"` + SessionID("s") + `",
			"createdAt":"2026-01-02T02:04:05.678Z","lastUsedAt":"2026-01-02T02:04:05.678Z","tags":{"x":"y"},
			"cloneStrategy":"copy","templateRevision":"r1","networkPolicy":"deny-all"}`,
	} {
		data, err := os.ReadFile(filepath.Join(s.dir, "metadata", path+".json"))
		require.NoError(t, err)
		require.JSONEq(t, want, string(data))
	}
}

func TestMetadata_LostOrBroken(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing":  os.Remove,
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"not JSON": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"another id": func(path string) error {
			return os.WriteFile(path, []byte(`{"schemaVersion":1,"kind":"session","id":"x"}`), 0o600)
		},
		"newer":         func(path string) error { return os.WriteFile(path, []byte(`{"schemaVersion":2}`), 0o600) },
		"other types":   func(path string) error { return os.WriteFile(path, []byte(`{"schemaVersion":"1","tags":[1]}`), 0o600) },
		"a dangling ln": func(path string) error { _ = os.Remove(path); return os.Symlink("nowhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			ws := openSession(t, s, "s", nil)
			require.NoError(t, ws.SetNetworkPolicy("deny-all"))
			require.NoError(t, os.WriteFile(filepath.Join(ws.Path(), "f"), []byte("f"), 0o600))
			require.NoError(t, damage(s.metadataPath(KindSession, ws.ID())))

			again := openSession(t, s, "s", nil)
			require.Equal(t, Existing, again.Strategy())
			require.Empty(t, again.NetworkPolicy())
			require.FileExists(t, filepath.Join(again.Path(), "f"))
			m := metadata(t, s, KindSession, ws.ID())
			require.NotNil(t, m, "written anew")
			require.Empty(t, m.CloneStrategy)
			require.NoError(t, again.SetNetworkPolicy("allow-all"))
			require.Equal(t, "allow-all", openSession(t, s, "s", nil).NetworkPolicy())
		})
	}
	t.Run("a directory", func(t *testing.T) {
		s := open(t)
		ws := openSession(t, s, "s", nil)
		path := s.metadataPath(KindSession, ws.ID())
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.MkdirAll(filepath.Join(path, "x"), 0o700))
		require.Equal(t, Existing, openSession(t, s, "s", nil).Strategy())
		requireCode(t, s, ws.SetNetworkPolicy("x"), "EISDIR")
	})
}

// What cannot be read now may hold a policy: it is not taken for nothing.
func TestMetadata_Unreadable(t *testing.T) {
	s := open(t)
	ws := openSession(t, s, "s", nil)
	require.NoError(t, ws.SetNetworkPolicy("deny-all"))
	t.Run("no descriptor left", func(t *testing.T) {
		restore := leaveDescriptors(t, 1) // for the session's directory
		_, err := s.Attach(t.Context(), ws.ID())
		restore()
		requireCode(t, s, err, "EMFILE")
	})
	t.Run("another user's", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Log("root reads everywhere: the case needs an ordinary user")
			return
		}
		path := s.metadataPath(KindSession, ws.ID())
		require.NoError(t, os.Chmod(path, 0))
		_, err := s.Attach(t.Context(), ws.ID())
		requireCode(t, s, err, "EACCES")
		s.now = func() time.Time { return time.Now().Add(time.Hour) }
		ws.Touch()
		require.NoError(t, os.Chmod(path, 0o600))
	})
	require.Equal(t, "deny-all", openSession(t, s, "s", nil).NetworkPolicy())
}

// leaveDescriptors lets the process open n more descriptors until restore is called.
func leaveDescriptors(t *testing.T, n int) (restore func()) {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: limit.Max}))
	var fillers []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		fillers = append(fillers, fd)
	}
	for _, fd := range fillers[:n] {
		require.NoError(t, unix.Close(fd))
	}
	return func() {
		for _, fd := range fillers[n:] {
			_ = unix.Close(fd)
		}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	}
}

func TestMetadata_Touch(t *testing.T) {
	s := open(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	ws := openSession(t, s, "s", nil)
	used := func() string { return metadata(t, s, KindSession, ws.ID()).LastUsedAt }
	for _, step := range []struct {
		to   time.Duration
		want string
	}{
		{59 * time.Second, "2026-01-01T00:00:00.000Z"},
		{61 * time.Second, "2026-01-01T00:01:01.000Z"},
		{-time.Hour, "2025-12-31T23:00:00.000Z"}, // the clock was wrong before
	} {
		now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(step.to)
		ws.Touch()
		require.Equal(t, step.want, used())
	}
	require.Equal(t, "2026-01-01T00:00:00.000Z", metadata(t, s, KindSession, ws.ID()).CreatedAt)
}

func TestMetadata_ConcurrentChanges(t *testing.T) {
	s := open(t)
	ws := openSession(t, s, "s", nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			ws.Touch()
		}
	}()
	for range 20 {
		require.NoError(t, ws.SetNetworkPolicy("deny-all"))
		require.Equal(t, "deny-all", metadata(t, s, KindSession, ws.ID()).NetworkPolicy)
	}
	<-done
}

func TestWorkspace_Gone(t *testing.T) {
	for name, remove := range map[string]func(s *Store, ws *Workspace) error{
		"removed":   func(_ *Store, ws *Workspace) error { return os.RemoveAll(ws.Path()) },
		"replaced":  func(_ *Store, ws *Workspace) error { _ = os.RemoveAll(ws.Path()); return os.Mkdir(ws.Path(), 0o700) },
		"all of it": func(s *Store, _ *Workspace) error { return os.RemoveAll(s.dir) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			ws := openSession(t, s, "s", nil)
			require.NoError(t, ws.Check())
			require.NoError(t, remove(s, ws))
			requireCode(t, s, ws.Check(), errdefs.SessionGone)
			_, err := ws.AcquireLease(t.Context())
			requireCode(t, s, err, errdefs.SessionGone)
			if name != "replaced" {
				requireCode(t, s, ws.SetNetworkPolicy("x"), errdefs.SessionGone)
				// A cleaner was at work, and the next call makes a new session.
				ws, err = s.OpenSession(t.Context(), "s", NewSession{})
				require.NoError(t, err)
				require.Equal(t, treecopy.Empty, ws.Strategy())
				require.NoError(t, ws.Close())
			}
		})
	}
}

func TestWorkspace_Close(t *testing.T) {
	s := open(t)
	ws := openSession(t, s, "s", nil)
	require.NoError(t, ws.Close())
	require.NoError(t, ws.Close())
	requireCode(t, s, ws.Check(), errdefs.Closed)
	_, err := ws.AcquireLease(t.Context())
	requireCode(t, s, err, errdefs.Closed)
}

func TestMetadata_WireNames(t *testing.T) {
	data, err := json.Marshal(Metadata{})
	require.NoError(t, err)
	require.JSONEq(t, `{"schemaVersion":0,"kind":"","id":"","createdAt":"","lastUsedAt":""}`, string(data))
}
