package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

var bwrapRequest = bwrap.Request{}

// mounts returns the flags of each mount point inside.
func mounts(t testing.TB, g *Generation) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(must(t, g, "cat /proc/self/mountinfo")) {
		fields := strings.Fields(line)
		out[fields[4]] = strings.Split(fields[5], ",")
	}
	return out
}

func TestIsolation_MountFlags(t *testing.T) {
	g, _ := sandbox(t)
	got := mounts(t, g)
	for _, dir := range []string{"/", "/usr", "/etc", "/dev"} {
		require.Contains(t, got[dir], "ro", dir)
	}
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
		require.Contains(t, got[dir], "rw", dir)
		require.Contains(t, got[dir], "nosuid", dir)
		require.Contains(t, got[dir], "nodev", dir)
	}
	require.NotContains(t, got, "/sys")
}

func TestIsolation_OnlyTheAllowListIsThere(t *testing.T) {
	g, _ := sandbox(t)
	have := strings.Fields(must(t, g, "ls /"))
	for _, name := range []string{"root", "srv", "mnt", "media", "sys", "boot"} {
		require.NotContains(t, have, name)
	}
	require.Empty(t, must(t, g, "ls -A /home /run | grep -v : | grep -v '^$' || true"))
	require.Equal(t, "sandbox\n", must(t, g, "hostname"))
	require.Equal(t, "/workspace\n", must(t, g, "pwd"))
	require.Equal(t, "x\n", must(t, g, "echo x >/var/tmp/f; cat /tmp/f"))
	require.Equal(t, "3\n", must(t, g, "head -c 3 /dev/zero | tee /dev/null | wc -c"))
	must(t, g, "echo x >/dev/null; head -c 4 /dev/urandom >/dev/full && exit 1; getent passwd $(id -u); id -un; [ -s /etc/resolv.conf ] || true")
}

func TestIsolation_SizesAreBounded(t *testing.T) {
	cfg := config(t, t.TempDir(), bwrap.Request{})
	cfg.Spec.TmpBytes = 1 << 20
	g := start(t, cfg)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		r, err := Run(t.Context(), g, bash("head -c 2000000 /dev/zero >"+dir+"/big"), Limits{})
		require.NoError(t, err)
		require.NotZero(t, r.ExitCode)
		require.Contains(t, string(r.Stderr), "No space left")
	}
}

// Everything that holds for the host's uid 0 without capabilities, which still
// owns the host's files.
func TestIsolation_RootOwnsNothingOfTheHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is about root")
	}
	g, _ := sandbox(t)
	require.Contains(t, mounts(t, g)["/proc"], "ro")
	for _, name := range []string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/mtrr", "/proc/sys/vm/drop_caches"} {
		if _, err := os.Stat(name); err != nil {
			continue
		}
		// Opened, never written.
		r, err := Run(t.Context(), g, bash("exec 3>>"+name), Limits{})
		require.NoError(t, err)
		require.NotZero(t, r.ExitCode, name)
		require.Contains(t, string(r.Stderr), "Read-only file system", name)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		device := "/dev/" + name
		require.Contains(t, mounts(t, g)[device], "ro", device)
		require.NotContains(t, mounts(t, g)[device], "nodev", device)
		info, err := os.Stat(device)
		require.NoError(t, err)
		// To the mode that it has: nothing would change, were it allowed.
		r, err := Run(t.Context(), g, bash("chmod "+modeOf(info)+" "+device), Limits{})
		require.NoError(t, err)
		require.NotZero(t, r.ExitCode, device)
		require.Contains(t, string(r.Stderr), "Read-only file system", device)
	}
}

func modeOf(info os.FileInfo) string {
	const digits = "01234567"
	m := info.Mode().Perm()
	return string([]byte{'0', digits[m>>6&7], digits[m>>3&7], digits[m&7]})
}

func TestIsolation_NothingSecretInEtc(t *testing.T) {
	g, _ := sandbox(t)
	for _, name := range []string{"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/security/opasswd"} {
		require.Empty(t, must(t, g, "cat "+name+" 2>/dev/null || true"), name)
	}
	require.Empty(t, must(t, g, "ls -A /etc/ssl/private 2>/dev/null || true"))
	// Of what the user can read, nothing that has content is for it alone.
	require.Empty(t, must(t, g, "find /etc -xdev -type f ! -perm -o+r -size +0 2>/dev/null || true"))
	passwd := must(t, g, "cat /etc/passwd")
	require.LessOrEqual(t, strings.Count(passwd, "\n"), 3)
}

func TestIsolation_ASecretPutIntoEtcLaterIsHiddenToo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can put files into /etc")
	}
	name := filepath.Join("/etc", "sandbox-test.env")
	require.NoError(t, os.WriteFile(name, []byte("SECRET"), 0o600))
	defer func() { _ = os.Remove(name) }()
	for _, mode := range []os.FileMode{0o600, 0o640} {
		require.NoError(t, os.Chmod(name, mode))
		g, _ := sandbox(t)
		require.Empty(t, must(t, g, "cat "+name))
	}
}

func TestIsolation_HidePaths(t *testing.T) {
	doc := "/usr/share/doc"
	if _, err := os.Stat(doc); err != nil {
		doc = "/usr/share/man"
	}
	g := start(t, config(t, t.TempDir(), bwrap.Request{Hide: []string{
		doc, "/usr/bin/env", "/etc/hosts", "/nonexistent", "/srv", "/var/log",
	}}))
	require.Empty(t, must(t, g, "ls -A "+doc))
	require.Empty(t, must(t, g, "cat /usr/bin/env; cat /etc/hosts"))
	r, err := Run(t.Context(), g, bash("touch "+doc+"/x"), Limits{})
	require.NoError(t, err)
	require.Contains(t, string(r.Stderr), "Read-only")
}

func TestIsolation_ManyHiddenPaths(t *testing.T) {
	entries, err := filepath.Glob("/usr/bin/*")
	require.NoError(t, err)
	libs, err := filepath.Glob("/usr/share/*/*")
	require.NoError(t, err)
	var hide []string
	for _, p := range append(entries, libs...) {
		info, err := os.Lstat(p)
		if err == nil && info.Mode().IsRegular() && !strings.HasSuffix(p, "/bash") && !strings.HasSuffix(p, "/bwrap") && len(hide) < bwrap.MaxHidden {
			hide = append(hide, p)
		}
	}
	began := time.Now()
	g := start(t, config(t, t.TempDir(), bwrap.Request{Hide: hide}))
	t.Logf("%d paths in %v", len(hide), time.Since(began))
	require.Equal(t, "x\n", must(t, g, "echo x"))
	_, err = bwrap.Survey(bwrap.Request{Hide: make([]string, bwrap.MaxHidden+1)})
	require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
}

func TestIsolation_NodeInstallationOutsideOfTheTrees(t *testing.T) {
	root, err := os.MkdirTemp("/var/tmp", "node")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(root) }()
	require.NoError(t, os.Chmod(root, 0o755)) //nolint:gosec // an installation
	require.NoError(t, os.MkdirAll(root+"/v/bin", 0o755))
	require.NoError(t, os.MkdirAll(root+"/v/include/node", 0o755))
	require.NoError(t, os.WriteFile(root+"/v/bin/node", []byte("#!/bin/sh\necho node\n"), 0o755)) //nolint:gosec // a program
	require.NoError(t, os.WriteFile(root+"/beside", []byte("x"), 0o600))
	g := start(t, config(t, t.TempDir(), bwrap.Request{NodePath: root + "/v/bin/node"}))
	require.Equal(t, "node\nv\n", must(t, g, root+"/v/bin/node; ls -A "+root))
}

func TestIsolation_WorkspaceIsTheDirectory(t *testing.T) {
	for name, byPath := range map[string]bool{"by descriptor": false, "by path": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := config(t, dir, bwrap.Request{})
			if byPath {
				cfg.Workspace = nil
			}
			g := start(t, cfg)
			must(t, g, "echo content >file")
			require.Equal(t, "content\n", readFile(t, dir+"/file"))
		})
	}
	t.Run("none", func(t *testing.T) {
		g := start(t, config(t, "", bwrap.Request{}))
		r, err := Run(t.Context(), g, bash("touch x"), Limits{})
		require.NoError(t, err)
		require.Contains(t, string(r.Stderr), "Read-only")
	})
	t.Run("removed meanwhile", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "ws")
		require.NoError(t, os.Mkdir(dir, 0o700))
		cfg := config(t, dir, bwrap.Request{})
		require.NoError(t, os.Remove(dir))
		cfg.HelloTimeout = 3 * time.Second
		_, err := Start(t.Context(), cfg)
		require.Equal(t, errdefs.Unavailable, errdefs.CodeOf(err))
	})
}

func TestIsolation_NoDescriptorsAndNoCapabilities(t *testing.T) {
	g, _ := sandbox(t)
	require.Equal(t, "0\n1\n2\n3\n", must(t, g, "ls /proc/self/fd"), "3 is the listing itself")
	status := must(t, g, "cat /proc/self/status")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		require.Contains(t, status, set+":\t0000000000000000\n")
	}
	require.Contains(t, status, "NoNewPrivs:\t1\n")
	require.Contains(t, status, "SigBlk:\t0000000000000000\n")
	require.Contains(t, status, "SigIgn:\t0000000000000000\n")
}
