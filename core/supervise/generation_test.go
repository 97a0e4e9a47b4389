package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/doctor"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// fake is a bwrap that is a shell script.
func fake(t testing.TB, script string) Config {
	t.Helper()
	cfg := config(t, "", bwrap.Request{})
	cfg.Bwrap.Path = filepath.Join(t.TempDir(), "bwrap")
	require.NoError(t, os.WriteFile(cfg.Bwrap.Path, []byte("#!/bin/sh\n"+script+"\n"), 0o755)) //nolint:gosec // a program
	return cfg
}

func TestStart_SetupFailures(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	config(t, "", bwrap.Request{}) // opens what stays open
	before, fdsBefore := children(t), fds(t)
	for name, tc := range map[string]struct {
		script string
		code   errdefs.Code
		detail string
	}{
		"bwrap says why and exits":  {"echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", errdefs.Unavailable, "setting up uid map"},
		"bwrap says nothing":        {"exit 3", errdefs.Unavailable, ""},
		"bwrap hangs":               {"exec 3>&-; exec sleep 100", errdefs.Unavailable, ""},
		"bwrap hangs with init's":   {"exec sleep 100", errdefs.Unavailable, ""},
		"much on stderr":            {"head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", errdefs.Unavailable, "xxx"},
		"init of another version":   {"exec " + self + " helper init", errdefs.Internal, ""},
		"init that talks no sense":  {"printf '[1]' >&3; exec sleep 100", errdefs.Unavailable, ""},
		"end of file on its stdout": {"exec >&-; exec 2>&-; exec sleep 100", errdefs.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fake(t, tc.script)
			cfg.HelloTimeout = time.Second
			g, err := Start(t.Context(), cfg)
			require.Nil(t, g)
			require.Equal(t, tc.code, errdefs.CodeOf(err), "%v", err)
			var e *errdefs.Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, e.Detail, tc.detail)
			require.LessOrEqual(t, len(e.Detail), captureLimit)
			require.NotContains(t, e.Error(), "bwrap:", "bwrap's words belong into the detail")
		})
	}
	require.Equal(t, before, children(t))
	require.Eventually(t, func() bool { return fds(t) <= fdsBefore }, 5*time.Second, 5*time.Millisecond, "%s", fdList())
}

func TestStart_NoProgram(t *testing.T) {
	cfg := config(t, "", bwrap.Request{})
	cfg.Bwrap.Path = "/nonexistent/bwrap"
	_, err := Start(t.Context(), cfg)
	require.Equal(t, errdefs.Unavailable, errdefs.CodeOf(err))
	require.NotEmpty(t, findRemedy(t, err))
}

func findRemedy(t testing.TB, err error) string {
	t.Helper()
	var e *errdefs.Error
	require.ErrorAs(t, err, &e)
	return e.Remedy
}

func TestStart_Cancelled(t *testing.T) {
	cfg := fake(t, "exec sleep 100")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	_, err := Start(ctx, cfg)
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))

	before := children(t)
	ctx, cancelLater := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelLater()
	_, err = Start(ctx, cfg)
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	require.Equal(t, before, children(t))
}

// bwrap's child waits for bwrap's leave to go on, and would wait for ever if bwrap
// were killed before it has given that.
func TestStart_CancelledAtAnyMomentLeavesNothing(t *testing.T) {
	workspace := t.TempDir()
	cfg := config(t, workspace, bwrap.Request{})
	began := 0
	for round := range 300 {
		after := time.Duration(round%60) * 200 * time.Microsecond
		ctx, cancel := context.WithTimeout(t.Context(), after)
		g, err := Start(ctx, cfg)
		cancel()
		if err == nil {
			began++
			stop(t, g)
		} else {
			require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err), "%v", err)
		}
	}
	require.Less(t, began, 300)
	require.Zero(t, orphans(t, workspace))
}

// Everything that a user of the host could read tells nothing.
func TestStart_ShowsNothingToOtherUsers(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "1")
	g, workspace := sandbox(t)
	bwrapPid := g.child.Pid
	for _, pid := range []string{fmt.Sprint(bwrapPid), readFile(t, fmt.Sprintf("/proc/%d/task/%d/children", bwrapPid, bwrapPid))} {
		dir := "/proc/" + strings.TrimSpace(pid)
		cmdline := readFile(t, dir+"/cmdline")
		require.NotContains(t, cmdline, workspace)
		require.NotContains(t, cmdline, "--ro-bind")
		if data, err := os.ReadFile(dir + "/environ"); err == nil {
			require.NotContains(t, string(data), "SECRET_OF_THE_HOST")
			require.LessOrEqual(t, strings.Count(string(data), "="), 1, "bwrap itself adds PWD: %q", data)
		}
	}
	require.NotContains(t, must(t, g, "tr '\\0' '\\n' </proc/1/environ 2>/dev/null || true"), "SECRET_OF_THE_HOST")
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(data)
}

func TestStop_EndsEverythingOnce(t *testing.T) {
	g, _ := sandbox(t)
	marker := fmt.Sprintf("stopped-%d", os.Getpid())
	p := spawn(t, g, bash("trap '' TERM HUP INT; (setsid bash -c 'exec -a "+marker+" sleep 300' &); exec -a "+marker+" sleep 300"))
	require.Eventually(t, func() bool { return marked(marker) == 2 }, 5*time.Second, time.Millisecond)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { stop(t, g) })
	}
	all.Wait()
	require.Zero(t, marked(marker))
	require.Equal(t, killedCode, exitCode(t, p), "a stop kills")

	_, err := g.Spawn(t.Context(), bash("true"))
	require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
	_, err = g.Opener().Open(t.Context(), "/etc/passwd")
	require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
	require.NoError(t, p.Kill(t.Context()))
	stop(t, g)
}

func TestStop_WhileCommandsStart(t *testing.T) {
	for range 10 {
		g, _ := sandbox(t)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				r, err := Run(t.Context(), g, bash("echo x; sleep 100"), Limits{})
				if err != nil {
					if errdefs.CodeOf(err) != errdefs.Closed {
						t.Error(err)
					}
				} else if r.ExitCode != killedCode {
					t.Errorf("exit code %d", r.ExitCode)
				}
			})
		}
		stop(t, g)
		all.Wait()
	}
}

func TestStop_ContextBoundsTheWaitOnly(t *testing.T) {
	g, _ := sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Stop(ctx); err != nil {
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	}
	<-g.Done()
}

func TestGeneration_LeavesNothing(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	cfg := config(t, t.TempDir(), bwrap.Request{})
	before, fdsBefore := children(t), fds(t)
	for i := range rounds {
		g, err := Start(t.Context(), cfg)
		require.NoError(t, err)
		if i%10 == 0 {
			require.Equal(t, "x\n", must(t, g, "echo x"))
			f, err := g.Opener().Open(t.Context(), "/etc/hosts")
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		stop(t, g)
	}
	require.Equal(t, before, children(t))
	require.Eventually(t, func() bool { return fds(t) <= fdsBefore }, 5*time.Second, 5*time.Millisecond, "%d descriptors before", fdsBefore)
}

func TestProbe(t *testing.T) {
	program := config(t, "", bwrap.Request{}).Image
	list, err := Probe(t.Context(), nil, "", testPath, program)
	require.NoError(t, err)
	require.Empty(t, list)

	for name, tc := range map[string]struct {
		bwrap, path string
		want        doctor.Code
	}{
		"missing":      {"", "/nonexistent", doctor.BwrapMissing},
		"not absolute": {"/nonexistent/bwrap", testPath, doctor.BwrapMissing},
		"not bwrap":    {"/bin/true", testPath, doctor.BwrapTooOld},
		"broken":       {fake(t, "[ $1 = --help ] || exit 1; echo '  --args'; echo '  --perms'; echo '  --as-pid-1'").Bwrap.Path, testPath, doctor.SandboxFailed},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Probe(t.Context(), nil, tc.bwrap, tc.path, program)
			require.NoError(t, err)
			require.NotEmpty(t, list)
			require.Equal(t, tc.want, list[0].Code)
		})
	}
}

func TestFindBwrap_NoticesAnotherProgram(t *testing.T) {
	cfg := fake(t, "echo '  --args FD'")
	first, err := FindBwrap(t.Context(), nil, cfg.Bwrap.Path, "")
	require.NoError(t, err)
	require.NoError(t, os.Remove(cfg.Bwrap.Path))
	require.NoError(t, os.WriteFile(cfg.Bwrap.Path, []byte("#!/bin/sh\necho '  --args FD'; echo '  --bind-fd FD DEST'\n"), 0o755)) //nolint:gosec // a program
	second, err := FindBwrap(t.Context(), nil, cfg.Bwrap.Path, "")
	require.NoError(t, err)
	require.NotEqual(t, first.Features, second.Features)
}

func TestProbe_HangingBwrap(t *testing.T) {
	cfg := fake(t, "sleep 100")
	began := time.Now()
	_, err := Probe(t.Context(), nil, cfg.Bwrap.Path, "", cfg.Image)
	require.Error(t, err)
	require.Less(t, time.Since(began), probeTimeout+2*time.Second)
}
