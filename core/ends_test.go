package core

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// Every way of ending a command ends all that it has started, however that tries to
// get away, and nothing that another command has.
func TestEnds_TheWholeTreeAndNothingElse(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *watched, text string, up func()){
		"timeout": func(t *testing.T, w *watched, text string, up func()) {
			// Long enough for the tree to be there; up waits for it meanwhile.
			go up()
			_, err := w.Run(t.Context(), script(text), spec.Limits{TimeoutMs: 3000})
			require.Equal(t, errdefs.Timeout, errdefs.CodeOf(err))
		},
		"abort": func(t *testing.T, w *watched, text string, up func()) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { up(); cancel() }()
			_, err := w.Run(ctx, script(text), spec.Limits{})
			require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
		},
		"output limit": func(t *testing.T, w *watched, text string, up func()) {
			go func() {
				up()
				_ = w.WriteFile(t.Context(), "/workspace/flood", nil)
			}()
			_, err := w.Run(t.Context(), script("(until [ -e flood ]; do sleep 0.01; done; yes) & "+text), spec.Limits{MaxOutputBytes: 100_000})
			require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(err))
		},
		"kill": func(t *testing.T, w *watched, text string, up func()) {
			p := w.spawn(text)
			up()
			require.NoError(t, p.Kill(t.Context(), event.ReasonKilled))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t)
			doomed, bystander, background := nap(), nap(), nap()
			_, err := w.Run(t.Context(), script(background+" & setsid "+background+" &"), spec.Limits{})
			require.NoError(t, err)
			w.spawn("exec " + bystander)
			tree := strings.Join([]string{
				doomed + " &",
				"setsid " + doomed + " &",
				"( ( " + doomed + " & ) & )", // twice forked, and orphaned
				"nohup setsid bash -c 'trap \"\" TERM HUP INT; " + doomed + "; :' >/dev/null 2>&1 &",
				"bash -c 'kill -STOP $$; :' &",
				doomed + " & kill -STOP $!",
				"spin() { while :; do ( setsid sleep 0.05 & ); done; }; spin & spin &",
				// Each of them is the next one's parent for a moment.
				"f() { setsid bash -c 'sleep 0.02; exec bash -c \"$0\" \"$0\"' 'sleep 0.02; exec bash -c \"$0\" \"$0\"' & }; f",
				doomed,
			}, "\n")
			up := func() {
				deadline := time.Now().Add(20 * time.Second)
				// One may have been stopped before it is known by its name.
				for len(pids(doomed)) < 5 && time.Now().Before(deadline) {
					<-time.After(time.Millisecond)
				}
			}
			end(t, w, tree, up)
			require.Empty(t, pids(doomed))
			require.Len(t, pids(bystander), 1)
			require.Len(t, pids(background), 2)
			// The three above, and the shell that counts.
			r, err := w.Run(t.Context(), script(`n=0; for p in /proc/[0-9]*; do read -r c <$p/comm && case $c in sleep|bash) n=$((n+1));; esac; done 2>/dev/null; echo $n`), spec.Limits{})
			require.NoError(t, err)
			require.Equal(t, "4\n", string(r.Stdout))
			// Nothing but the one tree was ended for it.
			require.Len(t, w.of(event.GenerationStarted), 1)
		})
	}
}
