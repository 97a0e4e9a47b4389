//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

func TestSpawn_Describes(t *testing.T) {
	s := start(t, settings{})
	s.run("mkdir -p a/b")
	j, failed := s.spawn(wire.Spawn{
		Argv: []string{"/bin/bash", "-c", `pwd; printf '%s|' "$@"; echo; cat; echo oops >&2; env | grep -v -E '^(PWD|SHLVL|_)=' | sort; exit 7`, "name", "one two", ""},
		Env:  []string{"A=1 2", "B="}, Dir: "/workspace/a/b", Stdin: true,
	})
	require.Nil(t, failed)
	_, err := j.stdin.WriteString("from outside\n")
	require.NoError(t, err)
	require.NoError(t, j.stdin.Close())
	stdout, stderr := j.end()
	require.Equal(t, "/workspace/a/b\none two||\nfrom outside\nA=1 2\nB=\n", stdout)
	require.Equal(t, "oops\n", stderr)
	status := j.wait()
	require.True(t, status.Exited())
	require.Equal(t, 7, status.ExitStatus())
}

// queueSignals says how many signals a process can have queued, trying two thousand.
const queueSignals = `python3 -c '
import ctypes, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
queue = ctypes.CDLL(None).sigqueue
print(sum(queue(os.getpid(), signal.SIGRTMIN, None) == 0 for _ in range(2000)))'`

func TestSpawn_Surroundings(t *testing.T) {
	s := start(t, settings{})
	for name, tc := range map[string]struct{ script, want string }{
		"stdin is at its end":       {"cat; echo end", "end\n"},
		"no descriptor but three":   {"ls /proc/self/fd | head -n 3 | tr '\\n' ' '; ls /proc/self/fd | wc -l", "0 1 2 4\n"}, // and the one of ls
		"a session of its own":      {"ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo own", "own\n"},
		"no core files":             {"ulimit -Hc", "0\n"},
		"a limit of files":          {"[ $(ulimit -Hn) -lt 65536 ] && [ $(ulimit -Hn) = $(ulimit -Sn) ] && echo set", "set\n"},
		"a limit of queued signals": {queueSignals, "1024\n"},
		"the image is not in /proc": {"tr '\\0' ' ' < /proc/1/cmdline", "/proc/self/fd/5 "},
		"the host name":             {"hostname", "sandbox\n"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, s.run(tc.script)) })
	}
	t.Run("death by signal", func(t *testing.T) {
		j := s.bash("kill -KILL $$")
		j.end()
		status := j.wait()
		require.True(t, status.Signaled())
		require.Equal(t, unix.SIGKILL, status.Signal())
	})
}

func TestSpawn_Failures(t *testing.T) {
	s := start(t, settings{})
	s.write("plain", "no program", 0o644)
	s.write("garbage", "\x00\x01 no program either", 0o755)
	s.run("mkdir closed; chmod 0 closed; ln -s nowhere dangling")
	for name, tc := range map[string]struct {
		spawn wire.Spawn
		stage wire.Stage
		errno unix.Errno
	}{
		"no program":              {wire.Spawn{Argv: []string{"/bin/missing"}}, wire.StageExec, unix.ENOENT},
		"not executable":          {wire.Spawn{Argv: []string{"/workspace/plain"}}, wire.StageExec, unix.EACCES},
		"not a program":           {wire.Spawn{Argv: []string{"/workspace/garbage"}}, wire.StageExec, unix.ENOEXEC},
		"a NUL in an argument":    {wire.Spawn{Argv: []string{"/bin/true", "a\x00b"}}, wire.StageExec, unix.EINVAL},
		"arguments too long":      {wire.Spawn{Argv: []string{"/bin/true", strings.Repeat("x", 1<<18)}}, wire.StageExec, unix.E2BIG},
		"nothing to run":          {wire.Spawn{}, wire.StageSetup, unix.EINVAL},
		"no such network":         {wire.Spawn{Argv: []string{"/bin/true"}, Network: "some"}, wire.StageSetup, unix.EINVAL},
		"no directory":            {wire.Spawn{Argv: []string{"/bin/true"}, Dir: "/workspace/missing"}, wire.StageChdir, unix.ENOENT},
		"directory is a file":     {wire.Spawn{Argv: []string{"/bin/true"}, Dir: "/workspace/plain"}, wire.StageChdir, unix.ENOTDIR},
		"directory dangles":       {wire.Spawn{Argv: []string{"/bin/true"}, Dir: "/workspace/dangling"}, wire.StageChdir, unix.ENOENT},
		"directory is closed":     {wire.Spawn{Argv: []string{"/bin/true"}, Dir: "/workspace/closed"}, wire.StageChdir, unix.EACCES},
		"directory wins over all": {wire.Spawn{Argv: []string{"/bin/missing"}, Dir: "/missing"}, wire.StageChdir, unix.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			j, failed := s.spawn(tc.spawn)
			require.Nil(t, j)
			require.Equal(t, tc.stage, failed.Stage)
			require.Equal(t, tc.errno, unix.Errno(failed.Errno), "%v", unix.Errno(failed.Errno))
		})
	}
	require.Equal(t, "fine\n", s.run("echo fine"))
	s.run("chmod 0700 closed")
}

func TestSpawn_Script(t *testing.T) {
	s := start(t, settings{})
	// A pipe tells when nobody has its reading end any more.
	script := func() (reading int, writing *os.File) {
		var ends [2]int
		require.NoError(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
		writing = os.NewFile(uintptr(ends[1]), "script")
		t.Cleanup(func() { _ = writing.Close() })
		return ends[0], writing
	}
	closed := func(writing *os.File) {
		t.Helper()
		poll := []unix.PollFd{{Fd: int32(writing.Fd())}}
		require.Eventually(t, func() bool {
			_, err := unix.Poll(poll, 0)
			return err == nil && poll[0].Revents&unix.POLLERR != 0
		}, patience, time.Millisecond)
	}
	show := []string{"/bin/bash", "-c", "read -u 3 x; ls /proc/$$/fd >fds; exec 3<&-; cat fds; echo $x; exec sleep 100"}
	reading, writing := script()
	j, failed := s.spawn(wire.Spawn{Argv: show}, reading)
	require.Nil(t, failed)
	_, err := writing.WriteString("text\n")
	require.NoError(t, err)
	for _, line := range []string{"0", "1", "2", "3", "text"} {
		require.Equal(t, line, j.line())
	}
	closed(writing) // although the command goes on
	require.Zero(t, j.kill())

	for name, spawn := range map[string]wire.Spawn{
		"nothing to run": {}, "no directory": {Argv: show, Dir: "/missing"},
		"no program": {Argv: []string{"/bin/missing"}}, "no network": {Argv: show, Network: "some"},
	} {
		reading, writing := script()
		_, failed := s.spawn(spawn, reading)
		require.NotNil(t, failed, name)
		closed(writing)
	}
	one, firstWriting := script()
	two, secondWriting := script()
	_, failed = s.spawn(wire.Spawn{Argv: show}, one, two)
	require.NotNil(t, failed)
	closed(firstWriting)
	closed(secondWriting)

	// The next one gets none.
	require.Equal(t, "0\n1\n2\n", s.run("ls /proc/$$/fd >fds; cat fds"))
}

func TestSpawn_NetworkNone(t *testing.T) {
	s := start(t, settings{})
	isolated := func(script string) *job {
		j, failed := s.spawn(wire.Spawn{Argv: []string{"/bin/bash", "-c", script}, Network: wire.NetworkNone})
		require.Nil(t, failed)
		return j
	}
	server := isolated(`exec python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 8765))
print("up", flush=True)
s.accept()[0].send(b"hello\n")'`)
	require.Equal(t, "up", server.line())
	client := isolated("cat < /dev/tcp/127.0.0.1/8765; ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1")
	out, stderr := client.end()
	require.Equal(t, "hello\n    lo\n", out, stderr)
	server.end()

	own := isolated("readlink /proc/self/ns/net")
	inside, _ := own.end()
	require.NotEqual(t, inside, s.run("readlink /proc/self/ns/net"))
}

func TestSpawn_LargeMessageInAMemfd(t *testing.T) {
	s := start(t, settings{})
	big := strings.Repeat("0123456789abcde\n", 6000) // 96 KiB
	j, failed := s.spawn(wire.Spawn{
		Argv: []string{"/bin/bash", "-c", `echo "${#1} ${#BIG}"`, "name", big}, Env: []string{"BIG=" + big, "PATH=/bin"},
	})
	require.Nil(t, failed)
	out, _ := j.end()
	require.Equal(t, "96000 96000\n", out)
}

func TestSpawn_ManyAtOnce(t *testing.T) {
	s := start(t, settings{})
	var wait sync.WaitGroup
	for i := range 64 {
		wait.Go(func() {
			want := fmt.Sprintf("%d\n", i)
			j := s.bash(fmt.Sprintf("echo %d; exit %d", i, i%100))
			out, _ := j.end()
			if status := j.wait(); out != want || status.ExitStatus() != i%100 {
				t.Errorf("command %d printed %q and exited with %d", i, out, status.ExitStatus())
			}
		})
	}
	wait.Wait()
	// Orphans and commands are reaped: ps and bash are what there is.
	s.until("zombies", func() bool { return !strings.Contains(s.run("ps -e -o stat="), "Z") })
}

func TestExited_ComesThoughAChildKeepsTheStreams(t *testing.T) {
	s := start(t, settings{})
	j := s.bash("sleep 1000 & echo started")
	require.Equal(t, "started", j.line())
	require.Zero(t, j.wait())
	require.Zero(t, j.kill(), "a child in the background can still be ended")
	j.end()
}

// discards gives up a command's streams while a child still writes to them.
func TestDiscard_TheWriterDoesNotNotice(t *testing.T) {
	s := start(t, settings{})
	j := s.bash(`echo started; (
		trap 'echo pipe >> trouble' PIPE
		while [ ! -e /tmp/stop ]; do echo out || echo $? >> trouble; head -c 100000 /dev/zero >&2 || echo $? >> trouble; done
		echo well > result
	) &`)
	require.Equal(t, "started", j.line())
	require.Zero(t, j.wait())
	j.discard(1)
	j.discard(2)
	j.s.conn.Send(wire.Message{Kind: wire.KindDiscard, ID: j.id, Stream: 2}) // once more is no harm
	j.s.conn.Send(wire.Message{Kind: wire.KindDiscard, ID: 999, Stream: 1})
	s.many(80) // init looks for what it may forget, and must not forget this
	s.run("touch /tmp/stop")
	require.Eventually(t, func() bool { _, err := os.Stat(s.dir + "/result"); return err == nil }, patience, 10*time.Millisecond)
	require.NoFileExists(t, s.dir+"/trouble")
}

func TestDiscard_UnreadStreamsOfTheDeadAreForgotten(t *testing.T) {
	s := start(t, settings{})
	var jobs []*job
	for range 200 {
		jobs = append(jobs, s.begin("/bin/true"))
	}
	for _, j := range jobs {
		require.Zero(t, j.wait())
	}
	for _, j := range jobs {
		require.Zero(t, j.kill())
		rest, err := io.ReadAll(j.stdout)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.NoError(t, j.stdout.Close())
		require.NoError(t, j.stderr.Close())
	}
}

func TestKill_EndsTheTreeAndNothingElse(t *testing.T) {
	s := start(t, settings{})
	other := s.bash("sleep 1000 & echo $!; exec sleep 1001")
	background := other.line()
	for name, script := range map[string]string{
		"one process":    "echo up; exec sleep 1000",
		"a pipeline":     "exec 3>&1; sleep 1000 | (echo up >&3; sleep 1000) | sleep 1000",
		"setsid":         "setsid sleep 1000 & setsid bash -c 'setsid sleep 1000 & sleep 1000' & echo up; wait",
		"double fork":    "( (sleep 1000 &) & ); echo up; exec sleep 1000",
		"main has gone":  "sleep 1000 & echo up",
		"stopped":        "sleep 1000 & kill -STOP $!; echo up; kill -STOP $$",
		"deaf":           "trap '' HUP INT QUIT TERM CONT TSTP; echo up; while :; do sleep 1000; done",
		"looks dead":     attackerPath + " attack leader",
		"storm":          attackerPath + " attack storm 3 & echo up; wait",
		"undumpable":     attackerPath + " attack storm 1 & echo up; wait",
		"forks for ever": "f() { f & }; echo up; while :; do (:) & done",
	} {
		t.Run(name, func(t *testing.T) {
			mark := "mark-" + strings.ReplaceAll(name, " ", "-")
			j, failed := s.spawn(wire.Spawn{
				Argv: []string{"/bin/bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "MARK=" + mark},
			})
			require.Nil(t, failed)
			j.line()
			if name == "storm" {
				s.until("no storm", func() bool { return len(strings.Fields(s.run("echo /proc/[0-9]*"))) > 40 })
			}
			began := time.Now()
			require.Zero(t, j.kill())
			t.Logf("ended in %v", time.Since(began))
			// Every process of the tree had the streams.
			j.end()
			j.wait()
			require.Equal(t, "0\n", s.run(`grep -l -z '^MARK=`+mark+`$' /proc/[0-9]*/environ 2>/dev/null | wc -l`))
		})
	}
	s.run("kill -0 " + background + " && kill -0 " + fmt.Sprint(other.pid))
	require.Zero(t, other.kill())
}

func TestKill_SeveralAtOnce(t *testing.T) {
	s := start(t, settings{})
	var wait sync.WaitGroup
	survivor := s.bash("exec sleep 1000")
	for range 12 {
		wait.Go(func() {
			j := s.bash("for i in 1 2 3 4 5; do setsid sleep 1000 & done; echo up; wait")
			j.line()
			if left := j.kill(); left != 0 {
				t.Errorf("%d processes are left", left)
			}
			j.end()
			j.wait()
		})
	}
	wait.Wait()
	s.run("kill -0 " + fmt.Sprint(survivor.pid))
}

// The kernel counts descriptors under way per user of the host.
func TestSpawn_DescriptorsCannotBeUsedUp(t *testing.T) {
	s := start(t, settings{})
	flood := s.begin(attackerPath, "attack", "flood")
	sent, err := strconv.Atoi(flood.line())
	require.NoError(t, err)
	require.Greater(t, sent, 1000, "the attack did nothing")
	t.Logf("%d descriptors are under way", sent)
	require.Equal(t, "fine\n", s.run("echo fine"))
	s.opener()
	require.Zero(t, flood.kill())
}

func TestSpawn_RealProgramsWork(t *testing.T) {
	s := start(t, settings{})
	for name, tc := range map[string]struct{ tool, script string }{
		"git":    {"git", "git init -q repo && cd repo && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -q -m m && git log --oneline"},
		"python": {"/usr/bin/python3", `/usr/bin/python3 -c 'import subprocess, threading, multiprocessing; t = threading.Thread(target=lambda: None); t.start(); t.join(); print(subprocess.check_output(["echo", "hi"])); p = multiprocessing.Process(target=print); p.start(); p.join(); assert p.exitcode == 0'`},
		"node":   {"/usr/bin/node", `/usr/bin/node -e 'require("child_process").execSync("true"); new (require("worker_threads").Worker)("1", {eval: true}); require("fs").readFile("/etc/hosts", e => process.exit(e ? 1 : 0))'`},
		"gcc":    {"gcc", "printf '#include <stdio.h>\nint main(void){puts(\"hi\");}' > h.c && gcc -o h h.c && ./h"},
		"make":   {"make", "printf 'all: a b\na b:\n\tsleep 0.01\n' > Makefile && make -j4"},
		"strace": {"strace", "strace -f -o log bash -c '(:) ; true' && test -s log"},
		"tar":    {"tar", "mkdir -p t/d && echo x > t/d/f && tar cf t.tar t && rm -r t && tar xf t.tar && cat t/d/f"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/usr/bin/" + strings.TrimPrefix(tc.tool, "/usr/bin/")); err != nil {
				t.Skipf("this host has no %s", tc.tool)
			}
			s.run(tc.script)
		})
	}
}

// Walking through the processes, for each kill, leaves much behind that only a
// collection gives back.
func TestInit_StaysSmall(t *testing.T) {
	s := start(t, settings{})
	rss := func() (kib int) {
		_, err := fmt.Sscan(s.run("awk '/VmRSS/ {print $2}' /proc/1/status"), &kib)
		require.NoError(t, err)
		return kib
	}
	work := func(rounds int) {
		for range rounds {
			j := s.bash("sleep 100 & sleep 100 & sleep 100")
			require.Zero(t, j.kill())
			j.end()
			j.wait()
		}
	}
	work(20)
	before := rss()
	work(200)
	t.Logf("%d KiB, and %d after 200 kills", before, rss())
	require.Less(t, rss(), before+8<<10)
}
