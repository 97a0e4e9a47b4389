package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/lease"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

func TestOpenSession_FromTemplate(t *testing.T) {
	s := open(t)
	makeTemplate(t, s, "t", map[string]string{"d/f": "from the template"})
	ws := openSession(t, s, "s", &TemplateRef{Key: "t"})
	require.Equal(t, SessionID("s"), ws.ID())
	require.Equal(t, filepath.Join(s.dir, "sessions", ws.ID()), ws.Path())
	require.Contains(t, []treecopy.Strategy{treecopy.Copy, treecopy.Reflink}, ws.Strategy())
	data, err := os.ReadFile(filepath.Join(ws.Path(), "d/f"))
	require.NoError(t, err)
	require.Equal(t, "from the template", string(data))

	require.NoError(t, os.WriteFile(filepath.Join(ws.Path(), "d/f"), []byte("changed"), 0o600))
	again := openSession(t, s, "s", &TemplateRef{Key: "t"})
	require.Equal(t, Existing, again.Strategy())
	data, err = os.ReadFile(filepath.Join(again.Path(), "d/f"))
	require.NoError(t, err)
	require.Equal(t, "changed", string(data))
	data, err = os.ReadFile(filepath.Join(s.path(KindTemplate, TemplateID(TemplateRef{Key: "t"})), "d/f"))
	require.NoError(t, err)
	require.Equal(t, "from the template", string(data))
}

func TestOpenSession_Empty(t *testing.T) {
	s := open(t)
	require.Equal(t, treecopy.Empty, openSession(t, s, "s", nil).Strategy())
	makeTemplate(t, s, "t", nil)
	require.Equal(t, treecopy.Empty, openSession(t, s, "s2", &TemplateRef{Key: "t"}).Strategy())
}

func TestOpenSession_MissingTemplate(t *testing.T) {
	s := open(t)
	makeTemplate(t, s, "t", nil)
	for _, ref := range []TemplateRef{{Key: "other"}, {Key: "t", Revision: "2"}} {
		_, err := s.OpenSession(t.Context(), "s", NewSession{Template: &ref})
		requireCode(t, s, err, errdefs.TemplateNotFound)
	}
	require.NoFileExists(t, s.path(KindSession, SessionID("s")))
	openSession(t, s, "s", nil)
	require.Equal(t, Existing, openSession(t, s, "s", &TemplateRef{Key: "other"}).Strategy(),
		"an existing session needs no template")
}

func TestOpenSession_Arguments(t *testing.T) {
	s := open(t)
	_, err := s.OpenSession(t.Context(), "", NewSession{})
	requireCode(t, s, err, errdefs.InvalidArgument)
	for _, key := range []string{"../../x", "a/b", "\x00", "\xff", "."} {
		ws := openSession(t, s, key, nil)
		require.Equal(t, filepath.Join(s.dir, "sessions"), filepath.Dir(ws.Path()))
	}
}

// A session as the original left it: mode 0755, no metadata, or its metadata.
func TestOpenSession_OfTheOriginal(t *testing.T) {
	s := open(t)
	path := s.path(KindSession, SessionID("s"))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, os.Chmod(path, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte("f"), 0o644))
	ws := openSession(t, s, "s", nil)
	require.Equal(t, Existing, ws.Strategy())
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), st.Mode().Perm())
	require.FileExists(t, filepath.Join(path, "f"))
	require.Equal(t, iso(st.ModTime()), metadata(t, s, KindSession, ws.ID()).CreatedAt)
}

func TestOpenSession_NotADirectory(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a link": func(path string) error { return os.Symlink("/", path) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			require.NoError(t, make(s.path(KindSession, SessionID("s"))))
			_, err := s.OpenSession(t.Context(), "s", NewSession{})
			requireCode(t, s, err, errdefs.Corrupt)
			require.NoError(t, s.DeleteSession(t.Context(), SessionID("s")))
			openSession(t, s, "s", nil)
		})
	}
}

func TestOpenSession_Aborted(t *testing.T) {
	s := open(t)
	makeTemplate(t, s, "t", map[string]string{"f": "f"})
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	_, err := s.OpenSession(ctx, "s", NewSession{Template: &TemplateRef{Key: "t"}})
	requireCode(t, s, err, errdefs.Aborted)
	require.ErrorIs(t, err, reason)

	key, err := s.locks.Acquire(t.Context(), keyLock(KindSession, SessionID("s")), lease.Exclusive)
	require.NoError(t, err)
	ctx, cancel = context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.OpenSession(ctx, "s", NewSession{})
		result <- err
	}()
	cancel(reason)
	err = <-result
	requireCode(t, s, err, errdefs.Aborted)
	require.ErrorIs(t, err, reason)
	require.NoError(t, key.Release())
}

func TestOpenSession_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		require.NotZero(t, os.Geteuid(), "root mounts: %v", err)
		t.Log("only root mounts a small file system")
		return
	}
	defer func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	s, err := Open(dir)
	require.NoError(t, err)
	makeTemplate(t, s, "t", map[string]string{"big": string(make([]byte, 600<<10))})
	_, err = s.OpenSession(t.Context(), "s", NewSession{Template: &TemplateRef{Key: "t"}})
	requireCode(t, s, err, "ENOSPC")
	var e *errdefs.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Remedy)
	requireConsistent(t, s)
	require.NoFileExists(t, s.path(KindSession, SessionID("s")))
	require.NoError(t, openSession(t, s, "small", nil).Check())
}

func TestOpenSession_PolicyOfANewSession(t *testing.T) {
	s := open(t)
	open := func(policy string) *Workspace {
		ws, err := s.OpenSession(t.Context(), "s", NewSession{NetworkPolicy: policy})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ws.Close()) })
		return ws
	}
	ws := open("deny-all")
	require.Equal(t, "deny-all", ws.NetworkPolicy())
	require.Equal(t, "deny-all", metadata(t, s, KindSession, ws.ID()).NetworkPolicy)
	require.Equal(t, "deny-all", open("allow-all").NetworkPolicy(), "it is of the session's making")
	require.NoError(t, ws.SetNetworkPolicy("allow-all"))
	require.Equal(t, "allow-all", open("deny-all").NetworkPolicy())

	// What an earlier session of the name left on record says nothing about this one.
	for _, policy := range []string{"deny-all", ""} {
		require.NoError(t, os.RemoveAll(ws.Path()))
		require.Equal(t, policy, open(policy).NetworkPolicy())
		require.Equal(t, policy, metadata(t, s, KindSession, ws.ID()).NetworkPolicy)
		require.Equal(t, policy, open("x").NetworkPolicy())
	}
}

func TestOpenSession_NobodySeesOneWithoutItsPolicy(t *testing.T) {
	s := open(t)
	id := SessionID("s")
	for range 50 {
		seen := make(chan string, 1)
		go func() {
			for {
				ws, err := s.Attach(t.Context(), id)
				if errdefs.CodeOf(err) == errdefs.SessionGone {
					continue
				}
				if err != nil {
					seen <- err.Error()
					return
				}
				policy := ws.NetworkPolicy()
				_ = ws.Close()
				seen <- policy
				return
			}
		}()
		ws, err := s.OpenSession(t.Context(), "s", NewSession{NetworkPolicy: "deny-all"})
		require.NoError(t, err)
		require.NoError(t, ws.Close())
		require.Equal(t, "deny-all", <-seen)
		require.NoError(t, s.DeleteSession(t.Context(), id))
	}
}

func TestOpenSession_PolicyThatCannotBeRecorded(t *testing.T) {
	s := open(t)
	inTheWay := s.metadataPath(KindSession, SessionID("s"))
	require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	_, err := s.OpenSession(t.Context(), "s", NewSession{NetworkPolicy: "deny-all"})
	requireCode(t, s, err, "EISDIR")
	require.NoDirExists(t, s.path(KindSession, SessionID("s")))
	require.NoDirExists(t, s.path(KindSession, stagingPrefix+SessionID("s")))
	require.NoError(t, os.RemoveAll(inTheWay))
	ws, err := s.OpenSession(t.Context(), "s", NewSession{NetworkPolicy: "deny-all"})
	require.NoError(t, err)
	require.NoError(t, ws.Close())
}

func TestDeleteSession(t *testing.T) {
	s := open(t)
	ws := openSession(t, s, "s", nil)
	require.NoError(t, os.MkdirAll(filepath.Join(ws.Path(), "d/e"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(ws.Path(), "d"), 0o555))
	held, err := ws.AcquireLease(t.Context())
	require.NoError(t, err)
	second, err := ws.AcquireLease(t.Context())
	require.NoError(t, err, "leases of users are shared")
	require.NoError(t, second.Release())
	requireCode(t, s, s.DeleteSession(t.Context(), ws.ID()), errdefs.InUse)
	require.NoError(t, ws.Check())
	require.NoError(t, held.Release())

	require.NoError(t, s.DeleteSession(t.Context(), ws.ID()))
	requireCode(t, s, ws.Check(), errdefs.SessionGone)
	requireCode(t, s, ws.SetNetworkPolicy("x"), errdefs.SessionGone)
	ws.Touch()
	require.NoError(t, s.DeleteSession(t.Context(), ws.ID()), "missing is fine")
	for _, dir := range []string{"sessions", "metadata/sessions", "metadata/locks/sessions"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, dir))
		require.NoError(t, err)
		require.Empty(t, entries, dir)
	}
	require.Equal(t, treecopy.Empty, openSession(t, s, "s", nil).Strategy())
	for _, id := range []string{"", "..", "../templates"} {
		requireCode(t, s, s.DeleteSession(t.Context(), id), errdefs.InvalidArgument)
	}
}

func TestPublish_WithoutNoReplace(t *testing.T) {
	s := open(t)
	require.NoError(t, os.Mkdir(s.path(KindSession, stagingPrefix+"x"), 0o700))
	require.NoError(t, os.Mkdir(s.path(KindSession, "x"), 0o700))
	require.ErrorIs(t, s.publish(KindSession, "x"), os.ErrExist, "not even over an empty directory")
	require.NoError(t, os.Remove(s.path(KindSession, "x")))
	require.NoError(t, s.publish(KindSession, "x"))
}
