package supervise

import (
	"context"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestOpener_SeesWhatTheSandboxSees(t *testing.T) {
	g, workspace := sandbox(t)
	must(t, g, "echo inside >/tmp/f; mkdir /tmp/d; ln -s /tmp/f /workspace/link; ln -s /proc/1/environ /tmp/evil")
	require.NoError(t, os.WriteFile(workspace+"/w", []byte("w"), 0o600))
	for name, tc := range map[string]struct {
		path, want string
		err        error
	}{
		"tmp":       {"/tmp/f", "inside\n", nil},
		"link":      {"/workspace/link", "inside\n", nil},
		"hostname":  {"/etc/hostname", "sandbox\n", nil},
		"missing":   {"/tmp/none", "", unix.ENOENT},
		"not a dir": {"/tmp/f/x", "", unix.ENOTDIR},
		"hidden":    {"/etc/shadow", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := g.Opener().Open(t.Context(), tc.path)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			defer func() { _ = f.Close() }()
			data, err := io.ReadAll(f)
			require.NoError(t, err)
			require.Equal(t, tc.want, string(data))
		})
	}
	_, err := g.Opener().Open(t.Context(), "/tmp/evil")
	require.Error(t, err)

	dir, name, err := g.Opener().Parent(t.Context(), "/tmp/new/deep/file", false, true)
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	require.Equal(t, "file", name)
	require.Equal(t, "/tmp/new/deep\n", must(t, g, "ls -d /tmp/new/deep"))
	_, _, err = g.Opener().Parent(t.Context(), "/tmp/none/file", false, false)
	require.ErrorIs(t, err, unix.ENOENT)
}

func TestOpener_IsReplacedWhenCommandsKillIt(t *testing.T) {
	g, _ := sandbox(t)
	f, err := g.Opener().Open(t.Context(), "/etc/hosts")
	require.NoError(t, err)
	_ = f.Close()
	first := g.opener.line
	// Everything but process 1 and the shell itself.
	must(t, g, "kill -9 -1 || true; true")
	<-first.gone
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := g.Opener().Open(context.Background(), "/etc/hosts")
			if err != nil {
				t.Error(err)
				return
			}
			_ = f.Close()
		})
	}
	all.Wait()
	require.NotSame(t, first, g.opener.line)
}

func TestOpener_IsReplacedWhenCommandsStopIt(t *testing.T) {
	g, _ := sandbox(t)
	f, err := g.Opener().Open(t.Context(), "/etc/hosts")
	require.NoError(t, err)
	_ = f.Close()
	must(t, g, "kill -STOP -1 || true; true")
	f, err = g.Opener().Open(t.Context(), "/etc/hosts")
	require.NoError(t, err)
	_ = f.Close()
}

func TestOpener_UnderConstantFire(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("trap '' TERM; while :; do for s in /proc/[0-9]*; do n=${s#/proc/}; [ $n = 1 ] || [ $n = $$ ] || kill -9 $n 2>/dev/null; done; done"))
	ok := 0
	for range 200 {
		f, err := g.Opener().Open(t.Context(), "/etc/hosts")
		if err == nil {
			ok++
			_ = f.Close()
			continue
		}
		require.Contains(t, []errdefs.Code{errdefs.Escape, "EAGAIN", "EIO"}, errdefs.CodeOf(err), "%v", err)
	}
	t.Logf("%d of 200 went through", ok)
	require.NoError(t, p.Kill(t.Context()))
	f, err := g.Opener().Open(t.Context(), "/etc/hosts")
	require.NoError(t, err)
	_ = f.Close()
}

func TestOpener_Cancelled(t *testing.T) {
	g, _ := sandbox(t)
	before := fds(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := g.Opener().Open(ctx, "/etc/hosts")
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		f, err := g.Opener().Open(ctx, "/etc/hosts")
		cancel()
		if err == nil {
			_ = f.Close()
		} else {
			require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
		}
	}
	f, err := g.Opener().Open(t.Context(), "/etc/hosts")
	require.NoError(t, err)
	_ = f.Close()
	require.Eventually(t, func() bool { return fds(t) <= before+2 }, 5*time.Second, time.Millisecond, "the opener's socket, and what watches it, only")
}
