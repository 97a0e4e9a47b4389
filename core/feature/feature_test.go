package feature

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseHelp(t *testing.T) {
	for name, tc := range map[string]struct {
		help string
		want Bwrap
	}{
		"empty":      {"", Bwrap{}},
		"not a help": {"bwrap: Permission denied\n", Bwrap{}},
		"old": {
			"usage: bwrap [OPTIONS...]\n\n    --help   Print this help\n    --args FD  Parse\n    --as-pid-1   Do not\n",
			Bwrap{DisableUserns: No, BindFD: No, Size: No, Perms: No, AsPID1: Yes, Args: Yes},
		},
		"mentioned but not an option": {
			"    --help   see --bind-fd and --size\n",
			Bwrap{DisableUserns: No, BindFD: No, Size: No, Perms: No, AsPID1: No, Args: No},
		},
		"new": {
			"    --args FD\n    --disable-userns  x\n    --bind-fd FD DEST\n    --size BYTES\n    --perms OCTAL\n    --as-pid-1\n",
			Bwrap{DisableUserns: Yes, BindFD: Yes, Size: Yes, Perms: Yes, AsPID1: Yes, Args: Yes},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, ParseHelp(tc.help)) })
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "tool")
	require.NoError(t, os.WriteFile(bin, []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	for name, tc := range map[string]struct{ name, path, want string }{
		"absolute":       {bin, "", bin},
		"in PATH":        {"tool", "/nonexistent:" + dir, bin},
		"relative entry": {"tool", ".:", ""},
		"not executable": {"data", dir, ""},
		"a directory":    {"sub", dir, ""},
		"empty PATH":     {"tool", "", ""},
		"absent":         {"/nonexistent/bwrap", dir, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Lookup(tc.name, tc.path)
			if tc.want == "" {
				require.ErrorIs(t, err, ErrNotFound)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestProbe_RemembersAllButUnknown(t *testing.T) {
	answers := []Answer{Unknown, Yes, No}
	asked := 0
	p := &Probe{ask: func() Answer { asked++; return answers[asked-1] }}
	require.Equal(t, Unknown, p.Answer())
	require.Equal(t, Yes, p.Answer())
	require.Equal(t, Yes, p.Answer())
	require.Equal(t, 2, asked)
}

func TestVerdict(t *testing.T) {
	require.Equal(t, Yes, verdict(nil))
	require.Equal(t, No, verdict(unix.ENOSYS))
	require.Equal(t, No, verdict(unix.EPERM))
	require.Equal(t, Unknown, verdict(unix.EMFILE))
}

func TestSysctl(t *testing.T) {
	_, has := Sysctl("kernel/no_such_setting")
	require.Equal(t, No, has)
	n, has := Sysctl("kernel/pid_max")
	require.Equal(t, Yes, has)
	require.Positive(t, n)
}

func TestKernelProbes_AnswerHere(t *testing.T) {
	for name, p := range map[string]*Probe{"openat2": Openat2, "pidfd": Pidfd, "close_range": CloseRange} {
		require.NotEqual(t, Unknown, p.Answer(), name)
	}
}
