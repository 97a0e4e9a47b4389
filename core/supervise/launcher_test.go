package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// run starts this binary as a helper and returns what it writes and how it ends.
func run(t testing.TB, extra []*os.File, exec Exec, args ...string) (string, *Child) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	exec.Path = self
	exec.Argv = append([]string{"test", "helper"}, args...)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	reader, writer, err := pipe()
	require.NoError(t, err)
	exec.Files = append([]*os.File{null, writer, null}, extra...)
	child, err := Default().Start(exec)
	_ = writer.Close()
	require.NoError(t, err)
	out, err := io.ReadAll(reader)
	require.NoError(t, err)
	_ = reader.Close()
	return string(out), child
}

func TestLauncher_ChildStartsClean(t *testing.T) {
	// What Node and Go leave ignored or handled must not reach the child.
	signal.Ignore(unix.SIGPIPE, unix.SIGXFSZ)
	defer signal.Reset(unix.SIGPIPE, unix.SIGXFSZ)
	leak, err := unix.Dup(0) // neither close-on-exec nor ours to pass on
	require.NoError(t, err)
	defer func() { _ = unix.Close(leak) }()

	a, b := temp(t), temp(t)
	out, child := run(t, []*os.File{b, a, b}, Exec{Dir: "/usr"}, "report")
	status, err := child.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 0, status.ExitStatus())
	require.Contains(t, out, "SigBlk:\t0000000000000000\n")
	require.Contains(t, out, "SigIgn:\t0000000000000000\n")
	require.Contains(t, out, "leader true\n")
	require.Contains(t, out, "dir /usr\nenv []\n")
	require.Contains(t, out, fmt.Sprintf("fd 3 ino %d\nfd 4 ino %d\nfd 5 ino %d\n", inode(t, b), inode(t, a), inode(t, b)))
	require.Equal(t, 6, strings.Count(out, "fd "), out)
}

func temp(t testing.TB) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "f")
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func inode(t testing.TB, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(f.Name(), &st))
	return st.Ino
}

func TestLauncher_ManyDescriptorsOfOneFile(t *testing.T) {
	f := temp(t)
	files := make([]*os.File, 500)
	for i := range files {
		files[i] = f
	}
	out, child := run(t, files, Exec{}, "report")
	_, err := child.Wait(t.Context())
	require.NoError(t, err)
	require.Contains(t, out, fmt.Sprintf("fd 63 ino %d\n", inode(t, f)))
}

func TestLauncher_ReportsErrno(t *testing.T) {
	before := children(t)
	for name, tc := range map[string]struct {
		exec Exec
		want error
	}{
		"no program":     {Exec{Path: "/nonexistent", Argv: []string{"x"}}, unix.ENOENT},
		"not executable": {Exec{Path: "/etc/passwd", Argv: []string{"x"}}, unix.EACCES},
		"no directory":   {Exec{Path: "/bin/true", Argv: []string{"x"}, Dir: "/nonexistent"}, unix.ENOENT},
		"too long":       {Exec{Path: "/bin/true", Argv: []string{"x", strings.Repeat("x", 1<<20)}}, unix.E2BIG},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Default().Start(tc.exec)
			require.ErrorIs(t, err, tc.want)
		})
	}
	require.Equal(t, before, children(t), "a failed child was not reaped")
	_, err := Default().Start(Exec{Path: "/bin/true", Files: []*os.File{nil}})
	require.Error(t, err)
	closed := temp(t)
	require.NoError(t, closed.Close())
	_, err = Default().Start(Exec{Path: "/bin/true", Files: []*os.File{closed}})
	require.ErrorContains(t, err, "descriptor 0")
}

func TestLauncher_SurvivesAPanic(t *testing.T) {
	l := NewLauncher()
	err := l.do(func() error { panic("boom") })
	require.Equal(t, errdefs.Internal, errdefs.CodeOf(err))
	require.NoError(t, l.do(func() error { return nil }))
}

func TestChild_ManyAtOnceWithTheirOwnStatus(t *testing.T) {
	before, fdsBefore := children(t), fds(t)
	threads := threadCount(t)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			child, err := Default().Start(Exec{Path: "/bin/sh", Argv: []string{"sh", "-c", fmt.Sprintf("sleep 0.2; exit %d", i%100)}})
			if err != nil {
				t.Error(err)
				return
			}
			status, err := child.Wait(context.Background())
			if err != nil || status.ExitStatus() != i%100 {
				t.Errorf("child %d: %v %v", i, status, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, before, children(t))
	require.Eventually(t, func() bool { return fds(t) <= fdsBefore }, 5*time.Second, 5*time.Millisecond)
	require.Less(t, threadCount(t), threads+50, "a thread waits for each child")
}

func threadCount(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(list)
}

func TestChild_KillAndWait(t *testing.T) {
	child, err := Default().Start(Exec{Path: "/bin/sleep", Argv: []string{"sleep", "100"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = child.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, child.Kill())
	status, err := child.Wait(t.Context())
	require.NoError(t, err)
	require.True(t, status.Signaled())
	require.Equal(t, unix.SIGKILL, status.Signal())
	require.NoError(t, child.Kill(), "a child that has ended is left alone")
}

// The rule that guards bwrap's --die-with-parent: what is started lives as long
// as the process, not as long as the thread that asked for it.
func TestLauncher_ChildOutlivesTheThreadThatAsked(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	reader, writer, err := pipe()
	require.NoError(t, err)
	defer func() { _ = reader.Close() }()
	started := make(chan *Child)
	gone := make(chan int)
	var ask func()
	ask = func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		if unix.Gettid() == os.Getpid() {
			go ask() // the main thread cannot end
			return
		}
		defer func() { gone <- unix.Gettid() }()
		child, err := Default().Start(Exec{Path: self, Argv: []string{"test", "helper", "pdeath"}, Files: []*os.File{writer, writer, writer}})
		if err != nil {
			t.Error(err)
		}
		started <- child
		// The child asks for its parent-death signal before it says so.
		_, _ = bufio.NewReader(reader).ReadString('\n')
	}
	go ask()
	child := <-started
	defer func() { _ = child.Kill(); <-child.Done() }()
	_ = writer.Close()
	tid := <-gone
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return errors.Is(err, os.ErrNotExist)
	}, 5*time.Second, time.Millisecond)
	select {
	case <-child.Done():
		t.Fatal("the child died with the thread that asked for it")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestTryUserns(t *testing.T) {
	require.NoError(t, Default().tryUserns())
}
