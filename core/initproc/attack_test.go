//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The attacker's main goroutine stays on the main thread.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		runtime.LockOSThread()
	}
}

// attack is the program inside the sandbox that tries what a command must not
// achieve. It prints what it achieved, a line each, and then "done".
func attack(args []string) int {
	achieved := map[string]func(args []string) []string{
		"signals": attackSignals,
		"race":    attackRace,
		"memory":  attackMemory,
		"hunt":    attackForks,
		"freeze":  attackFreeze,
		"leader":  attackLeader,
		"storm":   attackStorm,
		"fds":     attackFDs,
		"flood":   attackFlood,
	}[args[0]](args[1:])
	for _, line := range achieved {
		fmt.Println(line)
	}
	fmt.Println("done")
	return 0
}

func tasks() []int {
	entries, _ := os.ReadDir("/proc/1/task")
	var tids []int
	for _, e := range entries {
		tid, _ := strconv.Atoi(e.Name())
		tids = append(tids, tid)
	}
	return tids
}

// attackSignals sends every signal in every way to process 1 and its threads.
// That much was accepted is no achievement: what counts is that init goes on.
func attackSignals([]string) []string {
	accepted := 0
	sent := func(errno unix.Errno) {
		if errno == 0 {
			accepted++
		}
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		// A forged origin makes a signal look like a fault of the receiver.
		var info [128]byte
		*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
		for _, code := range []int32{-1, -60} {
			*(*int32)(unsafe.Pointer(&info[8])) = code
			_, _, errno := unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, 1, sig, uintptr(unsafe.Pointer(&info)))
			sent(errno)
			for _, tid := range tasks() {
				_, _, errno = unix.Syscall6(unix.SYS_RT_TGSIGQUEUEINFO, 1, uintptr(tid), sig, uintptr(unsafe.Pointer(&info)), 0, 0)
				sent(errno)
			}
			if pidfd, err := unix.PidfdOpen(1, 0); err == nil {
				_, _, errno = unix.Syscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(pidfd), sig, uintptr(unsafe.Pointer(&info)), 0, 0, 0)
				sent(errno)
				_ = unix.Close(pidfd)
			}
		}
		_, _, errno := unix.Syscall(unix.SYS_KILL, 1, sig, 0)
		sent(errno)
		for _, tid := range tasks() {
			_, _, errno = unix.Syscall(unix.SYS_TGKILL, 1, uintptr(tid), sig)
			sent(errno)
		}
		sendByFile(int(sig))
	}
	return []string{fmt.Sprint("accepted ", accepted)}
}

// attackRace sends process 1 what Go has no handler for, until it is told to
// stop: it ends a process that has such a signal blocked at the wrong moment.
func attackRace([]string) []string {
	for {
		for i := range 1000 {
			_ = unix.Kill(1, unix.SIGSTKFLT)
			// These queue up, and process 1 is to do something else, too.
			if i%100 == 0 {
				_ = unix.Kill(1, unix.Signal(32+i/100%3))
			}
		}
		if _, err := os.Stat("/tmp/stop"); err == nil {
			return nil
		}
	}
}

// sendByFile has the kernel send process 1 a signal when a socket is ready.
func sendByFile(sig int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	_, _ = unix.FcntlInt(uintptr(pair[0]), unix.F_SETOWN, 1)
	_, _ = unix.FcntlInt(uintptr(pair[0]), unix.F_SETSIG, sig)
	_, _ = unix.FcntlInt(uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
	_, _ = unix.Write(pair[1], []byte("x"))
}

// attackMemory tries everything that would give it init's memory, descriptors
// or limits.
func attackMemory([]string) []string {
	runtime.LockOSThread()
	var got []string
	note := func(what string, err error) {
		if err == nil {
			got = append(got, what)
		}
	}
	for _, tid := range tasks() {
		task := fmt.Sprintf("/proc/1/task/%d/", tid)
		for _, name := range []string{"mem", "environ", "maps", "smaps", "pagemap", "auxv", "stack", "syscall", "io", "personality"} {
			f, err := os.Open(task + name)
			if err == nil {
				_, err = f.Read(make([]byte, 16))
				_ = f.Close()
			}
			note(task+name, err)
		}
		f, err := os.OpenFile(task+"mem", os.O_RDWR, 0)
		note(task+"mem for writing", err)
		_ = f.Close()
		for _, name := range []string{"exe", "cwd", "root", "fd/0", "fd/3", "ns/uts", "ns/user", "ns/net"} {
			_, err := os.Readlink(task + name)
			note(task+name, err)
		}
		// The list of numbers is open to user id 0, whom the kernel lets own the
		// directory; what they mean is not.
		fds, err := os.ReadDir(task + "fd")
		if os.Getuid() != 0 {
			note(task+"fd", err)
		}
		for _, fd := range fds {
			_, err = os.Readlink(task + "fd/" + fd.Name())
			note(task+"fd/"+fd.Name(), err)
			_, err = os.ReadFile(task + "fdinfo/" + fd.Name())
			note(task+"fdinfo/"+fd.Name(), err)
		}
		_, err = os.ReadDir(task + "map_files")
		note(task+"map_files", err)

		const seize = 0x4206
		for name, request := range map[string]uintptr{"attach": unix.PTRACE_ATTACH, "seize": seize} {
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, request, uintptr(tid), 0, 0, 0, 0)
			note(fmt.Sprintf("ptrace %s %d", name, tid), orNil(errno))
		}
		buf := make([]byte, 8)
		local := []unix.Iovec{{Base: &buf[0], Len: 8}}
		remote := []unix.RemoteIovec{{Base: 0x400000, Len: 8}}
		_, err = unix.ProcessVMReadv(tid, local, remote, 0)
		note(fmt.Sprint("process_vm_readv ", tid), notFault(err))
		_, err = unix.ProcessVMWritev(tid, local, remote, 0)
		note(fmt.Sprint("process_vm_writev ", tid), notFault(err))
		err = unix.Prlimit(tid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: 1, Max: 1}, nil)
		note(fmt.Sprint("prlimit ", tid), err)
		_, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(os.Getpid()), 0, 0, 0, 0)
		note(fmt.Sprint("kcmp ", tid), orNil(errno))
	}
	pidfd, err := unix.PidfdOpen(1, 0)
	if err == nil {
		for fd := range 16 {
			_, err := unix.PidfdGetfd(pidfd, fd, 0)
			note(fmt.Sprint("pidfd_getfd ", fd), err)
		}
		err = unix.Setns(pidfd, unix.CLONE_NEWUTS)
		note("setns", err)
	}
	return got
}

func orNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// notFault counts EFAULT as success: the address was wrong, the access was not refused.
func notFault(err error) error {
	if err == unix.EFAULT {
		return nil
	}
	return err
}

// attackForks looks for the moment in which a thread of init, or a child that
// has not executed its program yet, can be opened, until /tmp/stop exists.
func attackForks([]string) []string {
	fmt.Println("ready")
	looked := 0
	for {
		if _, err := os.Stat("/tmp/stop"); err == nil {
			return nil
		}
		for _, tid := range tasks() {
			looked++
			if f, err := os.Open(fmt.Sprintf("/proc/1/task/%d/mem", tid)); err == nil {
				_ = f.Close()
				return []string{"memory of a thread of process 1"}
			}
		}
	}
}

// attackFreeze stops every process that appears, until it is ended.
func attackFreeze([]string) []string {
	fmt.Println("ready")
	// It must not stop itself, by the number of a thread of its own, so it starts
	// past them and does nothing for which Go would want one more.
	debug.SetGCPercent(-1)
	own, _ := os.ReadDir("/proc/self/task")
	next := 0
	for _, e := range own {
		tid, _ := strconv.Atoi(e.Name())
		next = max(next, tid+1)
	}
	for {
		// Without a look into /proc: the next pids are easily guessed.
		for pid := next; pid < next+16; pid++ {
			if _, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), uintptr(unix.SIGSTOP), 0); errno == 0 {
				next = pid
			}
		}
	}
}

// attackLeader leaves a process that looks dead: its main thread has exited.
func attackLeader([]string) []string {
	fmt.Println(os.Getpid())
	go func() {
		runtime.LockOSThread()
		for {
			_ = os.WriteFile("/tmp/leader", []byte(time.Now().String()), 0o600)
			<-time.After(time.Millisecond)
		}
	}()
	if unix.Gettid() != unix.Getpid() {
		return []string{"not the main thread"}
	}
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	return nil
}

// attackStorm forks without pause: processes in sessions of their own, undumpable,
// some stopped, that fork on. The argument is for how many generations; the last
// lives for a moment. There are at most four children to a process, because the
// machine that runs this test has other work to do.
func attackStorm(args []string) []string {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	depth, _ := strconv.Atoi(args[0])
	if depth == 0 {
		<-time.After(100 * time.Millisecond)
		return nil
	}
	for range 4 {
		go func() {
			for {
				cmd := exec.Command("/proc/self/exe", "attack", "storm", strconv.Itoa(depth-1))
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				if cmd.Start() != nil {
					continue
				}
				if cmd.Process.Pid%7 == 0 {
					_ = unix.Kill(cmd.Process.Pid, unix.SIGSTOP)
				}
				_ = cmd.Wait()
			}
		}()
	}
	select {}
}

// attackFlood has as many descriptors under way in sockets as the kernel lets it,
// says how many, and keeps them there.
func attackFlood([]string) []string {
	sent := 0
	for {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			break
		}
		fds := make([]int, 250)
		if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
		sent += len(fds)
	}
	fmt.Println(sent)
	select {}
}

// attackFDs prints the descriptors that it was started with.
func attackFDs([]string) []string {
	var open []string
	for fd := range 1024 {
		// Those of Go's own poller do not exist yet when nothing has used it.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			open = append(open, strconv.Itoa(fd))
		}
	}
	slices.Sort(open)
	return []string{strings.Join(open, " ")}
}
