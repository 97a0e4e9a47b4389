package core

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// What is let through must be what the kernel takes; what is not may be a little less.
func TestFits_AsTheKernelDoes(t *testing.T) {
	w := watch(t)
	space := linux.ArgumentSpace()
	filled := func(bytes int) spec.Command {
		const each = 100_000
		cmd := spec.Command{Command: strings.Repeat(" ", maxArgument-4) + "true", Env: map[string]*string{}}
		for i := 0; bytes > 0; i++ {
			value := strings.Repeat("x", min(bytes, each))
			cmd.Env[fmt.Sprintf("V%03d", i)] = &value
			bytes -= len(value) + len("V000=") + 1 + 8
		}
		return cmd
	}
	for _, tc := range []struct {
		bytes int
		fits  bool
	}{{space - maxArgument - ownArguments - 1000, true}, {space, false}, {20 << 20, false}} {
		_, err := w.Run(t.Context(), filled(tc.bytes), spec.Limits{})
		if tc.fits {
			require.NoError(t, err)
			continue
		}
		var known *errdefs.Error
		require.ErrorAs(t, err, &known)
		require.Equal(t, []any{errdefs.InvalidArgument, "env"}, []any{known.Code, known.Op})
	}
	require.Len(t, w.of(event.CommandStarted), 1)
}

// Arguments are for everybody to read: nothing of the author's stands there but a
// script that is short.
func TestLoginShell(t *testing.T) {
	login := spec.Login{User: "u", Shell: "/b/bash"}
	path, file := "/secret/bin", "$HOME/secret"
	short, long := "echo", strings.Repeat("x", maxArgument)+"y"
	for name, tc := range map[string]struct {
		cmd    spec.Command
		argv   []string
		env    []string
		script string
	}{
		"short":   {spec.Command{Command: short}, []string{"/b/bash", "-lc", "--", "echo"}, nil, ""},
		"longest": {spec.Command{Command: long[1:]}, []string{"/b/bash", "-lc", "--", long[1:]}, nil, ""},
		"short with a PATH": {
			spec.Command{Command: short, Env: map[string]*string{"PATH": &path}},
			[]string{"/b/bash", "-lc", "--", restorePath + "echo"},
			[]string{"PATH=/secret/bin", "__sandbox_PATH=/secret/bin"},
			"",
		},
		"short without PATH": {
			spec.Command{Command: short, Env: map[string]*string{"PATH": nil}}, []string{"/b/bash", "-lc", "--", "echo"}, nil, "",
		},
		"short with a BASH_ENV": {
			spec.Command{Command: short, Env: map[string]*string{"BASH_ENV": &file}},
			[]string{"/b/bash", "-lc", "--", "echo"},
			[]string{"BASH_ENV=$HOME/secret"},
			"",
		},
		"long": {
			spec.Command{Command: long}, []string{"/b/bash", "--noprofile", "-lc", "--", readScript}, nil, forgetScript + long,
		},
		"long with both": {
			spec.Command{Command: long, Env: map[string]*string{"PATH": &path, "BASH_ENV": &file}},
			[]string{"/b/bash", "--noprofile", "-lc", "--", readScript},
			[]string{"PATH=/secret/bin", "__sandbox_PATH=/secret/bin", "__sandbox_BASH_ENV=$HOME/secret"},
			forgetScript + restorePath + long,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := loginShell(login, tc.cmd)
			require.Equal(t, tc.argv, got.Argv)
			require.Equal(t, tc.script, got.Script)
			require.Subset(t, got.Env, tc.env)
			if tc.script != "" {
				require.NotContains(t, strings.Join(got.Env, "\n"), "\nBASH_ENV=")
			}
		})
	}
	require.NotContains(t, readScript, "\n", "the script's lines are counted from this one")
}
