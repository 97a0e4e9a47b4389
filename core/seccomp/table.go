//go:build linux

package seccomp

import "golang.org/x/sys/unix"

// GroupNamespaces holds the rules that keep a command from leaving, or making,
// namespaces. A command's tree is found by its UTS namespace, so these are what
// makes ending it complete.
const GroupNamespaces = "namespaces"

// namespaceFlags are the CLONE_NEW* flags that clone and unshare share.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

const setIDBits = unix.S_ISUID | unix.S_ISGID

// Commands is the table for everything that runs in a sandbox. What init does for
// a command on its own threads is passable.
func Commands() []Rule {
	rules := []Rule{
		{Group: GroupNamespaces, Calls: []uint32{unix.SYS_UNSHARE}, Test: AnyBit, Values: []uint32{namespaceFlags | unix.CLONE_NEWTIME}, Passable: true},
		// In clone the place of CLONE_NEWTIME belongs to the exit signal.
		{Group: GroupNamespaces, Calls: []uint32{unix.SYS_CLONE}, Test: AnyBit, Values: []uint32{namespaceFlags}},
		// clone3 passes its flags in memory, where a filter cannot look. On ENOSYS
		// the C libraries fall back to clone.
		{Group: GroupNamespaces, Calls: []uint32{unix.SYS_CLONE3}, Errno: unix.ENOSYS},
		{Group: GroupNamespaces, Calls: []uint32{unix.SYS_SETNS}, Passable: true},

		{Group: "mounts", Calls: []uint32{
			unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
			unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR,
		}},
		// Keyrings are kept per user of the host, not per namespace.
		{Group: "keys", Calls: []uint32{unix.SYS_KEYCTL}, Passable: true},
		{Group: "keys", Calls: []uint32{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY}},
		{Group: "kernel", Calls: []uint32{
			unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
			unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		}},
		// The kernel lets a process set the limits of any other of its user, process
		// 1 too, and ends it for good once it has used its processor time up. A
		// thread's id would do as well, so no number but "myself" is let through.
		{Group: "limits", Calls: []uint32{unix.SYS_PRLIMIT64}, Test: NoneOf, Values: []uint32{0}, Passable: true},
		// A ring does what the filter refuses to the thread.
		{Group: "io_uring", Calls: []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}},
		// Both put input into a terminal that a process outside may read.
		{Group: "terminals", Calls: []uint32{unix.SYS_IOCTL}, Test: OneOf, Arg: 1, Values: []uint32{unix.TIOCSTI, unix.TIOCLINUX}},
		// A set-id file in the workspace is a trap for whoever runs it on the host.
		{Group: "set-id", Calls: []uint32{unix.SYS_FCHMOD}, Test: AnyBit, Arg: 1, Values: []uint32{setIDBits}},
		{Group: "set-id", Calls: []uint32{unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2}, Test: AnyBit, Arg: 2, Values: []uint32{setIDBits}},
		// AF_VSOCK reaches the hypervisor from any network namespace; the others
		// left out are rarely used and often broken.
		{
			Group: "sockets", Calls: []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR}, Test: NoneOf,
			Values: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, Errno: unix.EAFNOSUPPORT,
		},
	}
	return append(rules, machineRules...)
}
