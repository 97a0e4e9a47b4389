package pathfs

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

var attackTime = flag.Duration("attack", 300*time.Millisecond, "how long each attack lasts")

// exchange swaps two names without pause until the returned function is called,
// which returns how often it did.
func exchange(t *testing.T, dir, a, b string) (stop func() int64) {
	t.Helper()
	var swaps atomic.Int64
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !end.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, a), unix.AT_FDCWD, filepath.Join(dir, b),
				unix.RENAME_EXCHANGE); err == nil {
				swaps.Add(1)
			}
		}
	}()
	return func() int64 {
		end.Store(true)
		<-done
		return swaps.Load()
	}
}

// Someone in the sandbox exchanges a directory with a link that leads out of
// the workspace to a host directory, as often as the kernel lets them. Whatever
// the opener answers is inside the sandbox, so it is left out here.
func TestAttack_ExchangeOfDirectoryAndLink(t *testing.T) {
	for kind, target := range map[string]string{"absolute": "", "relative": "../outside", "deep": "e/../../outside"} {
		t.Run(kind, func(t *testing.T) {
			both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
				w := newWorld(t, "file /workspace/d/f inside", "dir /workspace/d/sub", "dir /workspace/e",
					"file /outside/f secret", "file /outside/sub/x x")
				if target == "" {
					w.add(t, "link /workspace/l "+w.host("/outside"))
				} else {
					w.add(t, "link /workspace/l "+target)
				}
				before := w.listOutside(t)
				w.Opener = nil
				stop := exchange(t, w.workspace, "d", "l")
				ops, done := attack(t, w)
				swaps := stop()
				t.Logf("%d operations, %d of them done, %d swaps", ops, done, swaps)
				require.NotZero(t, done, "no operation ever went through")
				require.NotZero(t, swaps)
				require.Equal(t, before, w.listOutside(t), "something got out")
				require.Equal(t, "secret", w.content(t, "/outside/f"))
			})
		})
	}
}

func (w *world) listOutside(t *testing.T) (out []string) {
	t.Helper()
	for _, path := range w.list(t) {
		if len(path) >= 8 && path[:8] == "/outside" {
			out = append(out, path)
		}
	}
	return out
}

func attack(t *testing.T, w *world) (ops, done int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *attackTime)
	defer cancel()
	expect := func(err error) {
		ops++
		if err == nil {
			done++
			return
		}
		switch code := errdefs.CodeOf(err); code {
		case errdefs.Unsupported, errdefs.Escape, errdefs.Aborted, "ENOENT", "EAGAIN", "ENOTDIR", "ENOTEMPTY":
		default:
			require.NoError(t, err)
		}
	}
	for ctx.Err() == nil {
		expect(w.WriteFile(ctx, "d/pwn", []byte("pwn")))
		expect(w.WriteFile(ctx, "d/new/pwn", []byte("pwn")))
		expect(w.WriteFile(ctx, "d/../d/pwn", []byte("pwn")))
		f, err := w.Open(ctx, "d/f")
		expect(err)
		if err == nil {
			data, err := io.ReadAll(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.NotEqual(t, "secret", string(data))
		}
		expect(w.Remove(ctx, "d/sub", true, true))
		expect(w.Remove(ctx, "d/pwn", false, true))
	}
	return ops, done
}

// The tree that is removed is exchanged with a link below its top.
func TestAttack_RemoveNeverFollows(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "file /outside/f secret", "file /outside/sub/x x")
		before := w.listOutside(t)
		end := time.Now().Add(*attackTime)
		for time.Now().Before(end) {
			w.add(t, "file /workspace/t/d/f f", "file /workspace/t/d/sub/x x", "link /workspace/t/l "+w.host("/outside"))
			// Without permissions, so that the mode has to be changed on the way.
			require.NoError(t, os.Chmod(w.host("/workspace/t/d/sub"), 0))
			stop := exchange(t, w.host("/workspace/t"), "d", "l")
			err := w.Remove(t.Context(), "t", true, false)
			stop()
			if err != nil {
				require.Contains(t, []errdefs.Code{"EAGAIN", "ENOTEMPTY"}, errdefs.CodeOf(err), "%v", err)
				require.NoError(t, w.Remove(t.Context(), "t", true, true))
			}
		}
		require.Equal(t, before, w.listOutside(t))
	})
}

// A directory of the tree is moved out of it and back while it is removed, so
// that ".." is not where the removal came from.
func TestAttack_RemoveOfAMovedDirectory(t *testing.T) {
	w := newWorld(t, "dir /workspace/aside/x")
	deep := "/workspace/t"
	for range 40 {
		deep += "/d"
	}
	keep := []string{"/workspace/keep/d/f"}
	end := time.Now().Add(*attackTime)
	for time.Now().Before(end) {
		w.add(t, "file "+keep[0]+" keep", "file "+deep+"/f f")
		stop := exchange(t, w.host("/workspace"), filepath.Join("t", deep[len("/workspace/t/"):len("/workspace/t/")+69]), "aside/x")
		err := w.Remove(t.Context(), "t", true, true)
		stop()
		if err != nil {
			require.Contains(t, []errdefs.Code{"EAGAIN", "ENOTEMPTY", "EBUSY"}, errdefs.CodeOf(err), "%v", err)
			require.NoError(t, w.Remove(t.Context(), "t", true, true))
		}
		require.Equal(t, "keep", w.content(t, keep[0]))
		require.NoError(t, w.Remove(t.Context(), "aside", true, true))
		w.add(t, "dir /workspace/aside/x")
	}
}
