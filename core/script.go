package core

import (
	"fmt"
	"strings"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// maxArgument is how long a script may be that bash gets as an argument; longer
// ones it reads from a descriptor. It leaves room below the kernel's limit.
const maxArgument = 96 << 10

// restorePath gives the script the author's PATH, which the login files may have
// replaced. On the script's own first line: the numbers of its lines stay right.
const restorePath = `export PATH="$__sandbox_PATH";unset __sandbox_PATH; `

// forgetScript takes the script's text out of the script's sight.
const forgetScript = `unset __sandbox_script; `

// readScript is what bash runs instead of a long script: bash -l would run the
// login files first, and they, or a process that they leave behind, could read
// the descriptor or keep it. So bash is told to run none, and this runs them as
// bash does, once the script is read and the descriptor closed. One line, from
// which eval counts the script's.
//
// The traces that it leaves: syntax errors name "eval" instead of "-c", set -x
// writes one "+" more, and a login file that breaks off in an expansion
// (${x:?}, set -u) takes the command with it.
var readScript = strings.Join([]string{
	`mapfile -d '' -t -u 3 __sandbox_script`,
	`exec 3<&-`,
	`[[ -v __sandbox_BASH_ENV ]] && export BASH_ENV="$__sandbox_BASH_ENV"`,
	`unset __sandbox_BASH_ENV`,
	`if [[ ! -o posix ]]; then [[ -e /etc/profile ]] && . /etc/profile`,
	`if [[ -e ~/.bash_profile ]]; then . ~/.bash_profile`,
	`elif [[ -e ~/.bash_login ]]; then . ~/.bash_login`,
	`elif [[ -e ~/.profile ]]; then . ~/.profile`,
	`fi`,
	// Bash expands the value as if it stood in double quotes.
	`if [[ -n ${BASH_ENV-} ]]; then eval "__sandbox_BASH_ENV=\"$BASH_ENV\""`,
	`[[ -e $__sandbox_BASH_ENV ]] && . "$__sandbox_BASH_ENV"`,
	`unset __sandbox_BASH_ENV`,
	`fi`,
	`fi`,
	`eval "$__sandbox_script"`,
}, "; ")

// ownArguments is more than everything takes that is not the author's.
const ownArguments = 16 << 10

// fits refuses what the kernel would refuse when bash is started, before anything is.
func fits(cmd spec.Command) error {
	const perString = len("=\x00") + 8 // and a pointer
	needed := ownArguments
	if len(cmd.Command) <= maxArgument {
		needed += len(cmd.Command)
	}
	for name, value := range cmd.Env {
		if value == nil {
			continue
		}
		needed += len(name) + len(*value) + perString
		if name == "PATH" {
			needed += len(spec.Carrier(name)) + len(*value) + perString
		}
	}
	if space := linux.ArgumentSpace(); needed > space {
		return errdefs.Invalid("env", fmt.Sprintf(
			"the variables take %d bytes, with the command where that is short; the kernel takes at most %d, a quarter of the stack's limit", needed, space))
	}
	return nil
}

// loginShell returns how the login shell that runs a command's script is started.
func loginShell(login spec.Login, cmd spec.Command) supervise.Command {
	script, env := cmd.Command, cmd.Environ(login)
	if path := cmd.Env["PATH"]; path != nil {
		env = append(env, spec.Carrier("PATH")+"="+*path)
		script = restorePath + script
	}
	if len(cmd.Command) <= maxArgument {
		return supervise.Command{Argv: []string{login.Shell, "-lc", "--", script}, Env: env}
	}
	// Bash runs the file that it names before the first command.
	for i, variable := range env {
		if name, value, _ := strings.Cut(variable, "="); name == "BASH_ENV" {
			env[i] = spec.Carrier(name) + "=" + value
		}
	}
	return supervise.Command{
		Argv: []string{login.Shell, "--noprofile", "-lc", "--", readScript}, Env: env,
		Script: forgetScript + script,
	}
}
