package bwrap

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var allFeatures = feature.Bwrap{
	DisableUserns: feature.Yes, BindFD: feature.Yes, Size: feature.Yes,
	Perms: feature.Yes, AsPID1: feature.Yes, Args: feature.Yes,
}

// debian are the facts of an ordinary host.
func debian() Host {
	return Host{
		Trees: []Tree{
			{Path: "/usr"},
			{Path: "/bin", Link: "usr/bin"},
			{Path: "/sbin", Link: "usr/sbin"},
			{Path: "/lib", Link: "usr/lib"},
			{Path: "/lib64", Link: "usr/lib64"},
			{Path: "/etc"},
			{Path: "/opt"},
		},
		Etc: map[string]string{
			"group": "/etc/group", "hostname": "/etc/hostname", "hosts": "/etc/hosts",
			"machine-id": "/etc/machine-id", "passwd": "/etc/passwd", "profile": "/etc/profile", "resolv.conf": "/etc/resolv.conf",
		},
		ResolvConf: []byte("nameserver 192.0.2.1\n"),
		Profile:    []byte("export PATH=/usr/bin\n"),
		Secrets: []Hidden{
			{Path: "/etc/shadow"}, {Path: "/etc/ssl/private", Dir: true}, {Path: "/etc/x.env"},
		},
		Shell: "/usr/bin/bash",
	}
}

func TestPlan_Golden(t *testing.T) {
	user := Identity{UID: 1000, GID: 1000}
	for name, tc := range map[string]struct {
		spec     func() Spec
		features feature.Bwrap
	}{
		"user": {func() Spec {
			return Spec{Host: debian(), Identity: user, Workspace: Dir{FD: 6, Path: "/srv/ws"}, FirstFD: 7}
		}, allFeatures},
		"root": {func() Spec {
			return Spec{Host: debian(), Workspace: Dir{FD: 6, Path: "/srv/ws"}, FirstFD: 7}
		}, allFeatures},
		"old bwrap": {func() Spec {
			return Spec{Host: debian(), Identity: user, Workspace: Dir{FD: 6, Path: "/srv/ws"}, FirstFD: 7}
		}, feature.Bwrap{AsPID1: feature.Yes, Args: feature.Yes, Perms: feature.Yes, DisableUserns: feature.No, BindFD: feature.No, Size: feature.No}},
		"home": {func() Spec {
			return Spec{
				Host: debian(), Identity: user, Workspace: Dir{FD: 6, Path: "/srv/ws"},
				Home: Dir{FD: 7, Path: "/srv/home"}, HomePath: "/home/sandbox", FirstFD: 8,
			}
		}, allFeatures},
		"probe": {func() Spec {
			return Spec{Host: debian(), Identity: user, FirstFD: 6}
		}, allFeatures},
		"links": {func() Spec {
			h := debian()
			h.Etc["resolv.conf"] = "/run/systemd/resolve/stub-resolv.conf"
			delete(h.Etc, "machine-id")
			h.Node = "/home/me/.nvm/versions/node/v24.1.0"
			h.Trees = append(h.Trees, Tree{Path: "/run/current-system", Link: "/nix/store/abc-system"})
			return Spec{Host: h, Identity: user, Workspace: Dir{Path: "/srv/ws"}, TmpBytes: 4096, FirstFD: 6}
		}, allFeatures},
		"hidden": {func() Spec {
			h := debian()
			h.Node = "/home/me/node"
			h.Hidden = []Hidden{
				{Path: "/opt/app", Dir: true},
				{Path: "/opt/app/.env"},       // inside one that is hidden
				{Path: "/opt/app-2/secret"},   // beside it
				{Path: "/home/me", Dir: true}, // takes Node away
				{Path: "/etc/shadow"},         // hidden twice
				{Path: "/etc/hosts"},          // instead of our own
			}
			return Spec{Host: h, Identity: user, Workspace: Dir{FD: 6, Path: "/srv/ws"}, FirstFD: 7}
		}, allFeatures},
		"hidden tree": {func() Spec {
			h := debian()
			h.Hidden = []Hidden{{Path: "/opt", Dir: true}, {Path: "/etc", Dir: true}}
			return Spec{Host: h, Identity: user, Workspace: Dir{FD: 6, Path: "/srv/ws"}, FirstFD: 7}
		}, allFeatures},
	} {
		t.Run(name, func(t *testing.T) {
			first, err := Plan(tc.spec(), tc.features)
			require.NoError(t, err)
			again, err := Plan(tc.spec(), tc.features)
			require.NoError(t, err)
			require.Equal(t, first, again, "not deterministic")

			golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
			got := render(first)
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

// render puts one option with its operands on a line.
func render(a Arguments) string {
	var out strings.Builder
	for i, arg := range a.Argv {
		switch {
		case i == 0:
		case strings.HasPrefix(arg, "--"):
			out.WriteString("\n")
		default:
			out.WriteString(" ")
		}
		out.WriteString(arg)
	}
	out.WriteString("\n")
	for i, data := range a.Data {
		fmt.Fprintf(&out, "-- data %d --\n%s", i, data)
	}
	return out.String()
}

// bwrap cannot mount over a file that it has made itself.
func TestPlan_DoesNotHideWhatItHasCovered(t *testing.T) {
	host := debian()
	host.Secrets = append(host.Secrets, Hidden{Path: "/etc/hosts"})
	args, err := Plan(Spec{Host: host}, allFeatures)
	require.NoError(t, err)
	mounts := 0
	for _, arg := range args.Argv {
		if arg == "/etc/hosts" {
			mounts++
		}
	}
	require.Equal(t, 1, mounts)
}

func TestPlan_HidesUpToTheLimit(t *testing.T) {
	spec := Spec{Host: debian(), Identity: Identity{UID: 1, GID: 1}, Workspace: Dir{Path: "/srv/ws"}, FirstFD: 6}
	for i := range MaxHidden {
		spec.Host.Hidden = append(spec.Host.Hidden, Hidden{Path: fmt.Sprintf("/opt/%d", i)})
	}
	args, err := Plan(spec, allFeatures)
	require.NoError(t, err)
	require.LessOrEqual(t, len(args.Argv), maxArguments)

	for i := range spec.Host.Hidden {
		spec.Host.Hidden[i].Dir = true
	}
	_, err = Plan(spec, allFeatures)
	require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
	require.ErrorContains(t, err, "9000")
}

func TestSurvey_RejectsTooManyHiddenPaths(t *testing.T) {
	_, err := Survey(Request{Hide: make([]string, MaxHidden+1)})
	require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
	require.ErrorContains(t, err, "2500")
}

func TestPlan_RefusesABwrapWithoutTheEssentials(t *testing.T) {
	old := allFeatures
	old.AsPID1 = feature.No
	_, err := Plan(Spec{Host: debian()}, old)
	require.Equal(t, errdefs.Unavailable, errdefs.CodeOf(err))
	require.ErrorContains(t, err, "--as-pid-1")

	_, err = Plan(Spec{Host: debian()}, feature.Bwrap{})
	require.NoError(t, err, "an unknown bwrap is tried")
}

func TestPlan_PutsNothingBetweenTheWorkspaceAndTheSeal(t *testing.T) {
	args, err := Plan(Spec{Host: debian(), Workspace: Dir{Path: "/srv/ws"}, FirstFD: 6}, allFeatures)
	require.NoError(t, err)
	require.Equal(t, []string{"--remount-ro", "/dev", "--remount-ro", "/"}, args.Argv[len(args.Argv)-4:])
	require.Contains(t, strings.Join(args.Argv, " "), "--remount-ro /proc")
}

func TestEncode_EndsEveryArgument(t *testing.T) {
	require.Equal(t, "a\x00\x00b c\x00", string(Arguments{Argv: []string{"a", "", "b c"}}.Encode()))
}
