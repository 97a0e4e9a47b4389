package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestSpawn_Refusals(t *testing.T) {
	g, workspace := sandbox(t)
	require.NoError(t, os.WriteFile(workspace+"/file", nil, 0o600))
	for name, tc := range map[string]struct {
		change func(*Command)
		code   errdefs.Code
		names  string
	}{
		"no directory":       {func(c *Command) { c.Dir = "/workspace/nope" }, "ENOENT", "/workspace/nope"},
		"file as directory":  {func(c *Command) { c.Dir = "/workspace/file" }, "ENOTDIR", "workingDirectory"},
		"relative directory": {func(c *Command) { c.Dir = "nope" }, errdefs.InvalidArgument, "workingDirectory"},
		"no program":         {func(c *Command) { c.Argv[0] = "/bin/nope" }, errdefs.Unavailable, "/bin/nope"},
		"relative program":   {func(c *Command) { c.Argv[0] = "bash" }, errdefs.InvalidArgument, "command"},
		"nothing":            {func(c *Command) { c.Argv = nil }, errdefs.InvalidArgument, "command"},
		"NUL":                {func(c *Command) { c.Argv[2] = "a\x00b" }, errdefs.InvalidArgument, "command"},
		"long argument":      {func(c *Command) { c.Argv[2] = strings.Repeat("x", maxString) }, errdefs.InvalidArgument, "command"},
		"long variable":      {func(c *Command) { c.Env = []string{"BIG=" + strings.Repeat("x", maxString)} }, errdefs.InvalidArgument, "env.BIG"},
		"nameless variable":  {func(c *Command) { c.Env = []string{"=x"} }, errdefs.InvalidArgument, "env"},
		"too much together": {func(c *Command) {
			for i := range 100 {
				c.Env = append(c.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 100_000)))
			}
		}, errdefs.InvalidArgument, "env"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := bash("true")
			tc.change(&cmd)
			_, err := g.Spawn(t.Context(), cmd)
			require.Equal(t, tc.code, errdefs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, tc.names)
		})
	}
	require.Equal(t, "alive\n", must(t, g, "echo alive"))
}

func TestSpawn_LongestArgumentAndMuchEnvironment(t *testing.T) {
	g, _ := sandbox(t)
	const script = "echo $V"
	cmd := bash(strings.Repeat(" ", maxString-1-len(script)) + script)
	cmd.Env = append(cmd.Env, "V="+strings.Repeat("v", 100_000))
	r, err := Run(t.Context(), g, cmd, Limits{})
	require.NoError(t, err)
	require.Equal(t, 0, r.ExitCode, "%s", r.Stderr)
	require.Len(t, r.Stdout, 100_001)
}

func TestSpawn_ScriptComesByDescriptor(t *testing.T) {
	g, _ := sandbox(t)
	script := strings.Repeat("0123456789abcdef", 8<<20/16)
	cmd := bash("cat <&3 | cksum; exec 3<&-; ls /proc/$$/fd >fds; cat fds")
	cmd.Script = script
	before := fds(t)
	r, err := Run(t.Context(), g, cmd, Limits{})
	require.NoError(t, err)
	host := bash("cksum")
	host.Stdin = true
	p := spawn(t, g, host)
	require.NoError(t, p.Write(t.Context(), []byte(script)))
	require.NoError(t, p.CloseStdin())
	require.Equal(t, readAll(t, p, 1)+"0\n1\n2\n", string(r.Stdout), "%s", r.Stderr)
	p.Release()
	require.Eventually(t, func() bool { return fds(t) <= before }, 5*time.Second, time.Millisecond, fdList())

	require.NoError(t, g.Stop(t.Context()))
	_, err = g.Spawn(t.Context(), cmd)
	require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
	require.NotContains(t, fdList(), "memfd:script")
}

func TestSpawn_CancelledStartsNothing(t *testing.T) {
	g, workspace := sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		_, err := g.Spawn(ctx, bash("touch ran"))
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	}
	must(t, g, "true")
	require.NoFileExists(t, workspace+"/ran")
}

func TestSpawn_CancelledMeanwhileLeavesNothing(t *testing.T) {
	g, _ := sandbox(t)
	marker := fmt.Sprintf("midstart-%d", os.Getpid())
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		p, err := g.Spawn(ctx, bash("exec -a "+marker+" sleep 100"))
		cancel()
		if err == nil {
			require.NoError(t, p.Kill(t.Context()))
			p.Release()
			continue
		}
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
		require.Zero(t, marked(marker))
	}
	require.Eventually(t, func() bool { return known0(g) == 0 }, 5*time.Second, time.Millisecond)
}

// known0 counts the processes that a generation remembers.
func known0(g *Generation) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.processes) + len(g.pending)
}

func TestProcess_StreamsArriveAsWritten(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("echo out; echo err >&2; exit 3"))
	require.Equal(t, "out\n", readAll(t, p, 1))
	require.Equal(t, "err\n", readAll(t, p, 2))
	require.Equal(t, 3, exitCode(t, p))
	require.Positive(t, p.Pid())
	_, err := p.Read(t.Context(), 1, 10)
	require.Equal(t, io.EOF, err)
	_, err = p.Read(t.Context(), 3, 10)
	require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
	_, err = p.Read(t.Context(), 1, 0)
	require.Error(t, err)
}

func TestProcess_ExitCodes(t *testing.T) {
	g, _ := sandbox(t)
	for script, want := range map[string]int{
		"true": 0, "exit 7": 7, "exit 255": 255, "kill -9 $$": 137, "kill -TERM $$": 143, "kill -SEGV $$": 139, "kill -HUP $$": 129,
	} {
		p := spawn(t, g, bash(script))
		require.Equal(t, want, exitCode(t, p), script)
		p.Release()
	}
}

func TestProcess_ReadTakesAtMostTheLimit(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("printf 0123456789; sleep 100"))
	data, err := p.Read(t.Context(), 1, 4)
	require.NoError(t, err)
	require.Equal(t, "0123", string(data))
	require.Equal(t, "456789", readUntil(t, p, 1, "9"))
	require.NoError(t, p.Kill(t.Context()))
}

func TestProcess_ASlowReaderGetsEverythingWritten(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("head -c 60000 /dev/zero"))
	require.Equal(t, 0, exitCode(t, p), "waiting without reading hung")
	<-time.After(lateOutput + 50*time.Millisecond)
	var got int
	for {
		data, err := p.Read(t.Context(), 1, 1000)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		got += len(data)
	}
	require.Equal(t, 60000, got)
}

func TestProcess_ABigOutputWaitsForItsReader(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("head -c 20000000 /dev/zero"))
	require.Len(t, readAll(t, p, 1), 20_000_000)
	require.Equal(t, 0, exitCode(t, p))
}

func TestStream_WhatIsThereIsReadThoughTheDeadlineHasPassed(t *testing.T) {
	file, w, err := pipe()
	require.NoError(t, err)
	defer file.Close()
	_, err = w.WriteString("there")
	require.NoError(t, err)
	require.NoError(t, file.SetReadDeadline(longAgo))
	s := newStream(file, func() {})
	data, err := s.readAvailable(file, 100, ownRoom)
	require.NoError(t, err)
	require.Equal(t, "there", string(data))
	_, err = s.readAvailable(file, 100, ownRoom)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, w.Close())
	_, err = s.readAvailable(file, 100, ownRoom)
	require.ErrorIs(t, err, errHungUp)
}

func TestProcess_StreamEndsWithTheMainProcess(t *testing.T) {
	g, workspace := sandbox(t)
	for name, tc := range map[string]struct{ script, want string }{
		"quiet child":    {"sleep 100 & echo started", "started\n"},
		"nohup":          {"nohup sleep 100 & echo started", "started\n"},
		"session leader": {"setsid sleep 100 & echo started", "started\n"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			p := spawn(t, g, bash(tc.script))
			require.Equal(t, tc.want, readAll(t, p, 1))
			readAll(t, p, 2)
			require.Less(t, time.Since(began), time.Second)
		})
	}
	t.Run("late writer", func(t *testing.T) {
		// On a busy host it may come too late for once.
		var out string
		for range 20 {
			p := spawn(t, g, bash("(sleep 0.005; echo late) & echo started"))
			if out = readAll(t, p, 1); out == "started\nlate\n" {
				break
			}
		}
		require.Equal(t, "started\nlate\n", out)
	})
	t.Run("chatty child", func(t *testing.T) {
		began := time.Now()
		p := spawn(t, g, bash("(while :; do echo x; sleep 0.001; done) & echo $! >pid; yes & echo $! >>pid; sleep 0.1"))
		require.NotEmpty(t, readAll(t, p, 1))
		require.Less(t, time.Since(began), 2*time.Second)
		// Nobody reads any more, and the writers do not notice.
		must(t, g, "sleep 0.3; kill -0 $(cat pid)")
	})
	t.Run("and lives on", func(t *testing.T) {
		r, err := Run(t.Context(), g, bash("(sleep 0.2; echo noise; echo noise >&2; touch survived) & echo started"), Limits{})
		require.NoError(t, err)
		require.Equal(t, "started\n", string(r.Stdout))
		require.Less(t, r.Duration, 180*time.Millisecond)
		require.Eventually(t, func() bool {
			_, err := os.Stat(workspace + "/survived")
			return err == nil
		}, 5*time.Second, 5*time.Millisecond)
	})
}

func TestProcess_CancellingOneReadBreaksNothing(t *testing.T) {
	g, _ := sandbox(t)
	cmd := bash("cat; echo end >&2")
	cmd.Stdin = true
	p := spawn(t, g, cmd)
	errs := make(chan string)
	go func() { errs <- readAll(t, p, 2) }()
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := p.Read(ctx, 1, 100)
		cancel()
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(err))
	}
	require.NoError(t, p.Write(t.Context(), []byte("hello")))
	require.Equal(t, "hello", readUntil(t, p, 1, "hello"))
	require.NoError(t, p.CloseStdin())
	require.Empty(t, readAll(t, p, 1))
	require.Equal(t, "end\n", <-errs)
	require.Equal(t, 0, exitCode(t, p))
}

func TestProcess_OneReadAtATime(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("sleep 100"))
	result := make(chan error)
	go func() {
		_, err := p.Read(t.Context(), 1, 10)
		result <- err
	}()
	require.Eventually(t, func() bool {
		p.streams[1].mu.Lock()
		defer p.streams[1].mu.Unlock()
		return p.streams[1].reading
	}, 5*time.Second, time.Millisecond)
	_, err := p.Read(t.Context(), 1, 10)
	require.Equal(t, errdefs.Busy, errdefs.CodeOf(err))
	p.Discard(1)
	require.Equal(t, io.EOF, <-result, "a discard ends a read under way")
	require.NoError(t, p.Kill(t.Context()))
}

func TestProcess_DiscardIsNotNoticed(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("echo first; sleep 0.05; head -c 1000000 /dev/zero; echo done >&2"))
	readUntil(t, p, 1, "first")
	p.Discard(1)
	p.Discard(1)
	require.Equal(t, "done\n", readAll(t, p, 2))
	require.Equal(t, 0, exitCode(t, p), "the writer got SIGPIPE")
}

func TestProcess_Stdin(t *testing.T) {
	g, _ := sandbox(t)
	t.Run("not asked for", func(t *testing.T) {
		p := spawn(t, g, bash("cat; echo end"))
		require.Equal(t, "end\n", readAll(t, p, 1))
		require.Equal(t, errdefs.Code("EPIPE"), errdefs.CodeOf(p.Write(t.Context(), []byte("x"))))
		require.NoError(t, p.CloseStdin())
	})
	t.Run("much", func(t *testing.T) {
		cmd := bash("cat")
		cmd.Stdin = true
		p := spawn(t, g, cmd)
		data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
		go func() {
			if err := p.Write(t.Context(), data); err != nil {
				t.Error(err)
			}
			_ = p.CloseStdin()
			_ = p.CloseStdin()
		}()
		require.Equal(t, string(data), readAll(t, p, 1))
		require.Equal(t, errdefs.Code("EPIPE"), errdefs.CodeOf(p.Write(t.Context(), []byte("x"))))
	})
	t.Run("cancelled write", func(t *testing.T) {
		cmd := bash("sleep 100")
		cmd.Stdin = true
		p := spawn(t, g, cmd)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(p.Write(ctx, make([]byte, 1<<20))))
		require.Equal(t, errdefs.Aborted, errdefs.CodeOf(p.Write(ctx, []byte("x"))))
		require.NoError(t, p.Kill(t.Context()))
		require.Equal(t, errdefs.Code("EPIPE"), errdefs.CodeOf(p.Write(t.Context(), make([]byte, 1<<20))))
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		cmd := bash("sleep 100")
		cmd.Stdin = true
		p := spawn(t, g, cmd)
		result := make(chan error)
		go func() { result <- p.Write(t.Context(), make([]byte, 1<<20)) }()
		require.Eventually(t, func() bool { return len(p.stdin.turn) == 1 }, 5*time.Second, time.Millisecond)
		require.NoError(t, p.CloseStdin())
		require.Equal(t, errdefs.Code("EPIPE"), errdefs.CodeOf(<-result))
		require.NoError(t, p.Kill(t.Context()))
	})
}

func TestKill_EndsTheWholeTree(t *testing.T) {
	g, _ := sandbox(t)
	marker := fmt.Sprintf("tree-%d", os.Getpid())
	other := spawn(t, g, bash("exec -a other-"+marker[5:]+" sleep 100"))
	p := spawn(t, g, bash("trap '' TERM; for i in 1 2 3; do (setsid bash -c 'exec -a "+marker+" sleep 100' &); done; echo up; exec -a "+marker+" sleep 100"))
	readUntil(t, p, 1, "up")
	require.Eventually(t, func() bool { return marked(marker) == 4 }, 5*time.Second, time.Millisecond)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := p.Kill(context.Background()); err != nil {
				t.Error(err)
			}
			if n := marked(marker); n != 0 {
				t.Errorf("%d processes are left", n)
			}
		})
	}
	all.Wait()
	require.Equal(t, killedCode, exitCode(t, p))
	require.Equal(t, 1, marked("other-"+marker[5:]), "the command beside it was hit")
	require.NoError(t, other.Kill(t.Context()))
	require.Eventually(t, func() bool { return known0(g) == 0 }, 5*time.Second, time.Millisecond)
}

func TestKill_LateKillsNothing(t *testing.T) {
	g, _ := sandbox(t)
	marker := fmt.Sprintf("late-%d", os.Getpid())
	p := spawn(t, g, bash("(exec -a "+marker+" sleep 100) & exit 0"))
	require.Equal(t, 0, exitCode(t, p))
	require.NoError(t, p.Kill(t.Context()))
	require.Eventually(t, func() bool { return marked(marker) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, p.Kill(t.Context()))
	must(t, g, "true")
	require.Equal(t, 1, marked(marker))
	p.Release()
}

func TestKill_WhatWasWrittenStaysReadable(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("yes"))
	_, err := p.Read(t.Context(), 1, 10)
	require.NoError(t, err)
	require.NoError(t, p.Kill(t.Context()))
	require.NoError(t, p.Kill(t.Context()))
	n := len(readAll(t, p, 1))
	require.Positive(t, n)
	require.LessOrEqual(t, n, wide, "what its pipe held")
	require.Equal(t, killedCode, exitCode(t, p))
}

func TestKill_UnansweredEndsTheGeneration(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("sleep 100"))
	go func() { p.answered(2) }() // as if init had said that two are left
	g.mu.Lock()
	g.processes = map[uint64]*Process{} // init's true answer finds nobody
	g.mu.Unlock()
	require.NoError(t, p.Kill(t.Context()))
	<-g.Done()
}

func TestProcess_ReleasedGoesOn(t *testing.T) {
	g, workspace := sandbox(t)
	p := spawn(t, g, bash("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; touch done"))
	p.Release()
	require.Eventually(t, func() bool {
		_, err := os.Stat(workspace + "/done")
		return err == nil
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, 0, exitCode(t, p))
	_, err := p.Read(t.Context(), 1, 1)
	require.Equal(t, io.EOF, err)
}

func TestProcess_WaitIsBoundByItsContextOnly(t *testing.T) {
	g, _ := sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := g.Spawn(ctx, bash("read; exit 4"))
	require.NoError(t, err)
	cancel() // of the start, which is over
	require.Equal(t, 4, exitCode(t, p))
	_, err = p.Wait(ctx)
	require.NoError(t, err, "an exit that is known needs no waiting")
}

func TestSpawn_LeavesNothing(t *testing.T) {
	g, _ := sandbox(t)
	must(t, g, "true")
	before, fdsBefore := children(t), fds(t)
	for i := range 1000 {
		p := spawn(t, g, Command{Argv: []string{"/bin/true"}, Dir: "/"})
		if i%2 == 0 {
			require.Equal(t, 0, exitCode(t, p))
		}
		p.Release()
	}
	require.Eventually(t, func() bool { return known0(g) == 0 }, 10*time.Second, time.Millisecond)
	require.Equal(t, before, children(t))
	require.Eventually(t, func() bool { return fds(t) <= fdsBefore }, 5*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		return must(t, g, "cd /proc; set -- [0-9]*; echo $#") == "2\n"
	}, 5*time.Second, time.Millisecond, "more than init and the shell")
}

func TestSpawn_ManyAtOnce(t *testing.T) {
	g, _ := sandbox(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			r, err := Run(context.Background(), g, bash(fmt.Sprintf("sleep 0.05; echo %d; exit %d", i, i)), Limits{})
			if err != nil || r.ExitCode != i || string(r.Stdout) != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %+v %v", i, r, err)
			}
		})
	}
	all.Wait()
}

func TestNetwork_NoneIsSharedByItsCommands(t *testing.T) {
	g, _ := sandbox(t)
	none := bash("readlink /proc/self/ns/net; ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :")
	none.Network = networkNone
	first, err := Run(t.Context(), g, none, Limits{})
	require.NoError(t, err)
	second, err := Run(t.Context(), g, none, Limits{})
	require.NoError(t, err)
	require.Equal(t, string(first.Stdout), string(second.Stdout))
	host, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.NotContains(t, string(first.Stdout), host)
	require.Contains(t, must(t, g, "readlink /proc/self/ns/net"), host)
}

func TestProcess_UnexpectedEnd(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("echo before; sleep 100"))
	readUntil(t, p, 1, "before")
	require.NoError(t, g.child.Kill())
	_, err := p.Wait(t.Context())
	require.Equal(t, errdefs.Internal, errdefs.CodeOf(err))
	require.Empty(t, readAll(t, p, 1))
	<-g.Done()
	_, err = g.Spawn(t.Context(), bash("true"))
	require.Equal(t, errdefs.Internal, errdefs.CodeOf(err))
	require.False(t, errors.Is(err, errdefs.New(errdefs.Closed, "", "")))
}

func TestKeepUnread_LetsTheCommandEnd(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("head -c 2000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3"))
	p.KeepUnread()
	p.KeepUnread()
	require.Equal(t, 3, exitCode(t, p))
	require.Len(t, readAll(t, p, 1), 2_000_000)
	require.Len(t, readAll(t, p, 2), 3_000_000)
	require.Empty(t, readAll(t, p, 1))
}

func TestKeepUnread_AReaderTakesOver(t *testing.T) {
	g, workspace := sandbox(t)
	p := spawn(t, g, bash("echo first; until [ -e go ]; do sleep 0.01; done; head -c 20000000 /dev/zero; exit 5"))
	p.KeepUnread()
	require.Eventually(t, func() bool {
		p.streams[1].mu.Lock()
		k := p.streams[1].kept
		p.streams[1].mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.data) > 0
	}, 5*time.Second, time.Millisecond)
	// What is kept comes first, at most so much at once; then the stream is pulled again.
	data, err := p.Read(t.Context(), 1, 3)
	require.NoError(t, err)
	require.Equal(t, "fir", string(data))
	require.NoError(t, os.WriteFile(workspace+"/go", nil, 0o600))
	require.Len(t, readAll(t, p, 1), len("st\n")+20_000_000)
	require.Equal(t, 5, exitCode(t, p))
}

func TestKeepUnread_TooMuchIsToldToTheReader(t *testing.T) {
	g, _ := sandbox(t)
	exact := spawn(t, g, bash(fmt.Sprintf("head -c %d /dev/zero", keptBytes)))
	over := spawn(t, g, bash("exec head -c 30000000 /dev/zero"))
	for _, p := range []*Process{exact, over} {
		p.KeepUnread()
		require.Equal(t, 0, exitCode(t, p), "it hung, or noticed")
	}
	require.Len(t, readAll(t, exact, 1), keptBytes)
	var got int
	for {
		data, err := over.Read(t.Context(), 1, 1<<20)
		if err != nil {
			require.Equal(t, errdefs.OutputLimit, errdefs.CodeOf(err))
			break
		}
		got += len(data)
	}
	require.Equal(t, keptBytes, got)
	require.LessOrEqual(t, cap(over.streams[1].kept.data), keptBytes)
}

func TestKeepUnread_AFloodWaitsForAReaderInTime(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("exec head -c 30000000 /dev/zero"))
	p.KeepUnread()
	<-time.After(200 * time.Millisecond) // ten times what it takes to fill
	require.Len(t, readAll(t, p, 1), 30_000_000)
	require.Equal(t, 0, exitCode(t, p))
}

func TestKeepUnread_IsNotForWhoReads(t *testing.T) {
	g, _ := sandbox(t)
	p := spawn(t, g, bash("echo up; exec yes"))
	readUntil(t, p, 1, "up")
	p.KeepUnread()
	require.Nil(t, p.streams[1].kept)
	p.Discard(2)
	p.Release()
	require.Equal(t, io.EOF, func() error { _, err := p.Read(t.Context(), 2, 1); return err }())
	require.NoError(t, p.Kill(t.Context()))
}
