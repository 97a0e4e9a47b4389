//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/image"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// patience is how long a test waits for something that must come.
const patience = 20 * time.Second

// attackerPath is where the test binary lies in the sandbox, as the attacker.
const attackerPath = "/attacker"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		os.Exit(attack(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// sandbox is a real one, started without a supervisor.
type sandbox struct {
	t    *testing.T
	conn *wire.Conn
	// dir is /workspace.
	dir    string
	bwrap  *exec.Cmd
	ended  chan struct{}
	stderr *bytes.Buffer
	nextID atomic.Uint64

	// mu guards the fields below it.
	mu      sync.Mutex
	waiting map[string]chan received
	gone    bool
}

type received struct {
	wire.Message
	fds []int
}

// settings vary a sandbox. The zero value is what is shipped.
type settings struct {
	// nestedUserNamespaces leaves them to init's filter alone.
	nestedUserNamespaces bool
	// extra is one more descriptor that bwrap is started with.
	extra *os.File
	// binds are paths of the host to bind writable, each to a path inside.
	binds map[string]string
}

func start(t *testing.T, with settings) *sandbox {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	s := &sandbox{t: t, dir: t.TempDir(), ended: make(chan struct{}), stderr: &bytes.Buffer{}, waiting: map[string]chan received{}}
	args := []string{"--unshare-user"}
	if !with.nestedUserNamespaces {
		args = append(args, "--disable-userns")
	}
	args = append(args,
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1", "--die-with-parent", "--hostname", "sandbox",
		"--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_PTRACE", "--cap-add", "CAP_SETPCAP", "--cap-add", "CAP_NET_ADMIN",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--symlink", "usr/sbin", "/sbin", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--ro-bind", self, attackerPath, "--bind", s.dir, "/workspace",
	)
	for host, inside := range with.binds {
		args = append(args, "--bind", host, inside)
	}
	argsFD, err := wire.SealedMemfd("arguments", []byte(strings.Join(args, "\x00")+"\x00"))
	require.NoError(t, err)
	argsFile := os.NewFile(uintptr(argsFD), "arguments")
	defer argsFile.Close()
	ours, theirs, err := wire.Pair()
	require.NoError(t, err)
	theirFile := os.NewFile(uintptr(theirs), "control")
	defer theirFile.Close()

	s.bwrap = exec.Command("bwrap", "--args", "4", "--", "/proc/self/fd/5")
	s.bwrap.Env = []string{}
	s.bwrap.ExtraFiles = []*os.File{theirFile, argsFile, program(t)}
	if with.extra != nil {
		s.bwrap.ExtraFiles = append(s.bwrap.ExtraFiles, with.extra)
	}
	s.bwrap.Stderr = s.stderr
	require.NoError(t, s.bwrap.Start())
	go func() {
		_ = s.bwrap.Wait()
		close(s.ended)
	}()
	s.conn, err = wire.NewConn(ours)
	require.NoError(t, err)
	t.Cleanup(s.stop)
	hello := s.expect(wire.KindHello, 0)
	go s.dispatch()
	require.Equal(t, wire.Version, s.await(hello).Version)
	return s
}

// program is the image to test: what is shipped, or what the environment names,
// which is how the script beside this file tests builds with a broken rule.
func program(t *testing.T) *os.File {
	path := os.Getenv("SBX_TEST_INIT")
	if path == "" {
		f, err := image.Open()
		require.NoError(t, err)
		return f
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (s *sandbox) dispatch() {
	for {
		m, fds, err := s.conn.Recv()
		if err != nil {
			s.mu.Lock()
			s.gone = true
			for _, ch := range s.waiting {
				close(ch)
			}
			s.waiting = map[string]chan received{}
			s.mu.Unlock()
			return
		}
		key := key(m.Kind, m.ID)
		s.mu.Lock()
		ch := s.waiting[key]
		delete(s.waiting, key)
		s.mu.Unlock()
		if ch == nil {
			s.t.Errorf("unexpected message %+v", m)
			continue
		}
		ch <- received{m, fds}
	}
}

// key puts the two answers that a request may get into one place.
func key(kind wire.Kind, id uint64) string {
	switch kind {
	case wire.KindStarted, wire.KindFailed, wire.KindOpened, wire.KindOpener:
		kind = "reply"
	}
	return fmt.Sprint(kind, id)
}

// expect says that one message of this kind will come.
func (s *sandbox) expect(kind wire.Kind, id uint64) chan received {
	ch := make(chan received, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		close(ch)
	} else {
		s.waiting[key(kind, id)] = ch
	}
	return ch
}

func (s *sandbox) await(ch chan received) received {
	s.t.Helper()
	select {
	case m, ok := <-ch:
		require.True(s.t, ok, "the sandbox has ended")
		return m
	case <-time.After(patience):
		require.FailNow(s.t, "no answer from init")
		panic("not reached")
	}
}

// stop ends the sandbox and waits for it.
func (s *sandbox) stop() {
	_ = s.conn.Close()
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = s.bwrap.Process.Kill()
		<-s.ended
		s.t.Error("the sandbox did not end with its socket")
	}
	if s.stderr.Len() > 0 {
		s.t.Logf("bwrap: %s", s.stderr)
	}
}

// job is a command in the sandbox.
type job struct {
	s              *sandbox
	id             uint64
	pid            int
	stdout, stderr *os.File
	stdin          *os.File
	exited         chan received
}

// spawn starts a command and returns either it or why there is none. The
// descriptors go with the request.
func (s *sandbox) spawn(spawn wire.Spawn, fds ...int) (*job, *wire.Message) {
	s.t.Helper()
	if spawn.Network == "" {
		spawn.Network = wire.NetworkShared
	}
	if spawn.Dir == "" {
		spawn.Dir = "/workspace"
	}
	if spawn.Env == nil {
		spawn.Env = []string{"PATH=/usr/bin:/bin", "HOME=/workspace", "LC_ALL=C"}
	}
	id := s.nextID.Add(1)
	reply, exited := s.expect(wire.KindStarted, id), s.expect(wire.KindExited, id)
	s.conn.Send(wire.Message{Kind: wire.KindSpawn, ID: id, Spawn: &spawn}, fds...)
	m := s.await(reply)
	if m.Kind == wire.KindFailed {
		return nil, &m.Message
	}
	require.GreaterOrEqual(s.t, len(m.fds), 2)
	j := &job{s: s, id: id, pid: m.Pid, exited: exited}
	j.stdout = os.NewFile(uintptr(m.fds[0]), "stdout")
	j.stderr = os.NewFile(uintptr(m.fds[1]), "stderr")
	if spawn.Stdin {
		require.Len(s.t, m.fds, 3)
		j.stdin = os.NewFile(uintptr(m.fds[2]), "stdin")
	}
	return j, nil
}

// begin starts a command that must start.
func (s *sandbox) begin(argv ...string) *job {
	s.t.Helper()
	j, failed := s.spawn(wire.Spawn{Argv: argv})
	require.Nil(s.t, failed, "%v", argv)
	return j
}

// bash starts a script.
func (s *sandbox) bash(script string) *job {
	s.t.Helper()
	return s.begin("/bin/bash", "-c", script)
}

// wait returns the wait status of the main process.
func (j *job) wait() unix.WaitStatus {
	j.s.t.Helper()
	return unix.WaitStatus(j.s.await(j.exited).Status)
}

// end reads both streams to their end and returns what they held.
func (j *job) end() (stdout, stderr string) {
	j.s.t.Helper()
	type text struct {
		content []byte
		err     error
	}
	texts := make([]chan text, 2)
	for i, f := range []*os.File{j.stdout, j.stderr} {
		texts[i] = make(chan text, 1)
		go func() {
			content, err := io.ReadAll(f)
			texts[i] <- text{content, err}
		}()
	}
	var out [2]string
	for i, ch := range texts {
		select {
		case read := <-ch:
			require.NoError(j.s.t, read.err)
			out[i] = string(read.content)
		case <-time.After(patience):
			require.FailNow(j.s.t, "a stream does not end")
		}
	}
	j.discard(1)
	j.discard(2)
	return out[0], out[1]
}

// discard gives up reading a stream.
func (j *job) discard(stream int) {
	_ = map[int]*os.File{1: j.stdout, 2: j.stderr}[stream].Close()
	j.s.conn.Send(wire.Message{Kind: wire.KindDiscard, ID: j.id, Stream: stream})
}

// line reads one line of stdout.
func (j *job) line() string {
	j.s.t.Helper()
	require.NoError(j.s.t, j.stdout.SetReadDeadline(time.Now().Add(patience)))
	var line []byte
	for {
		var b [1]byte
		_, err := io.ReadFull(j.stdout, b[:])
		require.NoError(j.s.t, err, "after %q", line)
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// kill ends the tree and returns how much of it is left.
func (j *job) kill() int {
	j.s.t.Helper()
	killed := j.s.expect(wire.KindKilled, j.id)
	j.s.conn.Send(wire.Message{Kind: wire.KindKill, ID: j.id})
	return j.s.await(killed).Left
}

// run runs a script to its end; it must exit with 0.
func (s *sandbox) run(script string) string {
	s.t.Helper()
	return s.runArgs("/bin/bash", "-c", script)
}

func (s *sandbox) runArgs(argv ...string) string {
	s.t.Helper()
	j := s.begin(argv...)
	stdout, stderr := j.end()
	status := j.wait()
	require.Zero(s.t, status, "%v: status %#x, said: %s%s", argv, status, stdout, stderr)
	return stdout
}

// until asks again and again, each time with a command or two, until it is so.
func (s *sandbox) until(what string, so func() bool) {
	s.t.Helper()
	for began := time.Now(); !so(); {
		require.Less(s.t, time.Since(began), patience, what)
	}
}

// write puts a file into the workspace, from outside.
func (s *sandbox) write(name, content string, mode os.FileMode) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(s.t, os.WriteFile(path, []byte(content), mode))
	require.NoError(s.t, os.Chmod(path, mode))
}

// opener is a conversation with the opener.
type opener struct {
	t    *testing.T
	conn *wire.Conn
	pid  int
}

func (s *sandbox) opener() *opener {
	s.t.Helper()
	id := s.nextID.Add(1)
	ours, theirs, err := wire.Pair()
	require.NoError(s.t, err)
	conn, err := wire.NewConn(ours)
	require.NoError(s.t, err)
	reply := s.expect(wire.KindOpener, id)
	s.conn.Send(wire.Message{Kind: wire.KindOpener, ID: id}, theirs)
	m := s.await(reply)
	require.Equal(s.t, wire.KindOpener, m.Kind, "%+v", m.Message)
	require.Empty(s.t, m.fds)
	s.t.Cleanup(func() { _ = conn.Close() })
	return &opener{t: s.t, conn: conn, pid: m.Pid}
}

// ask sends one request and returns the reply with its descriptor, or -1.
func (o *opener) ask(m wire.Message) (wire.Message, int, error) {
	o.t.Helper()
	m.ID = 7
	o.conn.Send(m)
	type answer struct {
		m   wire.Message
		fds []int
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		reply, fds, err := o.conn.Recv()
		ch <- answer{reply, fds, err}
	}()
	select {
	case a := <-ch:
		if a.err != nil {
			return a.m, -1, a.err
		}
		require.EqualValues(o.t, 7, a.m.ID)
		if a.m.Kind == wire.KindOpened {
			require.Len(o.t, a.fds, 1)
			return a.m, a.fds[0], nil
		}
		require.Empty(o.t, a.fds)
		return a.m, -1, unix.Errno(a.m.Errno)
	case <-time.After(patience):
		require.FailNow(o.t, "no answer from the opener")
		panic("not reached")
	}
}

// read opens and reads a file.
func (o *opener) read(path string) (string, error) {
	o.t.Helper()
	_, fd, err := o.ask(wire.Message{Kind: wire.KindOpen, Path: path})
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	content, err := io.ReadAll(f)
	require.NoError(o.t, err)
	return string(content), nil
}
