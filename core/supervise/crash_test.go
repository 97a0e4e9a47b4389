package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/image"
)

// owner is a process that starts commands until it is killed.
func owner(marker string) int {
	ctx := context.Background()
	found, err := FindBwrap(ctx, nil, "", testPath)
	if err != nil {
		return 1
	}
	host, err := bwrap.Survey(bwrap.Request{Path: testPath})
	if err != nil {
		return 1
	}
	program, err := image.Open()
	if err != nil {
		return 1
	}
	fmt.Println("go")
	for range 3 {
		go func() {
			g, err := Start(ctx, Config{Bwrap: found, Image: program, Spec: bwrap.Spec{
				Host: host, Identity: bwrap.Identity{UID: os.Geteuid(), GID: os.Getegid()},
			}})
			if err != nil {
				return
			}
			for range 10 {
				go func() {
					_, _ = g.Spawn(ctx, bash("setsid sleep 300 "+marker+" & exec -a "+marker+" sleep 300"))
				}()
			}
		}()
	}
	select {}
}

func TestCrash_NothingOutlivesItsOwner(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	before := orphans(t, "") // of others on this host
	for round := range 10 {
		marker := fmt.Sprintf("crash-%d-%d", os.Getpid(), round)
		reader, writer, err := pipe()
		require.NoError(t, err)
		child, err := Default().Start(Exec{
			Path: self, Argv: []string{"test", "helper", "owner", marker}, Env: []string{"PATH=/usr/bin"},
			Files: []*os.File{writer, writer, writer},
		})
		require.NoError(t, err)
		_ = writer.Close()
		_, err = reader.Read(make([]byte, 3))
		require.NoError(t, err)
		// From before the first sandbox is up to when everything runs.
		<-time.After(time.Duration(round*80/9) * time.Millisecond)
		require.NoError(t, child.Kill())
		<-child.Done()
		_ = reader.Close()
		require.Eventually(t, func() bool { return marked(marker) == 0 }, 2*time.Second, 5*time.Millisecond,
			"round %d: %d processes are left", round, marked(marker))
		require.Eventually(t, func() bool { return orphans(t, "") <= before }, 2*time.Second, 5*time.Millisecond)
	}
}

// orphans counts bwrap processes that have lost their parent: started by us, in
// a session whose leader is bwrap itself, with the arguments that only we use, on
// that workspace unless it is empty.
func orphans(t testing.TB, workspace string) int {
	t.Helper()
	n := 0
	dirs, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, d := range dirs {
		cmdline, _ := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		if string(cmdline) != "bwrap\x00--args\x004\x00--\x00/proc/self/fd/5\x00" {
			continue
		}
		var ppid int
		stat, _ := os.ReadFile("/proc/" + d.Name() + "/stat")
		_, _ = fmt.Sscanf(string(stat), "%d (bwrap) %c %d", new(int), new(rune), &ppid)
		if ppid == 1 && (workspace == "" || has(d.Name(), workspace)) {
			n++
		}
	}
	return n
}

// has tells whether a process has a directory open.
func has(pid, dir string) bool {
	fds, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	return slices.ContainsFunc(fds, func(fd string) bool {
		target, _ := os.Readlink(fd)
		return target == dir
	})
}

func TestCrash_BwrapKilled(t *testing.T) {
	g, _ := sandbox(t)
	marker := fmt.Sprintf("bwrapkilled-%d", os.Getpid())
	p := spawn(t, g, bash("exec -a "+marker+" sleep 300"))
	require.Eventually(t, func() bool { return marked(marker) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, unix.Kill(g.child.Pid, unix.SIGKILL))
	<-g.Done()
	require.Zero(t, marked(marker), "the sandbox outlived bwrap")
	_, err := p.Wait(t.Context())
	require.ErrorContains(t, err, "ended unexpectedly")
}
