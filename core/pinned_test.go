package core

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// held is what this process has of what the sandbox could use up.
type held struct{ goroutines, threads, descriptors int }

func holding(t *testing.T) held {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return held{runtime.NumGoroutine(), len(threads), len(fds)}
}

// Whatever a sandbox does that makes one call wait, others go on, no thread of the
// process is taken, and what was taken comes back.
func TestPinned_NothingTheSandboxHolds(t *testing.T) {
	const unread, fifos, lingering = 200, 200, 100
	for name, hold := range map[string]func(t *testing.T, w *watched) (release func()){
		"output that nobody reads": func(t *testing.T, w *watched) func() {
			return spawned(t, w, unread, "exec yes", func(p *Process) {})
		},
		"readers of silent commands": func(t *testing.T, w *watched) func() {
			return spawned(t, w, unread, "exec sleep 300", func(p *Process) {
				for stream := 1; stream <= 2; stream++ {
					go func() { _, _ = p.Read(t.Context(), stream, 1<<10) }()
				}
			})
		},
		"waits without a reader": func(t *testing.T, w *watched) func() {
			return spawned(t, w, unread, "echo x; exec sleep 300", func(p *Process) {
				p.KeepUnread()
				go func() { _, _ = p.Wait(t.Context()) }()
			})
		},
		"stdin that nobody takes": func(t *testing.T, w *watched) func() {
			return spawned(t, w, unread, "exec sleep 300", func(p *Process) {
				go func() { _ = p.Write(t.Context(), make([]byte, 1<<20)) }()
			})
		},
		"FIFOs": func(t *testing.T, w *watched) func() {
			_, err := w.Run(t.Context(), script("for ((i = 0; i < 200; i++)); do mkfifo f$i /tmp/f$i; done"), spec.Limits{})
			require.NoError(t, err)
			var all sync.WaitGroup
			for i := range fifos {
				for _, dir := range []string{"/workspace", "/tmp"} {
					all.Go(func() {
						if f, err := w.OpenFile(t.Context(), fmt.Sprintf("%s/f%d", dir, i)); err == nil {
							_ = f.Close()
							t.Error("a FIFO was opened")
						}
					})
				}
			}
			all.Wait()
			return func() {}
		},
		"pipes held open after the exit": func(t *testing.T, w *watched) func() {
			var all sync.WaitGroup
			for range lingering {
				all.Go(func() {
					r, err := w.Run(t.Context(), script("sleep 300 & setsid yes & echo x"), spec.Limits{})
					if err != nil || !strings.Contains(string(r.Stdout), "x\n") {
						t.Errorf("%q %v", r.Stdout, err)
					}
				})
			}
			all.Wait()
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t)
			other := watch(t)
			for _, s := range []*watched{w, other} {
				_, err := s.Run(t.Context(), script("true"), spec.Limits{})
				require.NoError(t, err)
			}
			before := holding(t)
			release := hold(t, w)
			during := holding(t)
			require.LessOrEqual(t, during.threads, before.threads+2*runtime.GOMAXPROCS(0)+16, "threads are held")
			require.LessOrEqual(t, during.goroutines, before.goroutines+6*unread)
			require.LessOrEqual(t, during.descriptors, before.descriptors+4*unread)
			for _, s := range []*watched{w, other} {
				r, err := s.Run(t.Context(), script("echo on"), spec.Limits{TimeoutMs: 60_000})
				require.NoError(t, err)
				require.Equal(t, "on\n", string(r.Stdout))
				require.NoError(t, s.WriteFile(t.Context(), "/tmp/file", []byte("x")))
				f, err := s.OpenFile(t.Context(), "/tmp/file")
				require.NoError(t, err)
				require.NoError(t, f.Close())
			}
			release()
			require.NoError(t, w.Stop(t.Context()))
			require.NoError(t, other.Stop(t.Context()))
			after := holding(t)
			require.Eventually(t, func() bool {
				after = holding(t)
				return after.goroutines <= before.goroutines && after.descriptors <= before.descriptors
			}, 20*time.Second, 10*time.Millisecond, "%+v before, %+v after\n%s", before, &after, stacks())
		})
	}
}

// spawned starts n commands, does something with each, and returns how to let them go.
func spawned(t *testing.T, w *watched, n int, text string, each func(*Process)) (release func()) {
	t.Helper()
	cmd := script(text)
	cmd.Stdin = true
	var processes []*Process
	for range n {
		p, err := w.Spawn(t.Context(), cmd)
		require.NoError(t, err)
		each(p)
		processes = append(processes, p)
	}
	return func() {
		for _, p := range processes {
			p.Release()
		}
	}
}

func stacks() string {
	var out strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&out, 1)
	return out.String()
}
