package doctor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

func TestDiagnose(t *testing.T) {
	for name, tc := range map[string]struct {
		facts  Facts
		want   []Code
		remedy string
	}{
		"macOS":            {Facts{OS: "darwin"}, []Code{NotLinux}, "Linux"},
		"no bwrap":         {Facts{OS: "linux", LookupErr: errors.New("x")}, []Code{BwrapMissing}, "apt-get install bubblewrap"},
		"bwrap not for us": {Facts{StartErr: unix.ENOEXEC}, []Code{BwrapBroken}, "reinstall"},
		"old bwrap":        {Facts{Bwrap: feature.Bwrap{Perms: feature.No}}, []Code{BwrapTooOld}, "0.5"},
		"unknown bwrap":    {Facts{}, []Code{SandboxFailed}, ""},
		"namespaces off":   {Facts{Userns: feature.Userns{HasMax: feature.Yes}}, []Code{UsernsDisabled}, "max_user_namespaces"},
		"Debian switch":    {Facts{UID: 1, Userns: feature.Userns{Blocked: feature.Yes}}, []Code{UsernsDisabled}, "unprivileged_userns_clone=1"},
		"Debian switch does not stop root": {
			Facts{Userns: feature.Userns{Blocked: feature.Yes, AppArmor: feature.Yes}}, []Code{SandboxFailed}, "",
		},
		"Ubuntu":            {Facts{UID: 1, BwrapPath: "/opt/bwrap", Userns: feature.Userns{AppArmor: feature.Yes}}, []Code{UsernsAppArmor}, "profile bwrap /opt/bwrap flags"},
		"exhausted":         {Facts{TriedUserns: true, TryErr: unix.ENOSPC}, []Code{UsernsExhausted}, "raise"},
		"refused":           {Facts{TriedUserns: true, TryErr: unix.EPERM}, []Code{UsernsRefused}, "seccomp"},
		"container's root":  {Facts{MayMapRoot: feature.No}, []Code{RootNeedsSetfcap}, "SETFCAP"},
		"a user needs none": {Facts{UID: 5, MayMapRoot: feature.No}, []Code{SandboxFailed}, ""},
		"something else":    {Facts{TriedUserns: true, Stderr: "bwrap: x"}, []Code{SandboxFailed}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Code
			findings := Diagnose(tc.facts)
			for _, f := range findings {
				got = append(got, f.Code)
				require.NotEmpty(t, f.Title)
				require.NotEmpty(t, f.Severity)
			}
			require.Equal(t, tc.want, got)
			require.Contains(t, findings[0].Remedy, tc.remedy)

			err := Error(findings, unix.EPERM)
			require.Equal(t, errdefs.Unavailable, err.Code)
			require.Equal(t, findings[0].Remedy, err.Remedy)
			require.ErrorIs(t, err, unix.EPERM)
		})
	}
}

func TestDiagnose_KeepsBwrapsWords(t *testing.T) {
	for name, facts := range map[string]Facts{
		"known cause":   {Userns: feature.Userns{HasMax: feature.Yes}, Stderr: "bwrap: evidence\n"},
		"unknown cause": {Stderr: "bwrap: evidence\n"},
	} {
		t.Run(name, func(t *testing.T) { require.Contains(t, Diagnose(facts)[0].Detail, "bwrap: evidence") })
	}
}
