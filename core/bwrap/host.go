package bwrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

// Host are the facts of the host that a sandbox depends on.
type Host struct {
	// Trees are the system trees that exist, in the order of their mounts.
	Trees []Tree
	// Etc tells where the file that /etc/NAME leads to is to be covered or
	// made, by NAME. What the host does not have is not in it.
	Etc map[string]string
	// ResolvConf and Profile are the contents for resolv.conf and profile.
	ResolvConf, Profile []byte
	// Secrets are what in /etc is not for everybody.
	Secrets []Hidden
	// Hidden are what the caller wants hidden, as far as a tree would show it,
	// and every path above a tree.
	Hidden []Hidden
	// Node is the Node installation, or its executable alone, outside of the
	// trees. Empty means there is nothing to add.
	Node string
	// Shell is the path of bash.
	Shell string
}

// Tree is a part of the host's file system shown read-only at its own path.
type Tree struct {
	Path string
	// Link is the target when Path is a symbolic link, which it then is inside too.
	Link string
}

// Hidden is a host path that the sandbox must not show.
type Hidden struct {
	Path string
	Dir  bool
}

// Request is what [Survey] is asked for.
type Request struct {
	// Hide are absolute paths to hide, whatever else is then hidden with them.
	Hide []string
	// Private are absolute paths that nobody asked to hide and that are nothing
	// to commands: the application's own directory, the store's. One that has a
	// system tree below it stays.
	Private []string
	// NodePath is the running Node executable, absolute. Empty shows none.
	NodePath string
	// Path is the caller's PATH, in which bash is looked up.
	Path string
	// Homes are home directories beyond those of /etc/passwd; they are never
	// shown as a Node installation.
	Homes []string
}

const (
	// maxEtcFile bounds what is read of a file of the host.
	maxEtcFile = 1 << 20
	// manyPrivate is how many private files of one directory are hidden one by
	// one; with more the directory is hidden, or it could use up bwrap's mounts.
	manyPrivate = 64
)

// Survey looks at the host. It is done anew for every sandbox: what was added
// to /etc since, say, must not be shown by an old list.
func Survey(req Request) (Host, error) {
	if n := len(req.Hide); n > MaxHidden {
		return Host{}, errdefs.Invalid("hidePaths", fmt.Sprintf("%d paths given, at most %d can be hidden", n, MaxHidden))
	}
	host := Host{Trees: surveyTrees()}
	host.surveyEtc()
	host.Shell = shell(req.Path, host.Trees)
	host.Node = nodeRoot(req.NodePath, append(homes(), req.Homes...))
	for i, p := range req.Hide {
		if !filepath.IsAbs(p) || filepath.Clean(p) == "/" {
			return Host{}, errdefs.Invalid(fmt.Sprintf("hidePaths[%d]", i), fmt.Sprintf("%q is not an absolute path below the root", p))
		}
		hidden, needed, err := surveyHidden(p, host)
		if err != nil {
			return Host{}, err
		}
		if needed {
			host.Hidden = append(host.Hidden, hidden)
		}
	}
	for _, p := range req.Private {
		hidden, _, err := surveyHidden(p, host)
		if err != nil {
			return Host{}, err
		}
		if inTree(hidden.Path, host.Trees) && !aboveTree(hidden.Path, host.Trees) {
			host.Hidden = append(host.Hidden, hidden)
		}
	}
	return host, nil
}

func surveyTrees() []Tree {
	paths := []string{"/usr", "/bin", "/sbin"}
	libs, _ := filepath.Glob("/lib*") // the pattern is valid
	paths = append(paths, libs...)
	paths = append(paths, "/etc", "/opt", "/nix", "/run/current-system")
	var out []Tree
	for _, p := range paths {
		info, err := os.Lstat(p)
		if err != nil {
			continue
		}
		switch {
		case info.IsDir():
			out = append(out, Tree{Path: p})
		case info.Mode()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(p); err == nil {
				out = append(out, Tree{Path: p, Link: target})
			}
		}
	}
	return out
}

// surveyEtc finds what is not for everybody, and where our own files go. A name
// that is a link leads to where it points: into a shown tree, where the file must
// exist, or into the sandbox's own root (systemd-resolved's /run/systemd/resolve,
// WSL's /mnt/wsl), where it is made.
func (h *Host) surveyEtc() {
	h.Secrets = secrets("/etc")
	h.Etc = map[string]string{}
	for _, name := range coveredNames {
		source := filepath.Join("/etc", name)
		dest, exists := finalTarget(source)
		if dest == "" || (!exists && inTree(dest, h.Trees)) {
			continue
		}
		if !inTree(dest, h.Trees) && !mountable(dest) {
			continue
		}
		switch name {
		case "resolv.conf":
			h.ResolvConf = resolvConf(readBounded(dest))
		case "profile":
			secret := slices.ContainsFunc(h.Secrets, func(s Hidden) bool { return within(dest, s.Path) })
			if h.Profile = profile(readBounded(dest)); h.Profile == nil || secret {
				continue // it stays as it is: to be seen, or hidden
			}
		}
		h.Etc[name] = dest
	}
}

// finalTarget follows links to their end, whether or not there is a regular
// file. It returns "" for what is neither a regular file nor absent behind a link.
func finalTarget(p string) (target string, exists bool) {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		info, err := os.Stat(real)
		if err != nil || !info.Mode().IsRegular() {
			return "", false
		}
		return real, true
	}
	link, err := os.Readlink(p)
	if err != nil {
		return "", false
	}
	if !filepath.IsAbs(link) {
		link = filepath.Join(filepath.Dir(p), link)
	}
	return filepath.Clean(link), false
}

func readBounded(p string) []byte {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	buf := make([]byte, min(info.Size(), maxEtcFile))
	n, _ := f.Read(buf)
	return buf[:max(n, 0)]
}

// resolvConf keeps what a resolver acts on, without the host's comments.
func resolvConf(host []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(host)) {
		if words := strings.Fields(line); len(words) > 1 && slices.Contains([]string{"nameserver", "search", "domain", "options", "sortlist"}, words[0]) {
			out.WriteString(strings.Join(words, " ") + "\n")
		}
	}
	return []byte(out.String())
}

// secretNames are hidden whatever their mode says, relative to /etc.
var secretNames = []string{
	"shadow*", "gshadow*", "sudoers*", "ssl/private", "ssh/ssh_host_*key", "security/opasswd",
}

// secrets finds what below dir is not readable by everybody, and what is secret
// by its name. Who reads on the host is no measure: the sandbox's user may own
// the file, or be the host's root.
func secrets(dir string) []Hidden {
	var out []Hidden
	walkSecrets(dir, "", &out)
	return out
}

func walkSecrets(dir, rel string, out *[]Hidden) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // what we cannot list was hidden as a whole, or is gone
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return
	}
	// By descriptor and name: every sandbox pays for this walk, and a path
	// from the root costs three times as much for each of a thousand files.
	fd := int(f.Fd())
	var private []Hidden
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			continue // it leads to something that is judged by itself
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue
		}
		name := path.Join(rel, e.Name())
		switch isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; {
		case isDir && (st.Mode&0o005 != 0o005 || isSecretName(name)):
			*out = append(*out, Hidden{Path: path.Join(dir, e.Name()), Dir: true})
		case isDir:
			walkSecrets(path.Join(dir, e.Name()), name, out)
		case st.Mode&0o004 == 0 || isSecretName(name):
			private = append(private, Hidden{Path: path.Join(dir, e.Name())})
		}
	}
	if len(private) > manyPrivate && rel != "" {
		private = []Hidden{{Path: dir, Dir: true}}
	}
	*out = append(*out, private...)
}

func isSecretName(rel string) bool {
	if strings.Count(rel, "/") > 1 {
		return false // no pattern is deeper
	}
	return slices.ContainsFunc(secretNames, func(pattern string) bool {
		ok, _ := filepath.Match(pattern, rel) // the patterns are valid
		return ok
	})
}

// surveyHidden tells what has to be covered so that p is not shown. A path that
// no tree shows needs nothing; one above a tree takes the tree away.
func surveyHidden(p string, host Host) (Hidden, bool, error) {
	p = filepath.Clean(p)
	real, err := filepath.EvalSymlinks(p)
	for errors.Is(err, unix.EACCES) && p != "/" {
		// We cannot see it now, but the sandbox must not see it later either,
		// so the directory that bars the way is hidden.
		p = filepath.Dir(p)
		real, err = filepath.EvalSymlinks(p)
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(real)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return Hidden{}, false, nil
	case err != nil:
		return Hidden{}, false, errdefs.Invalid("hidePaths", fmt.Sprintf("%q cannot be looked at: %v", p, err))
	}
	needed := inTree(real, host.Trees) || aboveTree(real, host.Trees) ||
		host.Node != "" && (within(host.Node, real) || within(real, host.Node))
	return Hidden{Path: real, Dir: info.IsDir()}, needed, nil
}

// aboveTree reports whether to hide p would hide one of the trees.
func aboveTree(p string, trees []Tree) bool {
	return slices.ContainsFunc(trees, func(t Tree) bool { return within(t.Path, p) })
}

// shell finds the bash that commands run in: the first in the caller's PATH
// that the sandbox shows, else where it usually is.
func shell(searchPath string, trees []Tree) string {
	for _, dir := range filepath.SplitList(searchPath) {
		candidate, err := feature.Lookup(filepath.Join(dir, "bash"), "")
		if err != nil || !filepath.IsAbs(dir) {
			continue
		}
		real, err := filepath.EvalSymlinks(candidate)
		named := slices.ContainsFunc(trees, func(t Tree) bool { return within(candidate, t.Path) })
		if err == nil && named && inTree(real, trees) {
			return candidate
		}
	}
	return "/bin/bash"
}

// nodeRoot is what has to be shown so that the executable runs inside: its
// installation when it is one, else the file alone. A prefix is no installation
// merely because of bin/node: that may be a person's home directory.
func nodeRoot(executable string, homes []string) string {
	if executable == "" {
		return ""
	}
	real, err := filepath.EvalSymlinks(executable)
	if err != nil {
		return ""
	}
	prefix := filepath.Dir(filepath.Dir(real))
	if filepath.Base(filepath.Dir(real)) != "bin" || prefix == "/" {
		return real
	}
	for _, home := range homes {
		if within(home, prefix) {
			return real
		}
	}
	if !isDir(filepath.Join(prefix, "include", "node")) && !isDir(filepath.Join(prefix, "lib", "node_modules")) {
		return real
	}
	return prefix
}

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

// homes are the home directories of the people that the host knows, and the usual ones.
func homes() []string {
	out := []string{"/root"}
	list, _ := filepath.Glob("/home/*") // the pattern is valid
	out = append(out, list...)
	for line := range strings.Lines(string(readBounded("/etc/passwd"))) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) == 7 && !slices.Contains([]string{"", "/"}, fields[5]) {
			out = append(out, filepath.Clean(fields[5]))
		}
	}
	return out
}
