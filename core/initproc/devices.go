//go:build linux

package initproc

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// hostDevices are the nodes that bwrap binds from the host's own /dev.
var hostDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// sealDevices makes the device nodes read-only mounts, where the sandbox's user
// is the owner of the host's nodes and could change their mode for everybody.
// Data can still be written to a device through such a mount. bwrap cannot do
// this: its own way of remounting also forbids to open devices.
//
// A mount namespace belongs to a thread, and Go has started some already, so
// the program then executes itself anew: that leaves one thread, in the new
// namespace. It must come first, while the capabilities are inherited.
func sealDevices() error {
	if os.Geteuid() != 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/null", &st); err != nil {
		return fmt.Errorf("look at /dev/null: %w", err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return nil // done, by the one that has executed us
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	for _, name := range hostDevices {
		path := "/dev/" + name
		if err := unix.Statfs(path, &st); err != nil {
			return fmt.Errorf("look at %s: %w", path, err)
		}
		// The kernel refuses to drop what the mount has, and names its own flags
		// for statfs as it does for mount, but for relatime.
		keep := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
		if st.Flags&unix.ST_RELATIME != 0 {
			keep |= unix.MS_RELATIME
		}
		if err := unix.Mount("", path, "", keep|unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	if err := syscall.Exec("/proc/self/exe", os.Args, nil); err != nil {
		return fmt.Errorf("execute init anew: %w", err)
	}
	return nil
}
