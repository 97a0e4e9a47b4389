// Package feature asks the host what it can do.
//
// An answer is yes, no, or unknown: a probe that could not run is not a no, and
// is never remembered. Feature finds facts; what follows from them is decided
// by package bwrap (arguments) and package doctor (remedies).
package feature

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Answer is what a probe found out. The zero value is Unknown.
type Answer int

// The three answers.
const (
	Unknown Answer = iota
	No
	Yes
)

// String returns "unknown", "no" or "yes".
func (a Answer) String() string { return [...]string{"unknown", "no", "yes"}[a] }

func answer(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// Bwrap says which options a bwrap has. The zero value knows nothing of it.
type Bwrap struct {
	// DisableUserns is --disable-userns (0.8).
	DisableUserns Answer
	// BindFD is --bind-fd.
	BindFD Answer
	// Size is --size and Perms --perms (0.6, 0.5).
	Size, Perms Answer
	// AsPID1 is --as-pid-1 and Args --args; without them there is no sandbox.
	AsPID1, Args Answer
}

// ParseHelp reads the options out of what `bwrap --help` writes. Text that
// lists no options at all answers nothing.
func ParseHelp(help string) Bwrap {
	options := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(help))
	for lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) > 0 && strings.HasPrefix(words[0], "--") {
			options[words[0]] = true
		}
	}
	if len(options) == 0 {
		return Bwrap{}
	}
	has := func(option string) Answer { return answer(options[option]) }
	return Bwrap{
		DisableUserns: has("--disable-userns"), BindFD: has("--bind-fd"),
		Size: has("--size"), Perms: has("--perms"), AsPID1: has("--as-pid-1"), Args: has("--args"),
	}
}

// ErrNotFound is returned by Lookup when there is no such program.
var ErrNotFound = errors.New("not found")

// Lookup returns the absolute path of an executable: name itself when it has a
// slash, else the first match in the given value of PATH. Relative entries of
// PATH are passed over: what they mean changes with the working directory.
// The error wraps ErrNotFound.
func Lookup(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", err
		}
		if !executable(abs) {
			return "", &os.PathError{Op: "find", Path: name, Err: ErrNotFound}
		}
		return abs, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if candidate := filepath.Join(dir, name); filepath.IsAbs(dir) && executable(candidate) {
			return candidate, nil
		}
	}
	return "", &os.PathError{Op: "find", Path: name, Err: ErrNotFound}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}

// Sysctl reads a number below /proc/sys, as in "user/max_user_namespaces". Its
// answer is No when the kernel has no such setting.
func Sysctl(name string) (int, Answer) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if errors.Is(err, os.ErrNotExist) {
		return 0, No
	}
	if err != nil {
		return 0, Unknown
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, Unknown
	}
	return n, Yes
}

// Userns is what the kernel's settings say about user namespaces.
type Userns struct {
	// Max is user.max_user_namespaces and HasMax whether it could be read.
	Max    int
	HasMax Answer
	// Blocked is Yes when kernel.unprivileged_userns_clone (Debian) is off.
	Blocked Answer
	// AppArmor is Yes when kernel.apparmor_restrict_unprivileged_userns (Ubuntu) is on.
	AppArmor Answer
}

// ReadUserns reads the settings anew each time: they change while we run.
func ReadUserns() Userns {
	var u Userns
	u.Max, u.HasMax = Sysctl("user/max_user_namespaces")
	flag := func(name string, bad int) Answer {
		switch n, has := Sysctl(name); has {
		case Yes:
			return answer(n == bad)
		default:
			return has
		}
	}
	u.Blocked = flag("kernel/unprivileged_userns_clone", 0)
	u.AppArmor = flag("kernel/apparmor_restrict_unprivileged_userns", 1)
	return u
}

// Probe is a question to the kernel whose answer, once known, stays.
type Probe struct {
	ask  func() Answer
	last atomic.Int32
}

// Answer asks, or returns what an earlier call found out. Unknown is asked again.
func (p *Probe) Answer() Answer {
	if known := Answer(p.last.Load()); known != Unknown {
		return known
	}
	a := p.ask()
	p.last.Store(int32(a))
	return a
}

// The system calls that have a slower way around them.
var (
	// Openat2 is Linux 5.6.
	Openat2 = &Probe{ask: func() Answer {
		fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
		if err == nil {
			_ = unix.Close(fd)
		}
		return verdict(err)
	}}
	// Pidfd is pidfd_open, Linux 5.3.
	Pidfd = &Probe{ask: func() Answer {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return verdict(err)
	}}
	// CloseRange is Linux 5.9.
	CloseRange = &Probe{ask: func() Answer {
		// An empty range: nothing is closed.
		return verdict(unix.CloseRange(^uint(0)>>33, ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC))
	}}
)

// verdict reads a probe's error. EPERM is a container's filter, which can be
// set later than we asked but never lifted: a no.
func verdict(err error) Answer {
	switch {
	case err == nil:
		return Yes
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return No
	default:
		return Unknown
	}
}

// CapSetfcap is CAP_SETFCAP, which mapping user id 0 takes since Linux 5.12.
const CapSetfcap = 31

// HasCapability reports whether this process has a capability in effect.
func HasCapability(number int) Answer {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Unknown
	}
	for line := range strings.Lines(string(data)) {
		if hex, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return Unknown
			}
			return answer(set&(1<<number) != 0)
		}
	}
	return Unknown
}
