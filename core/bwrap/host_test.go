package bwrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree builds files below a new directory: "d name mode", "f name mode", "l name target".
func tree(t *testing.T, lines ...string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, line := range lines {
		words := strings.Fields(line)
		p := filepath.Join(root, words[1])
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		if words[0] == "l" {
			require.NoError(t, os.Symlink(words[2], p))
			continue
		}
		var mode os.FileMode
		_, err := fmt.Sscanf(words[2], "%o", &mode)
		require.NoError(t, err)
		if words[0] == "d" {
			require.NoError(t, os.MkdirAll(p, 0o755))
		} else {
			require.NoError(t, os.WriteFile(p, []byte("x"), 0o644))
		}
		require.NoError(t, os.Chmod(p, mode))
	}
	return root
}

func TestSecrets(t *testing.T) {
	for name, tc := range map[string]struct {
		tree []string
		want []string // a directory ends in a slash
	}{
		"public":              {[]string{"f hosts 644", "d apt 755", "f apt/sources 644"}, nil},
		"private file":        {[]string{"f x.env 600", "f y.env 640"}, []string{"x.env", "y.env"}},
		"private directory":   {[]string{"d keys 750", "f keys/inner 600"}, []string{"keys/"}},
		"traversable only":    {[]string{"d keys 711"}, []string{"keys/"}},
		"deep":                {[]string{"f a/b/c/key 600"}, []string{"a/b/c/key"}},
		"secret by name":      {[]string{"f shadow 644", "f shadow- 644", "f gshadow 644", "f sudoers 644", "d sudoers.d 755", "f security/opasswd 644"}, []string{"gshadow", "security/opasswd", "shadow", "shadow-", "sudoers", "sudoers.d/"}},
		"ssh host keys":       {[]string{"f ssh/ssh_host_rsa_key 644", "f ssh/ssh_host_rsa_key.pub 644"}, []string{"ssh/ssh_host_rsa_key"}},
		"private key folder":  {[]string{"d ssl/private 755", "f ssl/certs/ca 644"}, []string{"ssl/private/"}},
		"link to private":     {[]string{"f real 600", "l alias real"}, []string{"real"}},
		"name only elsewhere": {[]string{"f default/shadow 644"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, tc.tree...)
			var got []string
			for _, h := range secrets(root) {
				rel, err := filepath.Rel(root, h.Path)
				require.NoError(t, err)
				if h.Dir {
					rel += "/"
				}
				got = append(got, rel)
			}
			require.ElementsMatch(t, tc.want, got)
		})
	}
}

func TestSecrets_ManyInOneDirectoryHideTheDirectory(t *testing.T) {
	var lines []string
	for i := range manyPrivate + 1 {
		lines = append(lines, fmt.Sprintf("f keys/%d 600", i))
	}
	root := tree(t, lines...)
	require.Equal(t, []Hidden{{Path: filepath.Join(root, "keys"), Dir: true}}, secrets(root))
}

func TestNodeRoot(t *testing.T) {
	for name, tc := range map[string]struct {
		tree []string
		exec string
		want string
	}{
		"installation with headers": {[]string{"f v24/bin/node 755", "d v24/include/node 755"}, "v24/bin/node", "v24"},
		"installation with modules": {[]string{"f v24/bin/node 755", "d v24/lib/node_modules 755"}, "v24/bin/node", "v24"},
		"through a link":            {[]string{"f v24/bin/node 755", "d v24/include/node 755", "l node v24/bin/node"}, "node", "v24"},
		"lone binary in bin":        {[]string{"f tools/bin/node 755"}, "tools/bin/node", "tools/bin/node"},
		"not in bin":                {[]string{"f app/node 755", "d include/node 755"}, "app/node", "app/node"},
		"home directory":            {[]string{"f home/bin/node 755", "d home/lib/node_modules 755"}, "home/bin/node", "home/bin/node"},
		"above a home":              {[]string{"f bin/node 755", "d lib/node_modules 755", "d home 755"}, "bin/node", "bin/node"},
		"missing":                   {nil, "gone/bin/node", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, tc.tree...)
			want := tc.want
			if want != "" {
				want = filepath.Join(root, want)
			}
			require.Equal(t, want, nodeRoot(filepath.Join(root, tc.exec), []string{filepath.Join(root, "home")}))
		})
	}
	require.Empty(t, nodeRoot("", nil))
}

func TestSurveyHidden(t *testing.T) {
	root := tree(t, "f opt/app/.env 600", "d opt/data 755", "l opt/link data", "f srv/x 644", "d node/bin 755")
	at := func(p string) string { return filepath.Join(root, p) }
	host := Host{Trees: []Tree{{Path: at("opt")}}, Node: at("node")}
	for name, tc := range map[string]struct {
		path string
		want Hidden
	}{
		"file":              {"opt/app/.env", Hidden{Path: at("opt/app/.env")}},
		"directory":         {"opt/data", Hidden{Path: at("opt/data"), Dir: true}},
		"dots":              {"opt/app/../data/", Hidden{Path: at("opt/data"), Dir: true}},
		"link to its end":   {"opt/link", Hidden{Path: at("opt/data"), Dir: true}},
		"not in view":       {"srv/x", Hidden{}},
		"missing":           {"opt/none", Hidden{}},
		"below a file":      {"opt/app/.env/x", Hidden{}},
		"above a tree":      {".", Hidden{Path: root, Dir: true}},
		"inside of Node":    {"node/bin", Hidden{Path: at("node/bin"), Dir: true}},
		"the tree itself":   {"opt", Hidden{Path: at("opt"), Dir: true}},
		"the Node location": {"node", Hidden{Path: at("node"), Dir: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, needed, err := surveyHidden(root+"/"+tc.path, host)
			require.NoError(t, err)
			require.Equal(t, tc.want != Hidden{}, needed)
			if needed {
				require.Equal(t, tc.want, got)
			}
		})
	}
}

func TestSurvey_PrivateHidesNoTree(t *testing.T) {
	host, err := Survey(Request{Private: []string{"/usr/share", "/usr", "/", "/srv", "/nowhere"}})
	require.NoError(t, err)
	require.Equal(t, []Hidden{{Path: "/usr/share", Dir: true}}, host.Hidden)
}

func TestFinalTarget(t *testing.T) {
	root := tree(t, "f real 644", "l good real", "l dangling ../run/stub.conf", "d dir 755", "l todir dir")
	for name, tc := range map[string]struct {
		want   string
		exists bool
	}{
		"real":     {filepath.Join(root, "real"), true},
		"good":     {filepath.Join(root, "real"), true},
		"dangling": {filepath.Join(filepath.Dir(root), "run/stub.conf"), false},
		"dir":      {"", false},
		"todir":    {"", false},
		"absent":   {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, exists := finalTarget(filepath.Join(root, name))
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.exists, exists)
		})
	}
}

func TestResolvConf_KeepsWhatAResolverReads(t *testing.T) {
	got := resolvConf([]byte("# made by host-7\nnameserver  192.0.2.1\n\nsearch corp.example\noptions\n; x\noptions edns0 trust-ad\n"))
	require.Equal(t, "nameserver 192.0.2.1\nsearch corp.example\noptions edns0 trust-ad\n", string(got))
}

func TestProfile_SaysTheSameWithoutStartingAProgram(t *testing.T) {
	const rest = " -eq 0 ]; then\n  echo root\nelse\n  echo user\nfi\n"
	want := map[bool]string{true: "root\n", false: "user\n"}[os.Geteuid() == 0]
	for name, host := range map[string]string{
		"now": "# a profile\nif [ \"$(id -u)\"" + rest, "older": "# a profile\nif [ \"`id -u`\"" + rest,
	} {
		t.Run(name, func(t *testing.T) {
			quick := string(profile([]byte(host)))
			require.Equal(t, want, output(t, "bash", "unset PATH; "+quick), "bash finds no program")
			require.Equal(t, want, output(t, "sh", "unset EUID; "+quick))
			require.Nil(t, profile([]byte(host+strings.Repeat("#", maxEtcFile))), "it may have been cut off")
		})
	}
	require.Nil(t, profile([]byte("export PATH=/bin\n")), "it stays the host's own")
	require.Nil(t, profile(nil))
}

func output(t *testing.T, shell, script string) string {
	t.Helper()
	out, err := exec.Command(shell, "-c", script).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestPasswd_NamesEveryIdOnce(t *testing.T) {
	for name, id := range map[string]Identity{
		"root": {}, "user": {UID: 1000, GID: 1000}, "user in group root": {UID: 1000}, "nobody": {UID: nobody, GID: nobody},
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{passwd(id, Workspace), group(id)} {
				seen := map[string]bool{}
				for line := range strings.Lines(file) {
					key := strings.Split(strings.TrimSpace(line), ":")[2]
					require.False(t, seen[key], "id %s twice in %s", key, file)
					seen[key] = true
				}
			}
			require.Contains(t, passwd(id, Workspace), fmt.Sprintf(":%d:%d:", id.UID, id.GID))
			require.Contains(t, group(id), fmt.Sprintf(":%d:", id.GID))
		})
	}
}

func TestSurvey_ThisHost(t *testing.T) {
	host, err := Survey(Request{Path: "/usr/local/bin:/usr/bin:/bin"})
	require.NoError(t, err)
	require.Equal(t, Tree{Path: "/usr"}, host.Trees[0])
	require.FileExists(t, host.Shell)
	require.Contains(t, host.Etc, "passwd")
	require.Contains(t, host.Secrets, Hidden{Path: "/etc/shadow"})
	_, err = Survey(Request{Hide: []string{"relative"}})
	require.ErrorContains(t, err, "hidePaths[0]")
	_, err = Survey(Request{Hide: []string{"/usr", "/../"}})
	require.ErrorContains(t, err, "hidePaths[1]")
}

func BenchmarkSurvey(b *testing.B) {
	for b.Loop() {
		_, _ = Survey(Request{Path: "/usr/bin"})
	}
}
