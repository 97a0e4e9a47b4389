//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// Each test here guards one rule of package initproc, by name, and fails with a
// build that breaks it; rules_test.sh proves that.

// statuses prints what must not change about the tasks of process 1.
const statuses = `for t in /proc/1/task/*; do
	grep -E '^(Uid|Gid|NoNewPrivs|Seccomp|Cap...):' $t/status 2>/dev/null | tr '\n' ' '; echo
done | sort -u`

// settled returns the statuses once the threads of finished commands are gone.
func (s *sandbox) settled() string {
	s.t.Helper()
	var all string
	s.until("tasks of process 1 differ", func() bool {
		all = s.run(statuses)
		return strings.Count(all, "\n") == 1
	})
	return all
}

// many runs n commands, some at once, and waits for each. Half of them are ended
// too: with all its processors busy, init's goroutines change threads more often.
func (s *sandbox) many(n int) {
	s.t.Helper()
	var started atomic.Int64
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			for started.Add(1) <= int64(n) {
				j := s.begin("/bin/true")
				j.discard(1)
				j.discard(2)
				if j.id%2 == 0 {
					j.kill()
				}
				j.wait()
			}
		})
	}
	wait.Wait()
}

const manyCommands = 1000

func TestRule1_MainThreadNeverBecomesACommand(t *testing.T) {
	s := start(t, settings{})
	before := s.settled()
	require.Contains(t, before, "CapEff:\t00000000002") // SYS_ADMIN and others
	s.many(manyCommands)
	require.Equal(t, before, s.settled())
}

func TestRule1_InitIsUndumpable(t *testing.T) {
	s := start(t, settings{})
	hunter := s.begin(attackerPath, "attack", "hunt")
	require.Equal(t, "ready", hunter.line())
	s.many(300)
	s.run("touch /tmp/stop")
	out, _ := hunter.end()
	require.Equal(t, "done\n", out)
	require.Zero(t, hunter.wait())
}

func TestRule1_NothingOfInitCanBeReached(t *testing.T) {
	s := start(t, settings{})
	require.Equal(t, "done\n", s.runArgs(attackerPath, "attack", "memory"))
	s.many(manyCommands)
	require.Equal(t, "done\n", s.runArgs(attackerPath, "attack", "memory"))
}

func TestRule2_NoSignalEndsInit(t *testing.T) {
	s := start(t, settings{})
	before := s.settled()
	for range 2 {
		out := s.runArgs(attackerPath, "attack", "signals")
		require.NotContains(t, out, "accepted 0\n", "the attack did nothing")
		s.many(manyCommands / 2)
	}
	require.Equal(t, before, s.settled())
	require.Equal(t, "still here\n", s.run("echo still here"))
}

func TestRule2_NoSignalEndsInitWhileItStartsCommands(t *testing.T) {
	s := start(t, settings{})
	race := s.begin(attackerPath, "attack", "race")
	s.many(manyCommands / 2)
	s.run("touch /tmp/stop")
	out, _ := race.end()
	require.Equal(t, "done\n", out)
	require.Zero(t, race.wait())
}

func TestRule3_InitKeepsNoDescriptor(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	s := start(t, settings{extra: w})
	require.NoError(t, w.Close())
	// Nobody in the sandbox has the writing end any more, and bwrap outside closes its own.
	require.NoError(t, r.SetReadDeadline(time.Now().Add(2*time.Second)))
	_, err = r.Read(make([]byte, 1))
	require.EqualError(t, err, "EOF")
	require.Equal(t, "0 1 2\ndone\n", s.runArgs(attackerPath, "attack", "fds"))
}

func TestRule4_ThreadsAreThrownAway(t *testing.T) {
	s := start(t, settings{})
	before := s.settled()
	s.many(100)
	require.Equal(t, before, s.settled())
}

func TestRule4_CommandsHaveNoPrivilege(t *testing.T) {
	s := start(t, settings{})
	s.many(20)
	status := s.run("cat /proc/self/status")
	for field, want := range map[string]string{
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2",
		"SigBlk": "0000000000000000", "SigIgn": "0000000000000000",
		"Uid": strings.Repeat(fmt.Sprint("\t", os.Getuid()), 4)[1:],
	} {
		require.Contains(t, status, "\n"+field+":\t"+want+"\n")
	}
}

func TestRule5_OpenerRefusesProc(t *testing.T) {
	s := start(t, settings{})
	s.run("ln -s /proc/self/status link; ln -s /proc/1 dir; ln -s /proc/self/fd/3 magic")
	o := s.opener()
	for _, path := range []string{
		"/proc/self/status", "/workspace/link", "/proc/1/environ", "/workspace/dir/environ", "/proc/version", "/proc/sys/kernel/hostname",
	} {
		_, err := o.read(path)
		require.ErrorIs(t, err, unix.EACCES, path)
		_, _, err = o.ask(wire.Message{Kind: wire.KindParent, Path: path, Follow: true})
		require.ErrorIs(t, err, unix.EACCES, path)
	}
	_, err := o.read("/workspace/magic")
	require.ErrorIs(t, err, unix.ELOOP)
}

func TestRule6_EndOfFileEndsEverything(t *testing.T) {
	s := start(t, settings{})
	jobs := []*job{s.bash("sleep 1000"), s.bash("setsid sleep 1000 & exit 0"), s.bash("trap '' TERM HUP; kill -STOP $$; sleep 1000")}
	require.Zero(t, jobs[1].wait())
	require.NoError(t, s.conn.Close())
	select {
	case <-s.ended:
	case <-time.After(2 * time.Second):
		require.FailNow(t, "the sandbox has not ended")
	}
	// The streams end only when every process that has them is gone.
	for _, j := range jobs {
		j.end()
	}
}

func TestRule7_NoNestedUserNamespace(t *testing.T) {
	for name, with := range map[string]settings{
		"by the kernel's limit and the filter": {},
		"by the filter alone":                  {nestedUserNamespaces: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, with)
			out := s.run("unshare --user true 2>&1 || echo refused; unshare --user --uts true 2>&1 || echo refused")
			require.Equal(t, 2, strings.Count(out, "refused"), out)
			require.Contains(t, out, "Operation not permitted")
		})
	}
}

// A command may stop what init is just forking, as it has the same user id.
func TestRule8_NoCommandHoldsUpAnother(t *testing.T) {
	s := start(t, settings{})
	bystander := s.bash("mkfifo /tmp/never; exec 3<>/tmp/never; sleep 1000 & kill -STOP $!; echo $$ $!; read -u 3")
	var awake, stopped int
	_, err := fmt.Sscan(bystander.line(), &awake, &stopped)
	require.NoError(t, err)
	freezer := s.begin(attackerPath, "attack", "freeze")
	require.Equal(t, "ready", freezer.line())
	var victims []*job
	slow, longest := 0, time.Duration(0)
	for range 300 {
		began := time.Now()
		j, failed := s.spawn(wire.Spawn{Argv: []string{"/bin/true"}, Dir: "/workspace"})
		require.Nil(t, failed, "given up as hopeless")
		took := time.Since(began)
		longest = max(longest, took)
		if took > 18*time.Millisecond {
			slow++ // as long as init waits before it helps
		}
		victims = append(victims, j)
		j.discard(1)
		j.discard(2)
	}
	t.Logf("%d of %d starts were held up for a while, the longest for %v", slow, len(victims), longest)
	require.Zero(t, freezer.kill())
	for _, j := range victims {
		require.Zero(t, j.kill())
		j.wait()
	}
	// Whoever was stopped for their sake goes on, and who had been stopped before does not.
	states := fmt.Sprintf("cut -d ' ' -f 3 /proc/%d/stat /proc/%d/stat | paste -sd ' '", awake, stopped)
	require.Equal(t, "S T\n", s.run(states))
	require.Equal(t, "fine\n", s.run("echo fine"))
}
