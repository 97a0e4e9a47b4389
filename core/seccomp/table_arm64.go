//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// machineRules are the calls that only this machine has: none.
var machineRules []Rule
