//go:build linux

// Package seccomp turns a table of refused system calls into a filter program.
//
// It is a second line: namespaces and missing capabilities are the boundary,
// the filter closes what they leave open and takes kernel surface away. A table
// refuses; what no rule names is allowed, because the commands of a sandbox are
// whole tool chains. Compile is pure, so that a table can be judged in a test
// without being installed.
//
// Only the low 32 bits of an argument are looked at. The kernel itself reads no
// more of the arguments that rules ask about (they are int, unsigned int or
// umode_t), and a comparison of all 64 bits would be passed by an attacker who
// sets one of the upper bits.
package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Test says how a rule judges its argument.
type Test int

// The tests of a rule.
const (
	// Always refuses the call whatever its arguments are.
	Always Test = iota
	// AnyBit refuses when one of the bits in Values[0] is set.
	AnyBit
	// OneOf refuses when the argument equals one of Values.
	OneOf
	// NoneOf refuses when the argument equals none of Values.
	NoneOf
)

// Rule refuses system calls.
type Rule struct {
	// Group names what the rule is there for. Rules of one purpose share it.
	Group string
	// Calls are system call numbers of the machine the filter is compiled for.
	// A number may occur in one rule only.
	Calls []uint32
	// Test judges argument number Arg (0 to 5). The zero value refuses always.
	Test Test
	Arg  int
	// Values belong to Test.
	Values []uint32
	// Errno is what the caller sees. Zero is EPERM.
	Errno unix.Errno
	// Passable lets the call through for who knows the pass, see Compile. Only
	// calls of at most five arguments can be.
	Passable bool
}

// Program is a compiled filter.
type Program []unix.SockFilter

// passArg is the argument that no passable call has, so the kernel never reads it.
const passArg = 5

// The layout of struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// x32Bit marks a call of the x32 ABI, whose numbers mean other calls.
const x32Bit = 0x40000000

// Compile returns the program for rules. Calls made through another
// architecture's entry end the process, because the numbers in the table do not
// hold for them; x32 calls are answered with ENOSYS.
//
// A process that puts itself under the filter, so that what it starts inherits
// it, keeps the calls it needs by a pass: a random number, known to nobody else,
// given as their sixth argument. Zero is no pass.
func Compile(rules []Rule, pass uint64) (Program, error) {
	byCall := map[uint32]Rule{}
	var calls []uint32
	for _, r := range rules {
		if err := r.check(); err != nil {
			return nil, err
		}
		for _, nr := range r.Calls {
			if other, taken := byCall[nr]; taken {
				return nil, fmt.Errorf("system call %d is in rules %q and %q", nr, other.Group, r.Group)
			}
			byCall[nr] = r
			calls = append(calls, nr)
		}
	}
	slices.Sort(calls)

	insns := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: x32Bit, SkipFalse: 1},
		refuse(unix.ENOSYS),
	}
	search, err := searchTree(calls, byCall, pass)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(append(insns, search...))
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	prog := make(Program, len(raw))
	for i, in := range raw {
		prog[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return prog, nil
}

func (r Rule) check() error {
	switch {
	case len(r.Calls) == 0:
		return fmt.Errorf("rule %q names no system call", r.Group)
	case r.Arg < 0 || r.Arg > 5:
		return fmt.Errorf("rule %q asks for argument %d", r.Group, r.Arg)
	case r.Test == Always && len(r.Values) > 0, r.Test == AnyBit && len(r.Values) != 1,
		(r.Test == OneOf || r.Test == NoneOf) && (len(r.Values) == 0 || len(r.Values) > 200),
		r.Test < Always || r.Test > NoneOf:
		return fmt.Errorf("rule %q has %d values, which its test cannot use", r.Group, len(r.Values))
	}
	return nil
}

// searchTree finds the call's number by halving: a list would be some ten times
// deeper for the calls that the kernel has to ask about each time.
func searchTree(calls []uint32, byCall map[uint32]Rule, pass uint64) ([]bpf.Instruction, error) {
	if len(calls) == 0 {
		return []bpf.Instruction{allow}, nil
	}
	if len(calls) == 1 {
		body := byCall[calls[0]].body(pass)
		return append([]bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: calls[0], SkipTrue: 1},
			allow,
		}, body...), nil
	}
	middle := len(calls) / 2
	lower, err := searchTree(calls[:middle], byCall, pass)
	if err != nil {
		return nil, err
	}
	upper, err := searchTree(calls[middle:], byCall, pass)
	if err != nil {
		return nil, err
	}
	// A conditional jump reaches 255 instructions, a plain one all of them.
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: calls[middle], SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(lower))},
	}
	return append(append(out, lower...), upper...), nil
}

var allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

func refuse(errno unix.Errno) bpf.Instruction {
	if errno == 0 {
		errno = unix.EPERM
	}
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)&unix.SECCOMP_RET_DATA}
}

// body judges the arguments once the number has matched.
func (r Rule) body(pass uint64) []bpf.Instruction {
	var out []bpf.Instruction
	if r.Passable && pass != 0 {
		out = append(out,
			bpf.LoadAbsolute{Off: argLow(passArg), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(pass), SkipFalse: 3},
			bpf.LoadAbsolute{Off: argLow(passArg) + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(pass >> 32), SkipFalse: 1},
			allow)
	}
	if r.Test == Always {
		return append(out, refuse(r.Errno))
	}
	out = append(out, bpf.LoadAbsolute{Off: argLow(r.Arg), Size: 4})
	if r.Test == AnyBit {
		return append(out, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: r.Values[0], SkipTrue: 1}, allow, refuse(r.Errno))
	}
	for i, v := range r.Values {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(r.Values) - i)})
	}
	if r.Test == OneOf {
		return append(out, allow, refuse(r.Errno))
	}
	return append(out, refuse(r.Errno), allow)
}

// argLow is where the low half of an argument lies. Both machines that have a
// table are little-endian.
func argLow(arg int) uint32 { return uint32(offsetArgs + 8*arg) }

// Install puts all threads of the process, and what they start from now on, under
// the filter. It takes no_new_privs, or CAP_SYS_ADMIN.
//
// Once per process: a filter of its own for each command would be translated and
// thrown away by the kernel each time, which was measured to cost more than all
// else that starting a command does.
func (p Program) Install() error {
	fprog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	tid, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(p)
	if errno != 0 {
		return fmt.Errorf("install filter: %w", errno)
	}
	if tid != 0 {
		return fmt.Errorf("install filter: thread %d has another one", tid)
	}
	return nil
}
