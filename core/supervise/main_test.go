package supervise

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// TestMain makes the test binary also the program that some tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		os.Exit(helper(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

func helper(verb string, args []string) int {
	switch verb {
	case "report":
		report()
	case "exit":
		code, _ := strconv.Atoi(args[0])
		return code
	case "pdeath": // dies with the thread that forked it
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
		fmt.Println("ready")
		select {}
	case "owner":
		return owner(args[0])
	case "hostile":
		hostile(args[0])
	case "init": // an init that speaks another version
		conn, err := wire.NewConn(wire.ControlFD)
		if err != nil {
			return 1
		}
		conn.Send(wire.Message{Kind: wire.KindHello, Version: wire.Version + 1})
		_, _, _ = conn.Recv()
	}
	return 0
}

// report tells what a fresh process got.
func report() {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Sig") {
			fmt.Print(line)
		}
	}
	stat, _ := os.ReadFile("/proc/self/stat")
	fields := strings.Fields(string(stat))
	fmt.Printf("leader %v\n", fields[0] == fields[5])
	dir, _ := os.Getwd()
	fmt.Printf("dir %s\nenv %q\nargs %q\n", dir, os.Environ(), os.Args)
	for fd := range 64 {
		var st unix.Stat_t
		// Go has its own descriptors by now; those are close-on-exec.
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 && unix.Fstat(fd, &st) == nil {
			fmt.Printf("fd %d ino %d\n", fd, st.Ino)
		}
	}
	signal.Reset()
}
