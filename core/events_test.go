package core

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// watched is a session whose events are kept.
type watched struct {
	t      *testing.T
	client *Client
	*Handle

	// mu guards the field below it.
	mu     sync.Mutex
	events []event.Event
}

func watch(t *testing.T) *watched {
	t.Helper()
	return watchWith(t, func(*CreateRequest) {})
}

// watchWith changes the request for the session.
func watchWith(t *testing.T, change func(*CreateRequest)) *watched {
	t.Helper()
	h := newHost(t)
	return (&watched{t: t, client: h.process()}).open(h.cacheDir, change)
}

// beside opens a session of the same client.
func (w *watched) beside(change func(*CreateRequest)) *watched {
	w.t.Helper()
	return (&watched{t: w.t, client: w.client}).open(w.sandbox.CacheDir, change)
}

func (w *watched) open(cacheDir string, change func(*CreateRequest)) *watched {
	w.t.Helper()
	req := CreateRequest{
		Sandbox:    spec.Sandbox{CacheDir: cacheDir, Path: "/usr/local/bin:/usr/bin:/bin"},
		SessionKey: "s", NetworkPolicy: spec.DenyAll,
		Events: func(e event.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
	change(&req)
	var err error
	w.Handle, err = w.client.Create(w.t.Context(), req)
	require.NoError(w.t, err)
	return w
}

func (w *watched) all() []event.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *watched) of(kind event.Type) (found []event.Event) {
	for _, e := range w.all() {
		if e.Type == kind {
			found = append(found, e)
		}
	}
	return found
}

// only is the session's one generation.
func (w *watched) only() *generation {
	w.t.Helper()
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	require.Len(w.t, w.session.live, 1)
	for g := range w.session.live {
		return g
	}
	return nil
}

// ends waits until n commands are told to have finished, sees to it that each did so
// once and after its start, and returns their reasons.
func (w *watched) ends(n int) (reasons []event.Reason) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return len(w.of(event.CommandFinished)) >= n }, 20*time.Second, time.Millisecond)
	alive, seen := map[string]bool{}, map[string]bool{}
	for _, e := range w.all() {
		switch e.Type {
		case event.CommandStarted:
			require.False(w.t, seen[e.CommandID], "a command started twice")
			alive[e.CommandID], seen[e.CommandID] = true, true
		case event.CommandFinished:
			require.True(w.t, alive[e.CommandID], "a command finished twice, or had not started")
			delete(alive, e.CommandID)
			reasons = append(reasons, e.Reason)
		case event.CleanupCompleted:
			require.Empty(w.t, alive, "told before the end of what it cleaned up")
		}
	}
	require.Empty(w.t, alive)
	require.Len(w.t, reasons, n)
	return reasons
}

func script(text string) spec.Command {
	return spec.Command{Command: text}
}

func (w *watched) spawn(text string) *Process {
	w.t.Helper()
	p, err := w.Spawn(w.t.Context(), script(text))
	if err != nil {
		require.NoError(w.t, err, "%s", errdefs.Marshal(err))
	}
	w.t.Cleanup(p.Release)
	return p
}

var naps atomic.Int64

// nap returns a command that no other test has.
func nap() string { return fmt.Sprintf("sleep 3%d.%d", os.Getpid(), naps.Add(1)) }

// pids returns the host's numbers of the processes that run command.
func pids(command string) (found []int) {
	lists, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lists {
		line, _ := os.ReadFile(name)
		if string(line) == strings.ReplaceAll(command, " ", "\x00")+"\x00" {
			pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
			found = append(found, pid)
		}
	}
	return found
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	pid, err = strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	require.NoError(t, err)
	return pid
}

// panicking is a context that fails whoever wants to hear of its end.
type panicking struct{ context.Context }

func (panicking) AfterFunc(func()) func() bool { panic("a bug") }

// Value keeps package context from finding the one inside.
func (panicking) Value(any) any { return nil }

func TestEvents_ReasonIsWhatEndedTheCommand(t *testing.T) {
	const long = "echo up; exec sleep 300"
	await := func(t *testing.T, p *Process) {
		data, err := p.Read(t.Context(), 1, 100)
		require.NoError(t, err)
		require.Equal(t, "up\n", string(data))
	}
	// dies has a command's parent die, or the parent of that.
	dies := func(up int) func(*testing.T, *watched) {
		return func(t *testing.T, w *watched) {
			command := nap()
			w.spawn("exec " + command)
			require.Eventually(t, func() bool { return len(pids(command)) == 1 }, 20*time.Second, time.Millisecond)
			victim := pids(command)[0]
			for range up {
				victim = parent(t, victim)
			}
			require.NoError(t, unix.Kill(victim, unix.SIGKILL))
		}
	}
	for name, tc := range map[string]struct {
		end  func(t *testing.T, w *watched)
		want event.Reason
		code errdefs.Code
	}{
		"exit": {func(t *testing.T, w *watched) {
			_, err := w.Run(t.Context(), script("exit 3"), spec.Limits{})
			require.NoError(t, err)
		}, event.ReasonExit, ""},
		"its own signal": {func(t *testing.T, w *watched) {
			_, err := w.Run(t.Context(), script("kill -9 $$"), spec.Limits{})
			require.NoError(t, err)
		}, event.ReasonExit, ""},
		"timeout": {func(t *testing.T, w *watched) {
			_, err := w.Run(t.Context(), script(long), spec.Limits{TimeoutMs: 500})
			require.Equal(t, errdefs.Timeout, errdefs.CodeOf(err))
		}, event.ReasonTimeout, errdefs.Timeout},
		"output limit": {func(t *testing.T, w *watched) {
			_, err := w.Run(t.Context(), script("exec yes"), spec.Limits{MaxOutputBytes: 10})
			require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(err))
		}, event.ReasonOutputLimit, errdefs.OutputLimit},
		"abort of a run": {func(t *testing.T, w *watched) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer cancel()
				for len(w.of(event.CommandStarted)) == 0 {
					<-time.After(time.Millisecond)
				}
			}()
			_, err := w.Run(ctx, script(long), spec.Limits{})
			require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
		}, event.ReasonAbort, errdefs.Aborted},
		"abort of a spawn": {func(t *testing.T, w *watched) {
			require.NoError(t, w.spawn(long).Kill(t.Context(), event.ReasonAbort))
		}, event.ReasonAbort, ""},
		"kill, then abort": {func(t *testing.T, w *watched) {
			p := w.spawn(long)
			require.NoError(t, p.Kill(t.Context(), event.ReasonKilled))
			require.NoError(t, p.Kill(t.Context(), event.ReasonAbort))
		}, event.ReasonKilled, ""},
		"abort after the exit": {func(t *testing.T, w *watched) {
			p := w.spawn("exit 4")
			// Before anything of ours but this has heard of the exit.
			_, err := p.process.Wait(t.Context())
			require.NoError(t, err)
			require.NoError(t, p.Kill(t.Context(), event.ReasonAbort))
		}, event.ReasonExit, ""},
		"kill after the stop": {func(t *testing.T, w *watched) {
			p := w.spawn(long)
			require.NoError(t, w.Stop(t.Context()))
			require.NoError(t, p.Kill(t.Context(), event.ReasonKilled))
		}, event.ReasonCleanup, ""},
		"exit while a stop waits": {func(t *testing.T, w *watched) {
			done := w.session.beginFileOp()
			p := w.spawn("echo up; sleep 0.3; exit 5")
			await(t, p)
			stopped := make(chan error)
			go func() { stopped <- w.Stop(t.Context()) }()
			code, err := p.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, 5, code)
			done()
			require.NoError(t, <-stopped)
		}, event.ReasonExit, ""},
		"stop of a run": {func(t *testing.T, w *watched) {
			p := w.spawn(long)
			await(t, p)
			require.NoError(t, w.Stop(t.Context()))
		}, event.ReasonCleanup, ""},
		"delete": {func(t *testing.T, w *watched) {
			w.spawn(long)
			require.NoError(t, w.Delete(t.Context()))
		}, event.ReasonCleanup, ""},
		"the last client's end": {func(t *testing.T, w *watched) {
			w.spawn(long)
			w.client.Close()
		}, event.ReasonCleanup, ""},
		"bwrap dies": {dies(2), event.ReasonCleanup, errdefs.Internal},
		"init dies":  {dies(1), event.ReasonCleanup, errdefs.Internal},
		"another command's tree cannot be ended": {func(t *testing.T, w *watched) {
			p := w.spawn(long)
			await(t, p)
			require.NoError(t, w.only().box.Stop(t.Context())) // as supervise does then
		}, event.ReasonCleanup, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watch(t)
			tc.end(t, w)
			require.Equal(t, []event.Reason{tc.want}, w.ends(1))
			finished := w.of(event.CommandFinished)[0]
			require.Equal(t, string(tc.code), finished.Error)
			require.Equal(t, tc.code == "", finished.ExitCode != nil, "an exit code, or why there is none")
			require.NotNil(t, finished.DurationMs)
			// What was lost with its sandbox has nobody to tell what it took.
			require.Equal(t, tc.want != event.ReasonCleanup, finished.CPUMs != nil)
			require.Equal(t, tc.want != event.ReasonCleanup, finished.MaxRSSBytes != nil)
		})
	}
}

func TestEvents_WhatDoesNotStartIsNotTold(t *testing.T) {
	w := watch(t)
	_, err := w.Spawn(t.Context(), spec.Command{Command: "true", WorkingDirectory: "/nope"})
	require.Equal(t, errdefs.Code("ENOENT"), errdefs.CodeOf(err))
	first, err := w.Spawn(t.Context(), spec.Command{Command: "sleep 300", MaxProcesses: 1})
	require.NoError(t, err)
	defer first.Release()
	second := script("true")
	second.MaxProcesses = 1
	_, err = w.Run(t.Context(), second, spec.Limits{TimeoutMs: 50})
	require.Equal(t, errdefs.Timeout, errdefs.CodeOf(err), "a timeout in the queue")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Run(ctx, script("true"), spec.Limits{})
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	require.Len(t, w.of(event.CommandStarted), 1)
	require.NoError(t, w.Stop(t.Context()))
	require.Equal(t, []event.Reason{event.ReasonCleanup}, w.ends(1))
}

func TestEvents_KillAbortAndStopAtOnce(t *testing.T) {
	w := watch(t)
	const rounds = 15
	for range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		p := w.spawn("echo up; sleep 300")
		all.Go(func() { _, _ = w.Run(ctx, script("sleep 300"), spec.Limits{}) })
		require.Eventually(t, func() bool { return len(w.of(event.CommandStarted))-len(w.of(event.CommandFinished)) == 2 }, 20*time.Second, time.Millisecond)
		all.Go(cancel)
		all.Go(func() { _ = p.Kill(t.Context(), event.ReasonKilled) })
		all.Go(func() { _ = p.Kill(t.Context(), event.ReasonAbort) })
		all.Go(func() { _ = w.Stop(t.Context()) })
		all.Wait()
	}
	for _, reason := range w.ends(2 * rounds) {
		require.Contains(t, []event.Reason{event.ReasonKilled, event.ReasonAbort, event.ReasonCleanup}, reason)
	}
}

func TestEvents_SayWhatACommandTook(t *testing.T) {
	w := watch(t)
	for _, text := range []string{
		"true",
		"for ((i = 0; i < 300000; i++)); do :; done",
		"head -c 100000000 /dev/zero | tail -c 64000000 >/dev/null",
	} {
		_, err := w.Run(t.Context(), script(text), spec.Limits{})
		require.NoError(t, err)
	}
	w.ends(3)
	told := w.of(event.CommandFinished)
	require.Greater(t, *told[1].CPUMs, *told[0].CPUMs)
	require.LessOrEqual(t, *told[1].CPUMs, 4**told[1].DurationMs+10)
	require.Less(t, *told[0].MaxRSSBytes, int64(32<<20))
	require.GreaterOrEqual(t, *told[2].MaxRSSBytes, int64(64_000_000), "of what it waited for")
	require.Less(t, *told[2].MaxRSSBytes, int64(128_000_000))
}

// A bug of ours must not leave a command without an end, nor keep its slot.
func TestEvents_PanicWhileOutputIsCollected(t *testing.T) {
	w := watch(t)
	cmd := script("sleep 300")
	cmd.MaxProcesses = 1
	ctx := panicking{t.Context()}
	require.Panics(t, func() { _, _ = w.Run(ctx, cmd, spec.Limits{}) })
	w.ends(1)
	require.Equal(t, string(errdefs.Internal), w.of(event.CommandFinished)[0].Error)
	free := script("true")
	free.MaxProcesses = 1
	_, err := w.Run(t.Context(), free, spec.Limits{})
	require.NoError(t, err)
}
