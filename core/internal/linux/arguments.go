package linux

import "golang.org/x/sys/unix"

// ArgumentSpace is how many bytes the kernel takes as the arguments and the
// environment of a program that inherits this process's limits: of each string its
// length, its NUL and a pointer.
func ArgumentSpace() int {
	// bprm_stack_limits in fs/exec.c: a quarter of the stack, within these bounds.
	const least, most = 128 << 10, 6 << 20
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return least
	}
	return int(min(max(stack.Cur/4, least), most))
}
