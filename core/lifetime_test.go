package core

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/pathfs"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

const patience = 20 * time.Second

// idling is a session whose sandbox may be idle for so long.
func idling(t *testing.T, after time.Duration) *watched {
	t.Helper()
	return watchWith(t, func(req *CreateRequest) { req.Lifetime.IdleTimeoutMs = after.Milliseconds() })
}

func (w *watched) run(text string) string {
	w.t.Helper()
	result, err := w.Run(w.t.Context(), script(text), spec.Limits{})
	require.NoError(w.t, err)
	require.Zero(w.t, result.ExitCode, "%s%s", result.Stdout, result.Stderr)
	return string(result.Stdout)
}

// generations is how many are live.
func (w *watched) generations() int {
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	return len(w.session.live)
}

// requireIdleEnd waits until the session's n-th generation has ended, and was idle.
func (w *watched) requireIdleEnd(n int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return len(w.of(event.CleanupCompleted)) == n }, patience, time.Millisecond)
	require.Equal(w.t, event.ReasonIdle, w.of(event.CleanupStarted)[n-1].Reason)
	require.Zero(w.t, w.generations())
}

func TestIdle_EndsWhenNothingRuns(t *testing.T) {
	w := idling(t, 100*time.Millisecond)
	w.run("echo x > file; echo x > /tmp/file")
	w.requireIdleEnd(1)
	require.Nil(t, w.session.held, "the directory is not held any longer")
	require.Equal(t, "x\n", w.run("cat file; ls /tmp"))
	w.requireIdleEnd(2)
	// Started by a file operation, and missing for good.
	_, err := w.OpenFile(t.Context(), "/tmp/file")
	require.True(t, pathfs.IsMissing(err), "%v", err)
	w.requireIdleEnd(3)
	require.Len(t, w.of(event.GenerationStarted), 3)
}

func TestIdle_WhatRunsKeepsIt(t *testing.T) {
	for name, start := range map[string]func(w *watched, nap string){
		"a command":           func(w *watched, nap string) { w.spawn("exec " + nap) },
		"a child of one":      func(w *watched, nap string) { w.run(nap + " & true") },
		"a daemon":            func(w *watched, nap string) { w.run("( setsid " + nap + " >/dev/null 2>&1 & )") },
		"after another":       func(w *watched, nap string) { w.run("true"); w.run(nap + " & true"); w.run("true") },
		"beside file reading": func(w *watched, nap string) { w.run(nap + " & true"); _, _ = w.OpenFile(w.t.Context(), "/tmp/x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := idling(t, 50*time.Millisecond)
			nap := nap()
			start(w, nap)
			require.Eventually(t, func() bool { return len(pids(nap)) == 1 }, patience, time.Millisecond)
			// Several times what an idle one gets.
			<-time.After(400 * time.Millisecond)
			require.Empty(t, w.of(event.CleanupStarted))
			require.Len(t, pids(nap), 1)
			require.NoError(t, unix.Kill(pids(nap)[0], unix.SIGKILL))
			w.requireIdleEnd(1)
			w.session.mu.Lock()
			defer w.session.mu.Unlock()
			require.Zero(t, w.session.commands)
		})
	}
}

func TestIdle_FileOperationUnderWayKeepsIt(t *testing.T) {
	w := idling(t, 50*time.Millisecond)
	r, err := w.CreateFile(t.Context(), "/tmp/file")
	require.NoError(t, err)
	<-time.After(300 * time.Millisecond)
	require.Equal(t, 1, w.generations())
	_, err = r.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, r.Commit())
	w.requireIdleEnd(1)
}

func TestIdle_NeverWithoutATimeout(t *testing.T) {
	w := idling(t, 0)
	w.run("true")
	other, err := w.client.Create(t.Context(), CreateRequest{
		Sandbox: w.sandbox, SessionKey: "s", NetworkPolicy: spec.DenyAll, Lifetime: spec.Lifetime{IdleTimeoutMs: 50},
	})
	require.NoError(t, err)
	<-time.After(200 * time.Millisecond)
	require.Equal(t, 1, w.generations())
	// The one that used it last decides.
	_, err = other.Run(t.Context(), script("true"), spec.Limits{})
	require.NoError(t, err)
	w.requireIdleEnd(1)
}

// A command that meets an idle end waits for that and has the next sandbox.
func TestIdle_NoCommandIsLostToIt(t *testing.T) {
	w := idling(t, 10*time.Millisecond)
	for range 150 {
		require.Equal(t, "here\n", w.run("echo here"))
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond) //nolint:gosec // no secret
	}
	reasons := w.ends(150)
	require.Equal(t, 150, len(slices.DeleteFunc(reasons, func(r event.Reason) bool { return r != event.ReasonExit })))
	require.Greater(t, len(w.of(event.GenerationStarted)), 1, "none was ended meanwhile")
}
