//go:build linux

// Package initproc is the program inside the sandbox. It has two verbs: init,
// which is process 1, starts every command and ends it together with all that
// it started; and the opener, which resolves paths for the file API and never
// runs code of the sandbox.
//
// It decides nothing: what to run, where and for how long comes from the
// supervisor over the protocol of package wire. Everything else in the sandbox
// runs under the same user id and is taken to be hostile, so each step here is
// ordered by what a command could do at that moment.
//
// The rules that keep it safe are named in the code, init1 and so on. A build
// with the tag sbxbreak can break one, for the tests that guard them.
package initproc

import (
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/seccomp"
)

// openerVerb is the one argument the program knows. It says what to be, never
// how: arguments are open to everybody in the sandbox.
const openerVerb = "opener"

// LockMain must be called from an init function of the program. From there it
// ties the main goroutine to the thread that is the process's face: without it
// Go may run a command's goroutine on that thread, which then loses its
// capabilities for good, and process 1 with it the protection they give (rule init1).
func LockMain() {
	if holds("init1") {
		runtime.LockOSThread()
	}
}

// Main runs the verb that args ask for, os.Args in the program, and returns the
// exit status. It ends when the other side of the socket has gone.
func Main(args []string) int {
	var err error
	if len(args) == 2 && args[1] == openerVerb {
		err = runOpener()
	} else {
		err = runInit()
	}
	if err != nil {
		// Until the first message, standard error is the supervisor's pipe.
		fmt.Fprintf(os.Stderr, "sandbox init: %v\n", err)
		return 1
	}
	return 0
}

func runInit() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("must be process 1, is %d", os.Getpid())
	}
	if err := sealDevices(); err != nil {
		return err
	}
	// Nothing but init runs yet. It all has to be done before the first message,
	// since the first command may follow at once.
	if holds("init1b") {
		if err := hideMemory(); err != nil {
			return err
		}
	}
	if holds("init3") {
		if err := closeAbove(wire.ControlFD); err != nil {
			return err
		}
	}
	limits, err := setLimits()
	if err != nil {
		return err
	}
	if err := withdrawInheritance(); err != nil {
		return err
	}
	// Locked once more, for the builds without rule init1: there the goroutine of
	// the runtime that serves signals would take the main thread, and hide the harm.
	runtime.LockOSThread()
	children := catchSignals()
	runtime.UnlockOSThread()
	pass, err := newPass()
	if err != nil {
		return err
	}

	// A fork holds its processor until the child has executed its program, and a
	// command may stop that child: the others must get along without. For the
	// same reason garbage is collected only where no fork can be under way; see reap.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	debug.SetGCPercent(-1)

	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	conn, err := wire.NewConn(wire.ControlFD)
	if err != nil {
		return err
	}
	exits, err := linux.NewPoll()
	if err != nil {
		return err
	}
	s := &server{
		conn:      conn,
		exits:     exits,
		pass:      pass,
		proc:      proc,
		bounding:  boundingSet(),
		marks:     newMarks(),
		watchdog:  watchdog{proc: proc},
		null:      null,
		children:  limits,
		lastDeath: time.Now(),
		commands:  map[uint64]*command{},
		byPid:     map[int]*command{},
	}
	go s.reap(children)
	go s.collectExits()
	go s.marks.makeAhead(pass)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("close standard stream %d: %w", fd, err)
		}
	}
	ended := make(chan struct{})
	// Not on the main thread, where each message would cost two thread switches.
	go func() {
		s.serve()
		close(ended)
	}()
	<-ended
	if !holds("init6") {
		select {}
	}
	// The end of process 1 is the end of every process in the sandbox (rule init6).
	return nil
}

// rules returns the commands' filter table.
func rules() []seccomp.Rule {
	table := seccomp.Commands()
	if holds("init7") {
		return table
	}
	var kept []seccomp.Rule
	for _, r := range table {
		if r.Group != seccomp.GroupNamespaces {
			kept = append(kept, r)
		}
	}
	return kept
}

// hideMemory makes this process undumpable: memory, descriptors, environment
// and namespaces are closed to every process without CAP_SYS_PTRACE. The
// capabilities of init give that already, but not to its threads that have
// dropped theirs to become a command, nor to a child before its exec.
func hideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	return nil
}

// closeAbove closes every descriptor above last: bwrap's, the program's own
// image, and whatever the supervisor's process had open (rule init3).
func closeAbove(last uint) error {
	err := unix.CloseRange(last+1, math.MaxUint32, 0)
	if err != unix.ENOSYS && err != unix.EPERM {
		return err
	}
	// Before Linux 5.9, or under a container's filter that is older.
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list own descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list own descriptors: %w", err)
	}
	own := uint(dir.Fd())
	for _, name := range names {
		var fd uint
		if _, err := fmt.Sscan(name, &fd); err == nil && fd > last && fd != own {
			_ = unix.Close(int(fd))
		}
	}
	return nil
}

// maxFiles bounds the descriptors of init. Programs that walk all possible
// descriptors take seconds with the million that some hosts allow.
const maxFiles = 65536

// maxQueued bounds the queued signals, and POSIX timers, of a whole sandbox.
const maxQueued = 1024

// setLimits sets init's own resource limits and returns the descriptor limit
// that commands get. Theirs is lower by an eighth: the kernel counts descriptors
// in flight per user of the host and holds each sender against its own limit, so
// a command that fills its share must not keep init, or the supervisor, from
// passing descriptors. Soft equals hard, as Node leaves it to its children, and
// development servers watch more files than the usual 1024.
func setLimits() (unix.Rlimit, error) {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return unix.Rlimit{}, fmt.Errorf("forbid core dumps: %w", err)
	}
	// Queued signals count for the user of the host, too: without a limit of its
	// own a sandbox could use up what Node's timers need.
	if err := unix.Setrlimit(unix.RLIMIT_SIGPENDING, &unix.Rlimit{Cur: maxQueued, Max: maxQueued}); err != nil {
		return unix.Rlimit{}, fmt.Errorf("limit queued signals: %w", err)
	}
	var inherited unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &inherited); err != nil {
		return unix.Rlimit{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	files := min(inherited.Max, maxFiles)
	// Through package syscall: it remembers what the limit was when the program
	// started and would give that to every child, until told otherwise this way.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}); err != nil {
		return unix.Rlimit{}, fmt.Errorf("limit open files: %w", err)
	}
	return unix.Rlimit{Cur: files - files/8, Max: files - files/8}, nil
}

// withdrawInheritance empties the ambient and inheritable sets of all threads,
// through which bwrap handed the capabilities on: what init starts gets none.
func withdrawInheritance() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("clear ambient capabilities: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("clear inheritable capabilities: %w", errno)
	}
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	return nil
}

// catchSignals sees to it that no signal ends process 1 (rule init2), and
// returns a channel that holds a value after SIGCHLD.
//
// A signal that the kernel sends on a fault is left to its default action,
// though Go has handlers for these: a command can send them with a forged origin
// (rt_sigqueueinfo, fcntl F_SETSIG), and Go would take that for a fault of its
// own and die. With the default action the kernel drops them for process 1. Of
// the rest none is ignored, since a command would inherit that.
//
// The kernel drops no signal without a core dump that reaches process 1 while its
// first thread has it blocked, as Go has for moments, and another thread has not:
// that ends all threads. Those that Go leaves alone get a handler that does nothing.
func catchSignals() <-chan os.Signal {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	if holds("init2") {
		// Nobody reads it: package signal drops what does not fit.
		signal.Notify(make(chan os.Signal, 1))
	}
	if holds("init2b") {
		for _, sig := range []unix.Signal{
			unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS,
		} {
			setAction(sig, action{}) // SIG_DFL
		}
	}
	if holds("init2c") {
		// All that the runtime's own handlers need, but for the handler.
		nothing := actionOf(unix.SIGUSR1)
		nothing.handler = nothingAddress
		// 32 to 34 belong to the C libraries; Go has a handler for 33.
		for _, sig := range []unix.Signal{unix.SIGSTKFLT, 32, 34} {
			setAction(sig, nothing)
		}
	}
	return children
}

// nothingAddress is where the handler nothing begins.
var nothingAddress uintptr

// action is the kernel's struct sigaction, the same on both machines.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

func actionOf(sig unix.Signal) (a action) {
	// Cannot fail for a signal that exists.
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&a)), 8, 0, 0)
	return a
}

// setAction sets a signal's action without the runtime's knowledge.
func setAction(sig unix.Signal, a action) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&a)), 0, 8, 0, 0)
}
