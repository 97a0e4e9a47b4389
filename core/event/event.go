// Package event has the lifecycle events that operators may watch.
//
// Events say what happened to which session, never what a command was or wrote.
package event

import "time"

// Type names what happened.
type Type string

// The types of events.
const (
	GenerationStarted Type = "generation.started"
	CommandStarted    Type = "command.started"
	CommandFinished   Type = "command.finished"
	CleanupStarted    Type = "cleanup.started"
	CleanupCompleted  Type = "cleanup.completed"
	CleanupFailed     Type = "cleanup.failed"
)

// Reason says why a command finished, or why a generation is ended.
type Reason string

// The reasons of a command's end.
const (
	ReasonExit        Reason = "exit"
	ReasonAbort       Reason = "abort"
	ReasonTimeout     Reason = "timeout"
	ReasonOutputLimit Reason = "output-limit"
	ReasonKilled      Reason = "killed"
	ReasonCleanup     Reason = "cleanup"
)

// The reasons for which a generation is ended.
const (
	// ReasonStop is a stop, shutdown or deletion, or that nobody is left who uses the session.
	ReasonStop Reason = "stop"
	// ReasonReplaced is that it could not serve any more: other options were
	// asked for, or its directory was removed or replaced.
	ReasonReplaced Reason = "replaced"
	// ReasonIdle is that nothing has run in it for as long as it may be idle.
	ReasonIdle Reason = "idle"
	// ReasonLimit is that another sandbox needed its place.
	ReasonLimit Reason = "limit"
	// ReasonCommand is the end of the one command or file operation it was for.
	ReasonCommand Reason = "command"
)

// Event is one thing that happened. Members that a type does not name are absent.
type Event struct {
	Type         Type              `json:"type"`
	Timestamp    string            `json:"timestamp"`
	SessionID    string            `json:"sessionId"`
	GenerationID string            `json:"generationId"`
	Tags         map[string]string `json:"tags,omitempty"`

	// CommandID: command events.
	CommandID string `json:"commandId,omitempty"`
	// Pid is the main process's id inside the sandbox: command events.
	Pid int `json:"pid,omitempty"`
	// LiveProcesses counts the session's live commands: command events.
	LiveProcesses *int `json:"liveProcesses,omitempty"`

	// Reason: command.finished, cleanup.started.
	Reason Reason `json:"reason,omitempty"`
	// ExitCode, StdoutBytes, StderrBytes and Error: command.finished.
	ExitCode    *int   `json:"exitCode,omitempty"`
	StdoutBytes *int64 `json:"stdoutBytes,omitempty"`
	StderrBytes *int64 `json:"stderrBytes,omitempty"`
	Error       string `json:"error,omitempty"`
	// DurationMs is in milliseconds: command.finished, cleanup.completed, cleanup.failed.
	DurationMs *int64 `json:"durationMs,omitempty"`
	// CPUMs is in milliseconds of user and system time, MaxRSSBytes the peak of the
	// largest process: command.finished, where the kernel tells.
	CPUMs       *int64 `json:"cpuMs,omitempty"`
	MaxRSSBytes *int64 `json:"maxRssBytes,omitempty"`

	// RequestedProcesses and RemainingProcesses: cleanup events.
	RequestedProcesses *int `json:"requestedProcesses,omitempty"`
	RemainingProcesses *int `json:"remainingProcesses,omitempty"`
	// Errors says what went wrong: cleanup.failed.
	Errors []string `json:"errors,omitempty"`
}

// Sink receives events. It must not block. Nil means that nobody watches.
type Sink func(Event)

// Emit stamps the event with the current time and hands it to the sink, if there is one.
func (s Sink) Emit(e Event) {
	if s == nil {
		return
	}
	e.Timestamp = time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00")
	s(e)
}

// Count returns a pointer, because zero is a count and absence is not.
func Count[N int | int64](n N) *N { return &n }
