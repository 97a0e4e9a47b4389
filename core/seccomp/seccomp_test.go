//go:build linux

package seccomp

import (
	"encoding/binary"
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
	p, err := Compile(Commands())
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
		p, err := Compile(rules)
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
			_, err := Compile(rules)
			require.Error(t, err)
		})
	}
}

func TestInstall_BindsTheThreadAlone(t *testing.T) {
	p, err := Compile(Commands())
	require.NoError(t, err)
	type result struct {
		install, unshare, socket error
		seccomp                  int
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread must end with this goroutine.
		runtime.LockOSThread()
		var r result
		r.install = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if r.install == nil {
			r.install = p.Install()
		}
		r.unshare = unix.Unshare(unix.CLONE_NEWUSER)
		_, r.socket = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		r.seccomp, _ = unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
		done <- r
	}()
	r := <-done
	require.NoError(t, r.install)
	require.ErrorIs(t, r.unshare, unix.EPERM)
	require.ErrorIs(t, r.socket, unix.EAFNOSUPPORT)
	require.Equal(t, unix.SECCOMP_MODE_FILTER, r.seccomp)

	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	require.NoError(t, err)
	require.NotEqual(t, unix.SECCOMP_MODE_FILTER, mode, "the filter came to another thread")
}

func BenchmarkInstall(b *testing.B) {
	p, err := Compile(Commands())
	require.NoError(b, err)
	for b.Loop() {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			done <- p.Install()
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
