//go:build linux

package initproc

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/seccomp"
)

// throwAwayThread ties the calling goroutine to a thread that ends with it.
// Namespaces, credentials and filters belong to threads: one that has become a
// command's must never serve another goroutine (rule init4).
func throwAwayThread() {
	if holds("init4") {
		// Without unlocking: then the runtime ends the thread, and starts new ones
		// from a clean one, not from this.
		runtime.LockOSThread()
	}
}

// pass lets init's own calls through the filter that all processes of the sandbox
// share, see seccomp.Compile. Nothing can read it: init is undumpable.
type pass uint64

// newPass puts this process, with all that it will start, under the commands'
// filter, and returns what only this process can do from then on.
func newPass() (pass, error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // documented never to fail
	p := pass(binary.NativeEndian.Uint64(random[:]) | 1)
	filter, err := seccomp.Compile(rules(), uint64(p))
	if err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("set no_new_privs: %w", err)
	}
	return p, filter.Install()
}

// call makes a system call of at most five arguments.
func (p pass) call(number uintptr, args ...uintptr) error {
	var a [5]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], uintptr(p)); errno != 0 {
		return errno
	}
	return nil
}

// mark is the UTS namespace that all processes of a command share and nobody
// else. They cannot leave it: that takes a capability, or a user namespace.
type mark struct {
	inode uint64
	// pin keeps the namespace, and so its number, from being given to another.
	pin int
}

func (m mark) release() { _ = unix.Close(m.pin) }

// newMark moves the thread into a new UTS namespace.
func newMark(p pass) (mark, error) {
	if err := p.call(unix.SYS_UNSHARE, unix.CLONE_NEWUTS); err != nil {
		return mark{}, fmt.Errorf("make UTS namespace: %w", err)
	}
	return openMark()
}

func openMark() (mark, error) {
	fd, err := unix.Open("/proc/thread-self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return mark{}, fmt.Errorf("open UTS namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return mark{}, fmt.Errorf("stat UTS namespace: %w", err)
	}
	return mark{inode: st.Ino, pin: fd}, nil
}

// marks gives every command its mark. One is made ahead, while nobody waits for
// it: that takes as long as most of the rest together.
type marks struct {
	ahead  chan mark
	wanted chan struct{}
}

// newMarks wants the first one at once.
func newMarks() marks {
	m := marks{make(chan mark, 1), make(chan struct{}, 1)}
	m.want()
	return m
}

// enter moves the thread, which is thrown away, into a mark of its own.
func (m marks) enter(p pass) (mark, error) {
	select {
	case ahead := <-m.ahead:
		if err := p.call(unix.SYS_SETNS, uintptr(ahead.pin), unix.CLONE_NEWUTS); err != nil {
			ahead.release()
			return mark{}, fmt.Errorf("enter UTS namespace: %w", err)
		}
		return ahead, nil
	default:
		return newMark(p)
	}
}

// want has one made ahead, if there is none.
func (m marks) want() {
	select {
	case m.wanted <- struct{}{}:
	default:
	}
}

// makeAhead serves want, on a thread of its own. It ends on a kernel that
// refuses: then the commands make theirs, and are told why they cannot.
func (m marks) makeAhead(p pass) {
	throwAwayThread()
	// To come back to: bwrap's user namespace bars the way to init's own, and who
	// stayed in a mark would be one of its processes.
	neutral, err := newMark(p)
	if err != nil {
		return
	}
	for range m.wanted {
		if len(m.ahead) > 0 {
			continue
		}
		fresh, err := newMark(p)
		if err != nil {
			return
		}
		if err := p.call(unix.SYS_SETNS, uintptr(neutral.pin), unix.CLONE_NEWUTS); err != nil {
			fresh.release()
			return
		}
		m.ahead <- fresh
	}
}

// isolatedNetwork is the network namespace of all commands that may reach
// nothing. It is made when the first of them comes.
type isolatedNetwork struct {
	// mu guards the fields below it, and is held while the namespace is made:
	// whoever asks meanwhile wants that one.
	mu   sync.Mutex
	made bool
	fd   int
}

// enter moves the thread into the namespace that network names.
func (n *isolatedNetwork) enter(network wire.Network, p pass) error {
	switch network {
	case wire.NetworkShared:
		return nil
	case wire.NetworkNone:
	default:
		return fmt.Errorf("network %q: %w", network, unix.EINVAL)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made {
		if err := p.call(unix.SYS_SETNS, uintptr(n.fd), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return nil
	}
	if err := p.call(unix.SYS_UNSHARE, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	n.fd, n.made = fd, true
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	return nil
}

// secureBits keep user id 0 from meaning anything on exec, for good.
const secureBits = 1<<0 | 1<<1 | // NOROOT, locked
	1<<2 | 1<<3 | // NO_SETUID_FIXUP, locked
	1<<5 | // KEEP_CAPS, locked off
	1<<6 | 1<<7 // NO_CAP_AMBIENT_RAISE, locked

// boundingSet returns the capabilities that bwrap has left in the bounding set of
// this process.
func boundingSet() (set []uintptr) {
	for capability := uintptr(0); ; capability++ {
		in, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, capability, 0)
		if errno != 0 {
			return set // past the last one this kernel knows
		}
		if in == 1 {
			set = append(set, capability)
		}
	}
}

// dropPrivileges takes everything from the thread that a command must not have;
// bounding is init's bounding set.
// The order matters: each step needs what a later one takes.
func dropPrivileges(p pass, bounding []uintptr) error {
	// The mask of bwrap's starter must not become the commands'.
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	// A keyring without a name, so that the session keyring of whoever started
	// Node is not the command's. Hosts without keyrings, or with a full quota,
	// leave it as it is; the filter refuses commands all use of it.
	_ = p.call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING)
	if !holds("init4b") {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return fmt.Errorf("set secure bits: %w", err)
	}
	for _, capability := range bounding {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
