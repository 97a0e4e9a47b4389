package pathfs

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestReplacement_ModesDoNotDependOnTheUmask(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "file /workspace/script old")
		require.NoError(t, os.Chmod(w.host("/workspace/script"), 0o750|os.ModeSetuid))
		require.NoError(t, os.Link(w.host("/workspace/script"), w.host("/workspace/other")))
		old := unix.Umask(0o077)
		defer unix.Umask(old)
		require.NoError(t, w.WriteFile(t.Context(), "script", []byte("new")))
		require.NoError(t, w.WriteFile(t.Context(), "a/b/new", []byte("new")))
		unix.Umask(old)
		for path, mode := range map[string]os.FileMode{
			"/workspace/script": 0o750, // the set-id bit goes, as with any write
			"/workspace/a":      0o755 | os.ModeDir, "/workspace/a/b": 0o755 | os.ModeDir,
			"/workspace/a/b/new": 0o644,
		} {
			st, err := os.Stat(w.host(path))
			require.NoError(t, err)
			require.Equal(t, mode, st.Mode(), path)
		}
		require.Equal(t, "old", w.content(t, "/workspace/other"), "a hard link keeps the old content")
	})
}

func TestReplacement_KeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root gives files away")
		return
	}
	w := newWorld(t, "file /workspace/f old")
	require.NoError(t, os.Chown(w.host("/workspace/f"), 12345, 12346))
	require.NoError(t, w.WriteFile(t.Context(), "f", []byte("new")))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(w.host("/workspace/f"), &st))
	require.Equal(t, []uint32{12345, 12346, 0o100644}, []uint32{st.Uid, st.Gid, st.Mode})
}

func TestReplacement_ReadOnlyFileFollowsRename(t *testing.T) {
	w := newWorld(t, "file /workspace/f old")
	require.NoError(t, os.Chmod(w.host("/workspace/f"), 0o444))
	require.NoError(t, w.WriteFile(t.Context(), "f", []byte("new")))
	require.Equal(t, "new", w.content(t, "/workspace/f"))
}

func TestReplacement_UnwritableDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root writes everywhere: the case needs an ordinary user")
		return
	}
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "file /workspace/d/f old", "link /workspace/etc /etc")
		require.NoError(t, os.Chmod(w.host("/workspace/d"), 0o555))
		require.NoError(t, os.Chmod(w.host("/etc"), 0o555))
		for _, path := range []string{"d/f", "d/new", "d/e/new", "etc/new", "/etc/hostname"} {
			requireCode(t, w, w.WriteFile(t.Context(), path, []byte("new")), "EACCES")
		}
		requireCode(t, w, w.Remove(t.Context(), "d/f", true, true), "EACCES")
		require.Equal(t, "old", w.content(t, "/workspace/d/f"))
	})
}

func TestReplacement_OldContentUntilCommit(t *testing.T) {
	w := newWorld(t, "file /workspace/f old")
	r, err := w.Create(t.Context(), "f")
	require.NoError(t, err)
	for _, part := range []string{"ne", "", "w"} {
		n, err := r.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
		require.Equal(t, "old", w.content(t, "/workspace/f"))
	}
	require.NoError(t, r.Commit())
	require.Equal(t, "new", w.content(t, "/workspace/f"))
	requireCode(t, w, r.Commit(), errdefs.Closed)
	_, err = r.Write([]byte("x"))
	requireCode(t, w, err, errdefs.Closed)
	require.NoError(t, r.Discard())
	require.Equal(t, "new", w.content(t, "/workspace/f"))
	w.requireClean(t)
}

func TestReplacement_Discard(t *testing.T) {
	w := newWorld(t, "file /workspace/f old")
	r, err := w.Create(t.Context(), "f")
	require.NoError(t, err)
	_, err = r.Write([]byte("new"))
	require.NoError(t, err)
	require.NoError(t, r.Discard())
	require.NoError(t, r.Discard())
	requireCode(t, w, r.Commit(), errdefs.Closed)
	require.Equal(t, "old", w.content(t, "/workspace/f"))
	w.requireClean(t)
}

func TestReplacement_TargetBecameADirectory(t *testing.T) {
	w := newWorld(t)
	r, err := w.Create(t.Context(), "f")
	require.NoError(t, err)
	w.add(t, "dir /workspace/f")
	requireCode(t, w, r.Commit(), "EISDIR")
	w.requireClean(t)
}

func TestReplacement_DirectoryRemovedMeanwhile(t *testing.T) {
	w := newWorld(t, "dir /workspace/d")
	r, err := w.Create(t.Context(), "d/f")
	require.NoError(t, err)
	require.NoError(t, w.Remove(t.Context(), "d", true, false))
	requireCode(t, w, r.Commit(), "ENOENT")
	require.NoError(t, r.Discard())
}

// A file size limit stands in for a full disk: both fail in the middle of a write.
func TestReplacement_FailedWriteKeepsTheOldContent(t *testing.T) {
	w := newWorld(t, "file /workspace/f old")
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	small := limit
	small.Cur = 1 << 16
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &small))
	r, err := w.Create(t.Context(), "f")
	require.NoError(t, err)
	_, writeErr := r.Write(make([]byte, 1<<17))
	_, againErr := r.Write([]byte("x"))
	commitErr := r.Commit()
	wholeErr := w.WriteFile(t.Context(), "f", make([]byte, 1<<17))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	for _, err := range []error{writeErr, againErr, commitErr, wholeErr} {
		requireCode(t, w, err, "EFBIG")
	}
	require.Equal(t, "old", w.content(t, "/workspace/f"))
	w.requireClean(t)
}

func TestReplacement_FullDisk(t *testing.T) {
	w := newWorld(t)
	if err := unix.Mount("tmpfs", w.workspace, "tmpfs", unix.MS_NOSUID, "size=2m"); err != nil {
		require.NotZero(t, os.Geteuid(), "root mounts: %v", err)
		t.Log("only root mounts a small file system")
		return
	}
	t.Cleanup(func() { _ = unix.Unmount(w.workspace, unix.MNT_DETACH) })
	root, err := os.Open(w.workspace)
	require.NoError(t, err)
	defer root.Close()
	w.Root = root
	require.NoError(t, w.WriteFile(t.Context(), "f", bytes.Repeat([]byte("o"), 1<<20)))
	requireCode(t, w, w.WriteFile(t.Context(), "f", make([]byte, 4<<20)), "ENOSPC")
	require.Equal(t, 1<<20, len(w.content(t, "/workspace/f")))
	w.requireClean(t)

	require.NoError(t, unix.Mount("", w.workspace, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	requireCode(t, w, w.WriteFile(t.Context(), "f", nil), "EROFS")
	requireCode(t, w, w.WriteFile(t.Context(), "a/b", nil), "EROFS")
	requireCode(t, w, w.Remove(t.Context(), "f", false, true), "EROFS")
}

func TestReplacement_NoReaderSeesAPart(t *testing.T) {
	w := newWorld(t)
	const size = 1 << 20
	require.NoError(t, w.WriteFile(t.Context(), "f", bytes.Repeat([]byte{0}, size)))
	done := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			data, err := os.ReadFile(w.host("/workspace/f"))
			if err != nil || len(data) != size || bytes.Count(data, data[:1]) != size {
				t.Errorf("torn: %d bytes, %v", len(data), err)
				return
			}
		}
	})
	for i := range 40 {
		require.NoError(t, w.WriteFile(t.Context(), "f", bytes.Repeat([]byte{byte(i)}, size)))
	}
	close(done)
	readers.Wait()
}

func TestReplacement_ManyAtOnce(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			err := w.WriteFile(t.Context(), "a/b/c/f", bytes.Repeat([]byte{byte('a' + i%26)}, 1000))
			if err != nil {
				t.Errorf("write: %v", err)
			}
		})
	}
	all.Wait()
	content := w.content(t, "/workspace/a/b/c/f")
	require.Len(t, content, 1000)
	require.Equal(t, 1000, bytes.Count([]byte(content), []byte(content[:1])))
	w.requireClean(t)
}
