//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// machineRules are the calls that only this machine has.
var machineRules = []Rule{
	{Group: "set-id", Calls: []uint32{unix.SYS_CHMOD}, Test: AnyBit, Arg: 1, Values: []uint32{setIDBits}},
}
