package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestRun_CollectsBothStreams(t *testing.T) {
	g, _ := sandbox(t)
	r, err := Run(t.Context(), g, bash("echo out; echo err >&2; exit 5"), Limits{})
	require.NoError(t, err)
	require.Equal(t, 5, r.ExitCode)
	require.Equal(t, "out\n", string(r.Stdout))
	require.Equal(t, "err\n", string(r.Stderr))
	require.Equal(t, int64(4), r.StdoutTotal)
	require.Positive(t, r.Duration)
}

func TestRun_EndsTheTreeAndKeepsWhatWasCaptured(t *testing.T) {
	g, _ := sandbox(t)
	mine := errdefs.New(errdefs.SessionGone, "", "the caller's own")
	for name, tc := range map[string]struct {
		limits Limits
		cancel func(context.Context) (context.Context, context.CancelFunc)
		script string
		code   errdefs.Code
		stdout string
	}{
		"timeout": {limits: Limits{Timeout: time.Second}, code: errdefs.Timeout, stdout: "partial\n"},
		"abort": {cancel: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 150*time.Millisecond)
		}, code: errdefs.Aborted, stdout: "partial\n"},
		"own cause": {cancel: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, 150*time.Millisecond, mine)
		}, code: errdefs.SessionGone, stdout: "partial\n"},
		"output limit": {limits: Limits{OutputBytes: 4}, code: errdefs.OutputLimit, stdout: "pa\n[... 4 bytes left out ...]\nl\n"},
	} {
		t.Run(name, func(t *testing.T) {
			marker := fmt.Sprintf("run-%d-%s", os.Getpid(), strings.ReplaceAll(name, " ", "-"))
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if tc.cancel != nil {
				ctx, stop = tc.cancel(ctx)
				defer stop()
			}
			r, err := Run(ctx, g, bash("echo partial; trap '' TERM; (setsid bash -c 'exec -a "+marker+" sleep 100' &); exec -a "+marker+" sleep 100"), tc.limits)
			require.Equal(t, tc.code, errdefs.CodeOf(err), "%v", err)
			require.Zero(t, marked(marker))
			require.Equal(t, tc.stdout, string(r.Stdout))
			require.Equal(t, killedCode, r.ExitCode)
			require.Less(t, r.Duration, 5*time.Second)
		})
	}
	require.Equal(t, "alive\n", must(t, g, "echo alive"))
}

func TestRun_LimitHoldsForWhatIsLeftAtTheExit(t *testing.T) {
	g, _ := sandbox(t)
	for range 20 {
		r, err := Run(t.Context(), g, bash("head -c 4096 /dev/zero"), Limits{OutputBytes: 1000})
		require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(err))
		require.True(t, r.StdoutTruncated)
		require.False(t, r.StderrTruncated)
		require.Equal(t, int64(4096), r.StdoutTotal)
		zeros := string(make([]byte, 500))
		require.Equal(t, zeros+"\n[... 3096 bytes left out ...]\n"+zeros, string(r.Stdout))
	}
	r, err := Run(t.Context(), g, bash("head -c 500 /dev/zero; head -c 500 /dev/zero >&2"), Limits{OutputBytes: 1000})
	require.NoError(t, err, "exactly the limit is within it")
	require.Len(t, r.Stdout, 500)
	require.Len(t, r.Stderr, 500)
}

func TestRun_MemoryIsBoundedByTheLimit(t *testing.T) {
	g, _ := sandbox(t)
	r, err := Run(t.Context(), g, bash("yes & yes >&2"), Limits{OutputBytes: 1 << 20})
	require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(err))
	require.LessOrEqual(t, cap(r.Stdout)+cap(r.Stderr), 2<<20)
	require.LessOrEqual(t, len(r.Stdout)+len(r.Stderr), 1<<20+100)
}

func TestRun_ALateCancelChangesNothing(t *testing.T) {
	g, _ := sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := g.Spawn(ctx, bash("echo kept"))
	require.NoError(t, err)
	require.Equal(t, 0, exitCode(t, p))
	cancel()
	r, err := p.Collect(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(r.Stdout))
}

func TestRun_CancelledBeforehand(t *testing.T) {
	g, workspace := sandbox(t)
	reason := errors.New("the user's reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	_, err := Run(ctx, g, bash("touch ran"), Limits{})
	require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	require.ErrorIs(t, err, reason)
	must(t, g, "true")
	require.NoFileExists(t, workspace+"/ran")
}

func TestCollector_KeepsHeadAndTail(t *testing.T) {
	for name, tc := range map[string]struct {
		limit          int64
		chunks         []string // "1" or "2" and the data
		stdout, stderr string
		over           bool
	}{
		"no limit":             {0, []string{"1abc", "2def"}, "abc", "def", false},
		"within":               {6, []string{"1abc", "2def"}, "abc", "def", false},
		"one chunk":            {4, []string{"1abcdefgh"}, "ab#4#gh", "", true},
		"small chunks":         {4, []string{"1ab", "1cd", "1ef", "1g"}, "ab#3#fg", "", true},
		"byte by byte":         {4, []string{"1a", "1b", "1c", "1d", "1e", "1f", "1g"}, "ab#3#fg", "", true},
		"odd":                  {5, []string{"1abcdefgh"}, "abc#3#gh", "", true},
		"limit of one":         {1, []string{"1abc"}, "a#2#", "", true},
		"the other goes over":  {4, []string{"1ab", "2cd", "2ef"}, "ab", "c#2#f", true},
		"both":                 {4, []string{"1ab", "2cd", "2ef", "1xy"}, "a#2#y", "c#2#f", true},
		"nothing left for one": {2, []string{"1ab", "2cd"}, "ab", "#2#", true},
		// € is e2 82 ac: no half of one meets half of another.
		"a character in two":     {8, []string{"1€€€€"}, "€#6#€", "", true},
		"cut in its first byte":  {8, []string{"1abc€€xyz"}, "abc#6#xyz", "", true},
		"whole ones at the cut":  {6, []string{"1€€€"}, "€#3#€", "", true},
		"four bytes":             {6, []string{"1a\U0001f600b\U0001f600"}, "a#9#", "", true},
		"no UTF-8 at all":        {4, []string{"1\xff\xff\xff\xff\xff\xff"}, "\xff\xff#2#\xff\xff", "", true},
		"continuation bytes all": {8, []string{"1\x80\x80\x80\x80\x80\x80\x80\x80\x80"}, "\x80\x80\x80\x80#4#\x80", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			kills := 0
			c := &collector{limit: tc.limit, kill: func() { kills++ }}
			total := int64(0)
			for _, chunk := range tc.chunks {
				part := &c.parts[chunk[0]-'0']
				data := part.room(len(chunk) - 1)
				copy(data, chunk[1:])
				c.add(part, data)
				total += int64(len(chunk) - 1)
			}
			require.Equal(t, tc.stdout, short(c.parts[1].bytes()))
			require.Equal(t, tc.stderr, short(c.parts[2].bytes()))
			require.Equal(t, total, c.parts[1].total+c.parts[2].total)
			c.ending.Wait()
			if tc.over {
				require.Equal(t, 1, kills)
				require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(c.why))
			} else {
				require.Zero(t, kills)
				require.NoError(t, c.why)
			}
		})
	}
}

var leftOut = regexp.MustCompile(`\n?\[\.\.\. (\d+) bytes left out \.\.\.\]\n`)

// short writes the line at a cut as #bytes#.
func short(captured []byte) string { return leftOut.ReplaceAllString(string(captured), "#$1#") }

func TestAppendWithin(t *testing.T) {
	var got []byte
	for range 100 {
		got = appendWithin(got, bytes.Repeat([]byte("x"), 10), 1000)
		require.LessOrEqual(t, cap(got), 1000)
	}
	require.Len(t, got, 1000)
}

func BenchmarkRun_True(b *testing.B) {
	g, _ := sandbox(b)
	for b.Loop() {
		if _, err := Run(b.Context(), g, bash("true"), Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	cfg := config(b, b.TempDir(), bwrapRequest)
	for b.Loop() {
		g, err := Start(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		stop(b, g)
	}
}
