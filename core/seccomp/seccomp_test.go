//go:build linux

package seccomp

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// judge runs the program the way the kernel does.
func judge(t *testing.T, p Program, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(p))
	for i, in := range p {
		raw[i] = bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	insns, decoded := bpf.Disassemble(raw)
	require.True(t, decoded)
	vm, err := bpf.NewVM(insns)
	require.NoError(t, err)
	// The VM loads big-endian words, the kernel native ones: only the byte order
	// within each word differs, so words are written in the VM's order.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offsetNumber:], nr)
	binary.BigEndian.PutUint32(data[offsetArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offsetArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offsetArgs+8*i+4:], uint32(a>>32))
	}
	verdict, err := vm.Run(data)
	require.NoError(t, err)
	return uint32(verdict)
}

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

func TestCommands(t *testing.T) {
	p, err := Compile(Commands(), 0)
	require.NoError(t, err)
	const allowed = unix.SECCOMP_RET_ALLOW
	const high = 1 << 32
	for name, tc := range map[string]struct {
		nr   uint32
		args []uint64
		want uint32
	}{
		"read":                     {unix.SYS_READ, nil, allowed},
		"openat":                   {unix.SYS_OPENAT, nil, allowed},
		"ptrace":                   {unix.SYS_PTRACE, nil, allowed},
		"a number from the future": {1000, nil, allowed},
		"fork":                     {unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, allowed},
		"thread":                   {unix.SYS_CLONE, []uint64{0x3d0f00}, allowed},
		"clone user namespace":     {unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, errno(unix.EPERM)},
		"clone UTS namespace":      {unix.SYS_CLONE, []uint64{unix.CLONE_NEWUTS}, errno(unix.EPERM)},
		"clone with upper bits":    {unix.SYS_CLONE, []uint64{high | unix.CLONE_NEWUSER}, errno(unix.EPERM)},
		"clone3":                   {unix.SYS_CLONE3, nil, errno(unix.ENOSYS)},
		"unshare user namespace":   {unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, errno(unix.EPERM)},
		"unshare time namespace":   {unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, errno(unix.EPERM)},
		"unshare files":            {unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES}, allowed},
		"setns":                    {unix.SYS_SETNS, nil, errno(unix.EPERM)},
		"mount":                    {unix.SYS_MOUNT, nil, errno(unix.EPERM)},
		"mount_setattr":            {unix.SYS_MOUNT_SETATTR, nil, errno(unix.EPERM)},
		"keyctl":                   {unix.SYS_KEYCTL, nil, errno(unix.EPERM)},
		"own limits":               {unix.SYS_PRLIMIT64, []uint64{0}, allowed},
		"limits of process 1":      {unix.SYS_PRLIMIT64, []uint64{1}, errno(unix.EPERM)},
		"bpf":                      {unix.SYS_BPF, nil, errno(unix.EPERM)},
		"io_uring_setup":           {unix.SYS_IO_URING_SETUP, nil, errno(unix.EPERM)},
		"terminal size":            {unix.SYS_IOCTL, []uint64{1, unix.TIOCGWINSZ}, allowed},
		"TIOCSTI":                  {unix.SYS_IOCTL, []uint64{1, unix.TIOCSTI}, errno(unix.EPERM)},
		"TIOCSTI with upper bits":  {unix.SYS_IOCTL, []uint64{1, high | unix.TIOCSTI}, errno(unix.EPERM)},
		"TIOCLINUX":                {unix.SYS_IOCTL, []uint64{1, unix.TIOCLINUX}, errno(unix.EPERM)},
		"fchmod":                   {unix.SYS_FCHMOD, []uint64{3, 0o755}, allowed},
		"fchmod setuid":            {unix.SYS_FCHMOD, []uint64{3, 0o4755}, errno(unix.EPERM)},
		"fchmodat setgid":          {unix.SYS_FCHMODAT, []uint64{3, 0, 0o2755}, errno(unix.EPERM)},
		"fchmodat2 setgid":         {unix.SYS_FCHMODAT2, []uint64{3, 0, 0o2755}, errno(unix.EPERM)},
		"sticky":                   {unix.SYS_FCHMODAT, []uint64{3, 0, 0o1777}, allowed},
		"unix socket":              {unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allowed},
		"inet6 socket":             {unix.SYS_SOCKET, []uint64{unix.AF_INET6}, allowed},
		"netlink socket":           {unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, allowed},
		"vsock":                    {unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, errno(unix.EAFNOSUPPORT)},
		"packet socket":            {unix.SYS_SOCKET, []uint64{unix.AF_PACKET}, errno(unix.EAFNOSUPPORT)},
		"vsock with upper bits":    {unix.SYS_SOCKET, []uint64{high | unix.AF_VSOCK}, errno(unix.EAFNOSUPPORT)},
		"x32":                      {x32Bit | unix.SYS_READ, nil, errno(unix.ENOSYS)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, judge(t, p, auditArch, tc.nr, tc.args...))
		})
	}
	t.Run("another architecture", func(t *testing.T) {
		require.Equal(t, uint32(unix.SECCOMP_RET_KILL_PROCESS), judge(t, p, unix.AUDIT_ARCH_I386, unix.SYS_READ))
	})
}

// Every rule must be reached by the search, and its neighbours must not be.
func TestCompile_FindsEveryNumberAndNoOther(t *testing.T) {
	for size := range 40 {
		var calls []uint32
		for i := range size {
			calls = append(calls, uint32(10+3*i))
		}
		var rules []Rule
		if size > 0 {
			rules = []Rule{{Group: "some", Calls: calls}}
		}
		p, err := Compile(rules, 0)
		require.NoError(t, err)
		refused := 0
		for nr := range uint32(200) {
			if judge(t, p, auditArch, nr) == errno(unix.EPERM) {
				require.Contains(t, calls, nr)
				refused++
			}
		}
		require.Equal(t, size, refused)
	}
}

func TestCompile_RefusesTablesThatCannotMeanAnything(t *testing.T) {
	for name, rules := range map[string][]Rule{
		"no call":          {{Group: "a"}},
		"twice":            {{Group: "a", Calls: []uint32{1}}, {Group: "b", Calls: []uint32{1}}},
		"argument 6":       {{Group: "a", Calls: []uint32{1}, Test: OneOf, Arg: 6, Values: []uint32{1}}},
		"argument -1":      {{Group: "a", Calls: []uint32{1}, Arg: -1}},
		"always a value":   {{Group: "a", Calls: []uint32{1}, Values: []uint32{1}}},
		"two masks":        {{Group: "a", Calls: []uint32{1}, Test: AnyBit, Values: []uint32{1, 2}}},
		"one of nothing":   {{Group: "a", Calls: []uint32{1}, Test: OneOf}},
		"an unknown test":  {{Group: "a", Calls: []uint32{1}, Test: NoneOf + 1}},
		"too many choices": {{Group: "a", Calls: []uint32{1}, Test: OneOf, Values: make([]uint32, 201)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(rules, 0)
			require.Error(t, err)
		})
	}
}

func TestCompile_Pass(t *testing.T) {
	const pass = 0x89abcdef_01234567
	p, err := Compile(Commands(), pass)
	require.NoError(t, err)
	none, err := Compile(Commands(), 0)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		nr       uint32
		first    uint64
		passable bool
	}{
		"unshare": {unix.SYS_UNSHARE, unix.CLONE_NEWUTS, true},
		"setns":   {unix.SYS_SETNS, 3, true},
		"keyctl":  {unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, true},
		"limits":  {unix.SYS_PRLIMIT64, 7, true},
		"mount":   {unix.SYS_MOUNT, 0, false},
		"bpf":     {unix.SYS_BPF, 0, false},
		"clone":   {unix.SYS_CLONE, unix.CLONE_NEWUSER, false},
	} {
		t.Run(name, func(t *testing.T) {
			want := errno(unix.EPERM)
			if tc.passable {
				want = unix.SECCOMP_RET_ALLOW
			}
			require.Equal(t, want, judge(t, p, auditArch, tc.nr, tc.first, 0, 0, 0, 0, pass))
			for _, wrong := range []uint64{0, 1, pass & 0xffffffff, pass >> 32, pass &^ 0xffffffff, pass ^ 1, pass ^ 1<<63} {
				require.Equal(t, errno(unix.EPERM), judge(t, p, auditArch, tc.nr, tc.first, 0, 0, 0, 0, wrong), "%#x", wrong)
			}
			require.Equal(t, errno(unix.EPERM), judge(t, none, auditArch, tc.nr, tc.first, 0, 0, 0, 0, 0))
		})
	}
}

// installer is set in the process that TestInstall starts: a filter cannot be
// taken off again.
const installer = "SBX_TEST_INSTALL"

func TestInstall(t *testing.T) {
	if os.Getenv(installer) != "" {
		installHere(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestInstall$", "-test.v")
	cmd.Env = append(os.Environ(), installer+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestInstall")
}

func installHere(t *testing.T) {
	const pass = 0x1234567_89abcdef
	p, err := Compile(Commands(), pass)
	require.NoError(t, err)
	// A thread that was there before, held until the end.
	before, end := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before <- struct{}{}
		<-end
		result <- unix.Unshare(unix.CLONE_NEWUSER)
	}()
	<-before
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	require.NoError(t, p.Install())
	close(end)
	require.ErrorIs(t, <-result, unix.EPERM, "a thread that was there")
	_, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	require.ErrorIs(t, err, unix.EAFNOSUPPORT)

	join := func(pass uintptr) unix.Errno {
		_, _, errno := unix.RawSyscall6(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0, pass)
		return errno
	}
	require.Equal(t, unix.EPERM, join(pass+1))
	require.NotEqual(t, unix.EPERM, join(pass), "the kernel may have no keyrings, but the filter lets it through")
	require.Equal(t, []byte("child\n"), output(t, "sh", "-c", "echo child"))
	require.Equal(t, []byte("refused\n"), output(t, "sh", "-c", "unshare -U true 2>/dev/null || echo refused"))
}

func output(t *testing.T, name string, args ...string) []byte {
	out, err := exec.Command(name, args...).Output()
	require.NoError(t, err)
	return out
}
