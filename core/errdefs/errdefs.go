// Package errdefs has the one error type that crosses from the core to its
// callers, and the codes they may branch on.
//
// Codes are stable API, messages are not. A code exists only where a caller
// does something different because of it; everything else is a wrapped cause.
package errdefs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// Code names why an operation failed. File operations use the POSIX name of
// the errno ("ENOENT", "EISDIR") as their code, as Node does.
type Code string

// The codes that are not POSIX names.
const (
	// Unavailable is returned when this host cannot build a sandbox.
	Unavailable Code = "ERR_UNAVAILABLE"
	// InvalidArgument is returned when an option or a request is rejected; the message names the field.
	InvalidArgument Code = "ERR_INVALID_ARGUMENT"
	// Unsupported is returned for what this host or release cannot enforce: refused, never weakened.
	Unsupported Code = "ERR_UNSUPPORTED"
	// TemplateNotFound is returned by create when the template was never built.
	TemplateNotFound Code = "ERR_TEMPLATE_NOT_FOUND"
	// SessionGone is returned when a session's directory was removed or replaced.
	SessionGone Code = "ERR_SESSION_GONE"
	// Closed is returned for calls on a handle after its end.
	Closed Code = "ERR_CLOSED"
	// Busy is returned when an admission limit is reached.
	Busy Code = "ERR_BUSY"
	// Aborted is returned when the caller cancelled.
	Aborted Code = "ERR_ABORTED"
	// Timeout is returned when a command outlived its time limit.
	Timeout Code = "ERR_TIMEOUT"
	// OutputLimit is returned when a command wrote more than its output limit.
	OutputLimit Code = "ERR_OUTPUT_LIMIT"
	// OutOfMemory is returned when the kernel ended a command for its memory use.
	OutOfMemory Code = "ERR_OOM"
	// Escape is returned when a path kept changing under a bounded number of retries.
	Escape Code = "ERR_ESCAPE"
	// InUse is returned when another process holds what is to be removed.
	InUse Code = "ERR_IN_USE"
	// Corrupt is returned when the store holds something it cannot have written.
	Corrupt Code = "ERR_CORRUPT"
	// BadHandle is returned for a handle that was never given out or is closed.
	BadHandle Code = "ERR_BAD_HANDLE"
	// Internal is returned for our own bugs.
	Internal Code = "ERR_INTERNAL"
)

// Error is a failure with a code. The zero value of each field but Code means
// that there is nothing to say there.
type Error struct {
	// Code is what callers branch on.
	Code Code
	// Op names the operation in the field's words: "run", "read", "create".
	Op string
	// Path is the path as the sandbox sees it; a host path never stands here.
	Path string
	// Msg says what is wrong.
	Msg string
	// Remedy says what the person who runs the host can do.
	Remedy string
	// Detail is the evidence of a set-up failure, such as what bwrap wrote on stderr.
	// It never holds what a command wrote.
	Detail string
	// Limit and Live say, of a Busy, how many there may be and how many there are.
	Limit, Live int64
	// Err is the cause.
	Err error
}

// Error returns the message: operation, object, cause.
func (e *Error) Error() string {
	msg := e.Msg
	if msg == "" {
		if e.Err != nil {
			msg = e.Err.Error()
		} else {
			msg = string(e.Code)
		}
	}
	if e.Path != "" {
		msg = e.Path + ": " + msg
	}
	if e.Op != "" {
		msg = e.Op + ": " + msg
	}
	return msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same code with nothing else set,
// so that errors.Is(err, errdefs.ErrClosed) style checks work on codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Op == "" && t.Msg == "" && t.Path == ""
}

// New returns an error of the given code.
func New(code Code, op, msg string) *Error { return &Error{Code: code, Op: op, Msg: msg} }

// Invalid returns an InvalidArgument that names the field.
func Invalid(field, msg string) *Error {
	return &Error{Code: InvalidArgument, Op: field, Msg: msg}
}

// File returns the error of a file operation on a sandbox path. Its code is the
// POSIX name of the errno in err's chain, or Internal when there is none; an
// *Error in the chain is returned as it is.
func File(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &Error{Code: codeOfErrno(errno), Op: op, Path: path, Msg: errno.Error(), Err: err}
	}
	return &Error{Code: Internal, Op: op, Path: path, Err: err}
}

// Abort returns the error of a call whose context has ended: the cause, if that is
// one of our errors, such as a Timeout, else Aborted with the cause in it. Path
// may be empty.
func Abort(ctx context.Context, op, path string) error {
	cause := context.Cause(ctx)
	var known *Error
	if errors.As(cause, &known) {
		return cause
	}
	return &Error{Code: Aborted, Op: op, Path: path, Msg: "aborted by the caller", Err: cause}
}

// CodeOf returns the code in err's chain, the POSIX name of a bare errno,
// Internal for any other error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return codeOfErrno(errno)
	}
	return Internal
}

// codeOfErrno is the POSIX name, and Internal for a number that has none.
func codeOfErrno(errno syscall.Errno) Code {
	if name := unix.ErrnoName(errno); name != "" {
		return Code(name)
	}
	return Internal
}

// Recover turns a panic into an Internal error in *err. It is for the defer
// statement of a goroutine's first function: a panic that leaves a goroutine
// would abort the whole host process.
func Recover(err *error) {
	if v := recover(); v != nil {
		*err = &Error{Code: Internal, Msg: fmt.Sprintf("panic: %v", v), Detail: string(debug.Stack())}
	}
}

// wireError is the JSON shape that lib/errors.ts decodes.
type wireError struct {
	Code    Code   `json:"code"`
	Op      string `json:"op,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Limit   int64  `json:"limit,omitempty"`
	Live    int64  `json:"live,omitempty"`
}

// Marshal returns err in the JSON shape that crosses the boundary.
func Marshal(err error) json.RawMessage {
	w := wireError{Code: CodeOf(err), Message: err.Error()}
	var e *Error
	if errors.As(err, &e) {
		w.Op, w.Path, w.Remedy, w.Detail = e.Op, e.Path, e.Remedy, e.Detail
		w.Limit, w.Live = e.Limit, e.Live
	}
	// Strings and numbers only: Marshal cannot fail.
	out, _ := json.Marshal(w)
	return out
}
