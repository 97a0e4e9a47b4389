// Package spec has the requests and options of the core as plain values, and
// says which of them are valid. It reads no file and asks no kernel: the same
// value is valid on every host.
package spec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// Workspace is where a session's directory is mounted inside the sandbox.
const Workspace = "/workspace"

// separateHome is where a home beside the workspace is mounted.
const separateHome = "/home/sandbox"

// The homes that commands can have.
const (
	// HomeWorkspace is the workspace.
	HomeWorkspace = "workspace"
	// HomeSeparate is a directory of the session's own, as durable as the workspace.
	HomeSeparate = "separate"
)

const (
	// maxHidePaths is below the roughly 3,000 mounts that bwrap accepts.
	maxHidePaths = 2500
	// maxStringBytes is the kernel's limit for one argument or one NAME=value
	// string (MAX_ARG_STRLEN, 32 pages), its terminating NUL included.
	maxStringBytes = 128 << 10
	// maxCommandBytes bounds a script. The protocol takes twice as much, and
	// whoever sends more has mistaken a file for a command.
	maxCommandBytes = 8 << 20
)

// Network says what a session's commands may reach.
type Network string

// The networks of a session.
const (
	// AllowAll shares the host's network.
	AllowAll Network = "allow-all"
	// DenyAll gives the session a network of its own with nothing but loopback.
	DenyAll Network = "deny-all"
)

// Validate rejects what is not one of the two networks.
func (n Network) Validate() error {
	if n != AllowAll && n != DenyAll {
		return &errdefs.Error{
			Code: errdefs.Unsupported, Op: "networkPolicy",
			Msg: `only "allow-all" and "deny-all" can be enforced`,
		}
	}
	return nil
}

// Processes says which processes share a sandbox.
type Processes string

// Which processes share a sandbox.
const (
	// OfSession is one sandbox for all commands and file operations of a session.
	OfSession Processes = "session"
	// OfCommand gives every command a sandbox that ends with its main process.
	OfCommand Processes = "command"
)

// Sandbox says how a session's sandbox is built.
type Sandbox struct {
	// CacheDir is the host directory of the store, absolute.
	CacheDir string `json:"cacheDir"`
	// AppRoot is the application's own directory, absolute, which the sandbox
	// does not show even where it lies in a system tree. Empty means none.
	AppRoot string `json:"appRoot,omitempty"`
	// BwrapPath is the bwrap to run: absolute, or a name looked up in Path. Empty means "bwrap".
	BwrapPath string `json:"bwrapPath,omitempty"`
	// HidePaths are absolute host paths that the sandbox must not show.
	HidePaths []string `json:"hidePaths,omitempty"`
	// Home is HomeWorkspace or HomeSeparate. Empty means HomeWorkspace.
	Home string `json:"home,omitempty"`
	// Path is the caller's PATH, in which bwrap is looked up. A library cannot
	// see later changes of its process's environment, so the caller says it.
	Path string `json:"path,omitempty"`
	// NodePath is the caller's own Node executable, whose installation is shown
	// inside. Empty shows none.
	NodePath string `json:"nodePath,omitempty"`
	// Processes says which processes share a sandbox. Empty means OfSession.
	Processes Processes `json:"processes,omitempty"`
}

// Validate rejects what cannot work, naming the field.
func (s Sandbox) Validate() error {
	if err := absolute("cacheDir", s.CacheDir); err != nil {
		return err
	}
	if len(s.HidePaths) > maxHidePaths {
		return errdefs.Invalid("hidePaths", fmt.Sprintf("%d paths given, at most %d can be hidden", len(s.HidePaths), maxHidePaths))
	}
	for i, p := range s.HidePaths {
		field := fmt.Sprintf("hidePaths[%d]", i)
		if err := absolute(field, p); err != nil {
			return err
		}
		if path.Clean(p) == "/" {
			return errdefs.Invalid(field, "the root directory cannot be hidden")
		}
	}
	if strings.ContainsRune(s.BwrapPath, 0) {
		return errdefs.Invalid("bwrapPath", "a path cannot contain a NUL byte")
	}
	if !slices.Contains([]string{"", HomeWorkspace, HomeSeparate}, s.Home) {
		return errdefs.Invalid("home", fmt.Sprintf("must be %q or %q", HomeWorkspace, HomeSeparate))
	}
	if s.AppRoot != "" {
		if err := absolute("appRoot", s.AppRoot); err != nil {
			return err
		}
	}
	if s.NodePath != "" {
		if err := absolute("nodePath", s.NodePath); err != nil {
			return err
		}
	}
	switch s.Processes {
	case "", OfSession, OfCommand:
		return nil
	}
	return errdefs.Invalid("processes", `must be "session" or "command"`)
}

// SeparateHome reports whether commands have a home beside the workspace.
func (s Sandbox) SeparateHome() bool { return s.Home == HomeSeparate }

// HomePath is the home of the commands' user inside the sandbox.
func (s Sandbox) HomePath() string {
	if s.SeparateHome() {
		return separateHome
	}
	return Workspace
}

func absolute(field, p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return errdefs.Invalid(field, "a path cannot contain a NUL byte")
	case !path.IsAbs(p):
		return errdefs.Invalid(field, fmt.Sprintf("%q is not an absolute path", p))
	}
	return nil
}

// Shape is a digest of everything that decides how the sandbox is built: a live
// generation of another shape cannot serve.
func (s Sandbox) Shape() string {
	if s.Processes == "" {
		s.Processes = OfSession
	}
	// Strings only: Marshal cannot fail.
	data, _ := json.Marshal(s)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Lifetime says how long a session's sandboxes live. It is not part of the shape.
// The zero value keeps them until they are stopped.
type Lifetime struct {
	// IdleTimeoutMs ends a sandbox in which nothing has run for so many
	// milliseconds, and through which no file was reached. Zero means never.
	IdleTimeoutMs int64 `json:"idleTimeoutMs,omitempty"`
	// Standby keeps a sandbox ready for the next new session while one lives that
	// was made before.
	Standby bool `json:"standby,omitempty"`
	// MaxLiveGenerations bounds the live sandboxes of the process, over all its
	// sessions, where this one would start another. Zero means no bound.
	MaxLiveGenerations int64 `json:"maxLiveGenerations,omitempty"`
}

// Validate rejects negative numbers.
func (l Lifetime) Validate() error {
	return cmp.Or(notNegative("idleTimeoutMs", l.IdleTimeoutMs), notNegative("maxLiveGenerations", l.MaxLiveGenerations))
}

func notNegative(field string, n int64) error {
	if n < 0 {
		return errdefs.Invalid(field, "must not be negative")
	}
	return nil
}

// IdleTimeout returns IdleTimeoutMs as a duration; what is too long for one is never.
func (l Lifetime) IdleTimeout() time.Duration { return milliseconds(l.IdleTimeoutMs) }

// milliseconds returns zero, which stands for no limit, for what is too long.
func milliseconds(n int64) time.Duration {
	if n > int64(1<<62)/int64(time.Millisecond) {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// Command is one shell command.
type Command struct {
	// Command is a bash script, run as `bash -lc`; at most 8 MiB.
	Command string `json:"command"`
	// WorkingDirectory is absolute inside the sandbox. Empty means the workspace.
	WorkingDirectory string `json:"workingDirectory,omitempty"`
	// Env are the author's variables, above those that every command has; nil takes one away.
	Env map[string]*string `json:"env,omitempty"`
	// TimeZone is TZ as the host's process has it, beneath Env. Nil means that it has none.
	TimeZone *string `json:"timeZone,omitempty"`
	// Stdin asks for a writable standard input; otherwise it is at end of file.
	Stdin bool `json:"stdin,omitempty"`
	// Pty gives the command a terminal of that size instead of streams; Stdin is
	// then of no account. Nil means none.
	Pty *TerminalSize `json:"pty,omitempty"`
	// MaxProcesses bounds the session's live commands, also for those that bring a
	// larger bound while this one waits or lives. Zero means no bound.
	MaxProcesses int64 `json:"maxProcesses,omitempty"`
	// NoQueue refuses the command where it would have to wait for its turn.
	NoQueue bool `json:"noQueue,omitempty"`
}

// Validate rejects what the kernel or bash could not take, before anything starts.
func (c Command) Validate() error {
	if strings.ContainsRune(c.Command, 0) {
		return errdefs.Invalid("command", "a command cannot contain a NUL byte")
	}
	if len(c.Command) > maxCommandBytes {
		return errdefs.Invalid("command", fmt.Sprintf("%d bytes given, a command has at most %d: write a script file and run that", len(c.Command), maxCommandBytes))
	}
	if c.WorkingDirectory != "" {
		if err := absolute("workingDirectory", c.WorkingDirectory); err != nil {
			return err
		}
	}
	if err := notNegative("maxProcesses", c.MaxProcesses); err != nil {
		return err
	}
	for name, value := range c.Env {
		if name == "" {
			return errdefs.Invalid("env", "a variable needs a name")
		}
		if strings.ContainsAny(name, "=\x00") {
			return errdefs.Invalid("env", fmt.Sprintf("%q is not a variable name", name))
		}
		if strings.HasPrefix(name, reserved) {
			return errdefs.Invalid("env."+name, "names that begin with "+reserved+" are taken")
		}
		if value != nil {
			if err := variable("env."+name, name, *value); err != nil {
				return err
			}
		}
	}
	if c.TimeZone != nil {
		if err := variable("timeZone", "TZ", *c.TimeZone); err != nil {
			return err
		}
	}
	if c.Pty != nil {
		return c.Pty.Validate()
	}
	return nil
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Columns int `json:"cols"`
	Rows    int `json:"rows"`
}

// Validate rejects a size that no terminal has.
func (s TerminalSize) Validate() error {
	if min(s.Columns, s.Rows) < 1 || max(s.Columns, s.Rows) > math.MaxUint16 {
		return errdefs.Invalid("pty", fmt.Sprintf("cols and rows must be from 1 to %d", math.MaxUint16))
	}
	return nil
}

func variable(field, name, value string) error {
	if strings.ContainsRune(value, 0) {
		return errdefs.Invalid(field, "a value cannot contain a NUL byte")
	}
	if slices.Contains(carried, name) {
		name = Carrier(name)
	}
	if most := maxStringBytes - len("=\x00") - len(name); len(value) > most {
		return errdefs.Invalid(field, fmt.Sprintf("the value has %d bytes, the kernel takes at most %d with this name", len(value), most))
	}
	return nil
}

// Limits bound one run. The zero value sets no limits.
type Limits struct {
	// TimeoutMs ends the command after so many milliseconds, waiting for its turn included. Zero means no limit.
	TimeoutMs int64 `json:"timeoutMs,omitempty"`
	// MaxOutputBytes bounds stdout and stderr together. Zero means no limit.
	MaxOutputBytes int64 `json:"maxOutputBytes,omitempty"`
}

// Validate rejects negative limits.
func (l Limits) Validate() error {
	return cmp.Or(notNegative("timeoutMs", l.TimeoutMs), notNegative("maxOutputBytes", l.MaxOutputBytes))
}

// Timeout returns TimeoutMs as a duration; what is too long for one counts as no limit.
func (l Limits) Timeout() time.Duration { return milliseconds(l.TimeoutMs) }
