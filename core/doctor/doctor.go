// Package doctor says, as data, why this host cannot build a sandbox and what
// its owner can do about it.
//
// It draws conclusions from facts that others gathered; it asks the host
// nothing. Whether a sandbox can be built is found out by building one, in
// package supervise; the doctor speaks only once that did not work.
package doctor

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

// Code names a finding. Codes are stable, texts are not.
type Code string

// The findings.
const (
	// NotLinux: sandboxes need Linux.
	NotLinux Code = "not-linux"
	// BwrapMissing: there is no bwrap to run.
	BwrapMissing Code = "bwrap-missing"
	// BwrapTooOld: bwrap lacks an option that a sandbox needs.
	BwrapTooOld Code = "bwrap-too-old"
	// BwrapBroken: bwrap could not be started or understood.
	BwrapBroken Code = "bwrap-broken"
	// UsernsDisabled: a setting turns user namespaces off.
	UsernsDisabled Code = "userns-disabled"
	// UsernsAppArmor: Ubuntu's AppArmor restriction is on.
	UsernsAppArmor Code = "userns-apparmor"
	// UsernsExhausted: the limit on user namespaces is reached.
	UsernsExhausted Code = "userns-exhausted"
	// UsernsRefused: the kernel or a container's filter refuses user namespaces.
	UsernsRefused Code = "userns-refused"
	// RootNeedsSetfcap: root in a container without the capability to map uid 0.
	RootNeedsSetfcap Code = "root-needs-setfcap"
	// SandboxFailed: bwrap could not build the sandbox for another reason.
	SandboxFailed Code = "sandbox-failed"
)

// Severity says what a finding means for sandboxes.
type Severity string

// The severities.
const (
	// Fatal: no sandbox can be built.
	Fatal Severity = "fatal"
	// Warning: it may be the reason, or becomes one.
	Warning Severity = "warning"
)

// Finding is one thing that is wrong with a host.
type Finding struct {
	Code     Code     `json:"code"`
	Title    string   `json:"title"`
	Severity Severity `json:"severity"`
	// Detail is the evidence: a setting's value, what bwrap wrote.
	Detail string `json:"detail,omitempty"`
	// Remedy is what the owner of the host can do, often a command.
	Remedy string `json:"remedy,omitempty"`
}

// Facts are what is known once a sandbox could not be built. The zero value of
// a field means that nothing is known there.
type Facts struct {
	// OS is runtime.GOOS.
	OS string
	// UID is who we are.
	UID int
	// BwrapPath is what was looked for or run.
	BwrapPath string
	// LookupErr is why bwrap was not found.
	LookupErr error
	// StartErr is why bwrap could not be started.
	StartErr error
	// Bwrap says what it can.
	Bwrap feature.Bwrap
	// Userns are the kernel's settings.
	Userns feature.Userns
	// TriedUserns is set when we asked the kernel for a user namespace
	// ourselves, and TryErr what it said.
	TriedUserns bool
	TryErr      error
	// MayMapRoot is No when we are uid 0 and lack CAP_SETFCAP.
	MayMapRoot feature.Answer
	// Stderr is what bwrap wrote.
	Stderr string
}

// Diagnose turns facts into findings, the likeliest cause first. There is
// always one: the facts are those of a failure.
func Diagnose(f Facts) []Finding {
	if f.OS != "" && f.OS != "linux" {
		return []Finding{{
			Code: NotLinux, Severity: Fatal, Title: "Sandboxes need Linux",
			Detail: "this is " + f.OS, Remedy: "run the agent on Linux, or in a Linux virtual machine",
		}}
	}
	if finding, ok := diagnoseBwrap(f); ok {
		return []Finding{finding}
	}
	out := diagnoseUserns(f)
	if len(out) == 0 || out[0].Severity != Fatal {
		out = append(out, Finding{
			Code: SandboxFailed, Severity: Fatal, Title: "bwrap could not build a sandbox", Detail: f.Stderr,
		})
	}
	return out
}

func diagnoseBwrap(f Facts) (Finding, bool) {
	name := f.BwrapPath
	if name == "" {
		name = "bwrap"
	}
	switch {
	case f.LookupErr != nil:
		return Finding{
			Code: BwrapMissing, Severity: Fatal, Title: "bubblewrap is not installed",
			Detail: fmt.Sprintf("no executable %q was found", name),
			Remedy: "install it: apt-get install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap, or apk add bubblewrap; or set bwrapPath",
		}, true
	case f.StartErr != nil:
		return Finding{
			Code: BwrapBroken, Severity: Fatal, Title: "bwrap could not be started",
			Detail: f.StartErr.Error(), Remedy: "check that " + name + " is bubblewrap for this machine, or reinstall it",
		}, true
	case f.Bwrap.Args == feature.No || f.Bwrap.AsPID1 == feature.No || f.Bwrap.Perms == feature.No:
		return Finding{
			Code: BwrapTooOld, Severity: Fatal, Title: "bubblewrap is too old",
			Detail: name + " lacks --args, --as-pid-1 or --perms", Remedy: "install bubblewrap 0.5 or newer, or set bwrapPath to one",
		}, true
	}
	return Finding{}, false
}

// AppArmorProfile is what lets an unconfined bwrap make user namespaces where
// Ubuntu restricts them.
func AppArmorProfile(bwrapPath string) string {
	return `abi <abi/4.0>,
include <tunables/global>

profile bwrap ` + bwrapPath + ` flags=(unconfined) {
  userns,

  include if exists <local/bwrap>
}
`
}

func diagnoseUserns(f Facts) []Finding {
	var out []Finding
	fatal := func(code Code, title, detail, remedy string) {
		out = append(out, Finding{Code: code, Severity: Fatal, Title: title, Detail: strings.TrimSpace(detail + "\n" + f.Stderr), Remedy: remedy})
	}
	if f.Userns.HasMax == feature.Yes && f.Userns.Max == 0 {
		fatal(UsernsDisabled, "User namespaces are turned off", "user.max_user_namespaces = 0",
			"sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d/ to keep it")
	}
	if f.UID != 0 && f.Userns.Blocked == feature.Yes {
		fatal(UsernsDisabled, "User namespaces are turned off for ordinary users", "kernel.unprivileged_userns_clone = 0",
			"sysctl -w kernel.unprivileged_userns_clone=1, and the same line in /etc/sysctl.d/ to keep it")
	}
	if f.UID != 0 && f.Userns.AppArmor == feature.Yes {
		fatal(UsernsAppArmor, "AppArmor does not let bwrap make user namespaces", "kernel.apparmor_restrict_unprivileged_userns = 1",
			"save this as /etc/apparmor.d/bwrap and run apparmor_parser -r -W /etc/apparmor.d/bwrap:\n"+AppArmorProfile(f.BwrapPath))
	}
	if f.UID == 0 && f.MayMapRoot == feature.No {
		fatal(RootNeedsSetfcap, "Root in this container may not map its own id", "CAP_SETFCAP is missing",
			"run the agent as an ordinary user, or add the capability SETFCAP to the container")
	}
	if len(out) > 0 || !f.TriedUserns || f.TryErr == nil {
		return out
	}
	if errors.Is(f.TryErr, unix.ENOSPC) {
		fatal(UsernsExhausted, "No more user namespaces can be made", f.TryErr.Error(),
			"end processes that hold some, or raise user.max_user_namespaces; inside a sandbox with --disable-userns none can be made at all")
		return out
	}
	fatal(UsernsRefused, "The kernel refuses user namespaces", f.TryErr.Error(),
		"in a container, allow them in its seccomp profile (for example --security-opt seccomp=unconfined); in a chroot they cannot be made")
	return out
}

// Error returns the error of a start that failed for these findings.
func Error(findings []Finding, cause error) *errdefs.Error {
	first := findings[0]
	return &errdefs.Error{
		Code: errdefs.Unavailable, Op: "start", Msg: first.Title,
		Detail: first.Detail, Remedy: first.Remedy, Err: cause,
	}
}

// Unexplained is the finding for a sandbox that could not be built for a reason
// that is not the host's.
func Unexplained(err error) Finding {
	f := Finding{Code: SandboxFailed, Severity: Fatal, Title: "No sandbox could be built", Detail: err.Error()}
	var known *errdefs.Error
	if errors.As(err, &known) {
		f.Remedy = known.Remedy
	}
	return f
}
