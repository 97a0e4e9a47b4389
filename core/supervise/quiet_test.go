package supervise

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func quiet(t testing.TB, g *Generation) (time.Duration, bool) {
	t.Helper()
	since, is, err := g.Quiet(t.Context())
	require.NoError(t, err)
	return since, is
}

func TestQuiet_CountsWhatIsLeftInTheBackground(t *testing.T) {
	for name, left := range map[string]string{
		"a child":        "sleep 300 &",
		"of its own":     "setsid sleep 300 &",
		"an orphan":      "( ( sleep 300 & ) & )",
		"a stopped one":  "sleep 300 & kill -STOP $!",
		"one that forks": "( while :; do sleep 0.01; done ) &",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _ := sandbox(t)
			_, is := quiet(t, g)
			require.True(t, is, "nothing has been started yet")
			// The opener is ours.
			_, err := g.Opener().Open(t.Context(), "/etc/hostname")
			require.NoError(t, err)
			must(t, g, left+"\ntrue")
			_, is = quiet(t, g)
			require.False(t, is)
			select {
			case <-g.Quieted():
				require.Fail(t, "told although something runs")
			default:
			}
			// By a process that was started before the question, which the end follows.
			killer := spawn(t, g, Command{Argv: bash("read; exec kill -9 -1").Argv, Dir: "/", Stdin: true})
			_, is = quiet(t, g)
			require.False(t, is)
			require.NoError(t, killer.Write(t.Context(), []byte("\n")))
			select {
			case <-g.Quieted():
			case <-time.After(20 * time.Second):
				require.Fail(t, "the end of the last process was not told")
			}
			since, is := quiet(t, g)
			require.True(t, is)
			require.Less(t, since, 20*time.Second)
		})
	}
}

func TestQuiet_SinceTheLastEnd(t *testing.T) {
	g, _ := sandbox(t)
	<-time.After(50 * time.Millisecond)
	since, is := quiet(t, g)
	require.True(t, is)
	require.GreaterOrEqual(t, since, 50*time.Millisecond)
	began := time.Now()
	must(t, g, "true")
	require.Eventually(t, func() bool { since, is = quiet(t, g); return is }, 20*time.Second, time.Millisecond)
	require.LessOrEqual(t, since, time.Since(began))
}

func TestQuiet_OfWhatHasEnded(t *testing.T) {
	g, _ := sandbox(t)
	require.NoError(t, g.Stop(t.Context()))
	_, _, err := g.Quiet(t.Context())
	require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
}
