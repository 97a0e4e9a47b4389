// Package wire is the protocol between the supervisor on the host and the two
// processes of ours inside a sandbox: init (process 1) and the opener.
//
// It is spoken over inherited SOCK_SEQPACKET sockets. One packet is one
// message with at most [MaxFDs] descriptors; a message that would not fit a
// frame travels in a sealed memfd instead, without the callers noticing.
// Neither side ever waits for the other: sending queues, one goroutine writes.
//
//	supervisor                        init
//	    | <------------- Hello -------- |   once, version first, mounts complete
//	    | -- Spawn{ID} +0..1 fd -----> |   the command's descriptor ScriptFD
//	    | <-- Started{ID,Pid} +2..3 fds |   stdout, stderr and stdin, or a terminal's output and input; or Failed{ID}
//	    | -- Kill{ID} ----------------> |   any time after Started
//	    | <-- Killed{ID} -------------- |   the command's tree is gone, or Left > 0
//	    | <-- Exited{ID,Status} ------- |   exactly once per Started
//	    | -- Discard{ID,Stream} ------> |   the reader has gone before the end; the writer must not notice
//	    | -- Opener{ID} + 1 fd -------> |   start an opener that speaks on this socket
//	    | <-- Opener{ID,Pid} ---------- |   or Failed{ID}
//	    | -- Census{ID} --------------> |   does anything run?
//	    | <-- Census{ID,Left} --------- |   with Left > 0, one Quiet follows, unless a Spawn does
//	    | <-- Quiet ------------------- |   nothing runs any more
//	    | == end of file =============> |   kill everything, exit
//
//	supervisor                       opener
//	    | -- Open/Parent{ID,Path} ----> |
//	    | <-- Opened{ID} + 1 fd ------- |   or Failed{ID,Errno}
//
// wire knows nothing of policy: what may be asked for is decided by its users.
package wire

// Version is the first thing init says. Both sides come out of one build, so a
// mismatch means a damaged installation.
const Version = 1

const (
	// MaxFrame is the largest packet. Larger messages go into a memfd.
	MaxFrame = 64 << 10
	// MaxFDs is the most descriptors one message carries.
	MaxFDs = 8
	// MaxMessage bounds what a memfd message may hold, so that a peer that was
	// taken over cannot make the other side allocate without end.
	MaxMessage = 16 << 20
)

// ControlFD is where init and the opener find their socket. It is a fixed
// number because neither has arguments nor environment to be told by.
const ControlFD = 3

// ScriptFD is the number that the descriptor of a Spawn has in the command.
const ScriptFD = 3

// Kind says which part of a Message is meant.
type Kind string

// The kinds of messages, in the order of the drawing above.
const (
	KindHello   Kind = "hello"
	KindSpawn   Kind = "spawn"
	KindStarted Kind = "started"
	KindFailed  Kind = "failed"
	KindKill    Kind = "kill"
	KindKilled  Kind = "killed"
	KindExited  Kind = "exited"
	KindDiscard Kind = "discard"
	KindOpener  Kind = "opener"
	KindCensus  Kind = "census"
	KindQuiet   Kind = "quiet"
	KindOpen    Kind = "open"
	KindParent  Kind = "parent"
	KindOpened  Kind = "opened"
)

// Message is one packet. Fields that a kind does not name are zero.
type Message struct {
	Kind Kind
	// ID pairs a reply with its request. The supervisor chooses it; for Spawn it
	// names the command until the end of the generation and is never reused.
	ID uint64

	// Version: Hello.
	Version int
	// Spawn: Spawn.
	Spawn *Spawn
	// Pid is the command's, or the opener's, process id inside the sandbox: Started, Opener.
	Pid int
	// Status is the raw wait status of the command's main process: Exited.
	Status uint32
	// CPUMicros and MaxRSS are what the main process and all that it waited for took:
	// microseconds of user and system time, and the bytes that the largest of them had
	// resident. Zero where the kernel does not say: Exited.
	CPUMicros, MaxRSS int
	// Left counts processes that could not be ended: Killed. It counts all but init
	// and the opener: Census.
	Left int
	// QuietMs is for how many milliseconds there has been none but init and the
	// opener, zero while Left is not: Census.
	QuietMs int
	// Stream is 1 (stdout) or 2 (stderr): Discard.
	Stream int

	// Path is a path as the sandbox sees it, absolute: Open, Parent.
	Path string
	// Follow resolves a link in the last component: Parent.
	Follow bool
	// MakeParents creates missing directories on the way: Parent.
	MakeParents bool
	// Name is the last component within the returned directory: Opened for Parent.
	Name string

	// Errno is what the kernel said: Failed.
	Errno int
	// Stage is the step that failed ("chdir", "exec", "fork", …): Failed.
	Stage Stage
}

// Stage is the step of starting a command at which the kernel refused.
type Stage string

// The stages of a Failed reply to Spawn.
const (
	StageSetup    Stage = "setup"    // pipes, namespaces, credentials, filter
	StageChdir    Stage = "chdir"    // the working directory
	StageTerminal Stage = "terminal" // a terminal of its own
	StageExec     Stage = "exec"     // fork and exec
)

// Known tells whether s is one of the stages above.
func (s Stage) Known() bool {
	return s == StageSetup || s == StageChdir || s == StageExec || s == StageTerminal
}

// Network says in which network namespace a command runs.
type Network string

// The networks of a command.
const (
	// NetworkShared is the namespace that the sandbox was started in.
	NetworkShared Network = "shared"
	// NetworkNone is the generation's own namespace, with nothing but loopback.
	// All commands of the generation that ask for it share it.
	NetworkNone Network = "none"
)

// Spawn describes one command.
type Spawn struct {
	// Argv is the argument vector; Argv[0] is an absolute path inside the sandbox.
	Argv []string
	// Env is the whole environment, as NAME=value.
	Env []string
	// Dir is the absolute working directory inside the sandbox.
	Dir string
	// Network is the command's network namespace.
	Network Network
	// Stdin asks for a writable stdin pipe; without it stdin is at end of file.
	Stdin bool
	// Columns and Rows ask for a terminal of that size in place of the streams. Zero
	// means none.
	Columns, Rows int
}
