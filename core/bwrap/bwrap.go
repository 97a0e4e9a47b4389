// Package bwrap says what a sandbox shows and turns it into bwrap's arguments.
//
// [Survey] gathers the host's facts as values, [Plan] turns them into arguments
// and is pure: the same facts give the same arguments. bwrap starts nothing;
// package supervise does, with the arguments in a memfd, since a command line
// can be read by every user of the host.
package bwrap

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

// Hostname is the name of every sandbox's host.
const Hostname = "sandbox"

// Workspace is where the session's directory is mounted.
const Workspace = "/workspace"

const (
	// MaxHidden is how many host paths a caller can hide. bwrap takes 9,000
	// arguments; a hidden file takes three and a hidden directory four.
	MaxHidden = 2500
	// maxArguments is MAX_ARGS of bubblewrap.c; more are refused there.
	maxArguments = 9000
	// defaultTmpBytes bounds /tmp and /dev/shm each. Their memory is the host's:
	// without a size the kernel gives half of it.
	defaultTmpBytes = 1 << 30
)

// Capabilities of init, and of nobody else in the sandbox: it marks commands
// with namespaces (SYS_ADMIN), finds and ends them when they are undumpable
// (SYS_PTRACE), takes all capabilities from them (SETPCAP), and brings up
// their loopback (NET_ADMIN).
var initCapabilities = []string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SETPCAP", "CAP_NET_ADMIN"}

// Spec is a sandbox to be planned.
type Spec struct {
	// Host holds the facts that [Survey] gathered.
	Host Host
	// Identity is whom commands run as.
	Identity Identity
	// Workspace is the session's directory. The zero value makes an empty,
	// read-only /workspace, for a sandbox that only proves that it can be built.
	Workspace Dir
	// Home is the directory of a home beside the workspace, and HomePath where it is
	// seen. The zero values mean that the workspace is the home.
	Home     Dir
	HomePath string
	// TmpBytes bounds /tmp, and /dev/shm again. Zero means 1 GiB.
	TmpBytes int64
	// FirstFD is the descriptor number of the first of Arguments.Data; the
	// others follow it.
	FirstFD int
}

// home is the path of the commands' home.
func (s Spec) home() string {
	if s.HomePath == "" {
		return Workspace
	}
	return s.HomePath
}

// Identity is whom commands run as, on the host and inside: the ids are mapped
// to themselves.
type Identity struct {
	UID, GID int
}

// Root reports whether the sandbox's user owns the host's root-owned files.
func (id Identity) Root() bool { return id.UID == 0 }

// User is the name that /etc/passwd has for the user id.
func (id Identity) User() string {
	if id.Root() {
		return "root"
	}
	return "sandbox"
}

// Dir names a directory of the host: by the number of a descriptor that bwrap
// inherits, where bwrap can take one, and by path.
type Dir struct {
	// FD is zero when there is no descriptor.
	FD int
	// Path is empty when there is only a descriptor.
	Path string
}

// Arguments are what bwrap is told.
type Arguments struct {
	// Argv goes to --args, NUL-separated. It has no program name.
	Argv []string
	// Data are the contents of the files made inside; Data[i] is read from
	// descriptor FirstFD+i.
	Data [][]byte
}

// Encode returns Argv in the form that --args reads.
func (a Arguments) Encode() []byte {
	var out []byte
	for _, arg := range a.Argv {
		out = append(append(out, arg...), 0)
	}
	return out
}

// builder collects arguments.
type builder struct {
	Arguments
	firstFD int
	size    bool
}

func (b *builder) add(args ...string) { b.Argv = append(b.Argv, args...) }

// data covers or makes the file dest with content.
func (b *builder) data(dest string, content []byte) {
	b.add("--ro-bind-data", strconv.Itoa(b.firstFD+len(b.Data)), dest)
	b.Data = append(b.Data, content)
}

func (b *builder) tmpfs(dest, perms string, bytes int64) {
	b.add("--perms", perms)
	if b.size {
		b.add("--size", strconv.FormatInt(bytes, 10))
	}
	b.add("--tmpfs", dest)
}

// hide covers an existing path with nothing.
func (b *builder) hide(h Hidden) {
	if h.Dir {
		b.add("--tmpfs", h.Path, "--remount-ro", h.Path)
		return
	}
	b.data(h.Path, nil)
}

// Plan returns the arguments that build the sandbox. It is pure.
//
// Errors: InvalidArgument when more is to be hidden than bwrap can take, and
// Unavailable when this bwrap lacks what a sandbox cannot do without.
func Plan(spec Spec, features feature.Bwrap) (Arguments, error) {
	if err := usable(features); err != nil {
		return Arguments{}, err
	}
	b := &builder{firstFD: spec.FirstFD, size: features.Size == feature.Yes}
	b.namespaces(features)
	trees := shown(spec.Host)
	b.trees(trees)
	b.mounts(spec)
	if spec.home() != Workspace {
		b.bind(spec.Home, spec.home(), features)
	}
	if b.node(spec.Host, trees) {
		trees = append(trees, Tree{Path: spec.Host.Node})
	}
	covered := b.etc(spec)
	secrets := slices.DeleteFunc(slices.Clone(spec.Host.Secrets), func(h Hidden) bool {
		return slices.Contains(covered, h.Path) // by a file of ours, which is no secret
	})
	for _, h := range minimal(slices.Concat(secrets, spec.Host.Hidden)) {
		if inTree(h.Path, trees) {
			b.hide(h)
		}
	}
	b.workspace(spec.Workspace, features)
	b.seal(spec.Identity)
	if len(b.Argv) > maxArguments {
		return Arguments{}, errdefs.Invalid("hidePaths", fmt.Sprintf(
			"%d paths are to be hidden, which takes %d of bwrap's %d arguments", len(spec.Host.Hidden), len(b.Argv), maxArguments))
	}
	return b.Arguments, nil
}

func usable(f feature.Bwrap) error {
	var missing []string
	for option, a := range map[string]feature.Answer{"--args": f.Args, "--as-pid-1": f.AsPID1, "--perms": f.Perms} {
		if a == feature.No {
			missing = append(missing, option)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &errdefs.Error{
		Code: errdefs.Unavailable, Op: "start",
		Msg:    "this bwrap is too old: it lacks " + strings.Join(missing, " and "),
		Remedy: "install bubblewrap 0.5 or newer",
	}
}

// namespaces also says who init is. Not the network: init makes the empty one,
// and commands share the host's or that one, as their policy says.
func (b *builder) namespaces(features feature.Bwrap) {
	b.add("--unshare-user")
	if features.DisableUserns == feature.Yes {
		// A nested user namespace would let a command shed its mark. Elsewhere
		// init's filter refuses it.
		b.add("--disable-userns")
	}
	b.add("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--as-pid-1", "--die-with-parent", "--hostname", Hostname, "--cap-drop", "ALL")
	for _, capability := range initCapabilities {
		b.add("--cap-add", capability)
	}
}

// shown are the trees that no hidden path lies above.
func shown(host Host) []Tree {
	var out []Tree
	for _, t := range host.Trees {
		if !slices.ContainsFunc(host.Hidden, func(h Hidden) bool { return within(t.Path, h.Path) }) {
			out = append(out, t)
		}
	}
	return out
}

func (b *builder) trees(trees []Tree) {
	for _, t := range trees {
		if t.Link != "" {
			b.add("--symlink", t.Link, t.Path)
		} else {
			b.add("--ro-bind", t.Path, t.Path)
		}
	}
}

// mounts are the parts of the sandbox that come from nowhere on the host.
func (b *builder) mounts(spec Spec) {
	b.add("--proc", "/proc", "--dev", "/dev")
	bytes := spec.TmpBytes
	if bytes == 0 {
		bytes = defaultTmpBytes
	}
	b.tmpfs("/tmp", "1777", bytes)
	b.tmpfs("/dev/shm", "1777", bytes)
	b.add("--dir", "/home", "--dir", "/run", "--dir", "/var",
		// Relative: while bwrap builds, an absolute link would lead out of the new root.
		"--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run")
}

// node comes after the mounts: the installation may lie in the host's /tmp. It
// reports whether it added a tree.
func (b *builder) node(host Host, trees []Tree) bool {
	n := host.Node
	if n == "" || inTree(n, trees) || !mountable(n) {
		return false
	}
	if slices.ContainsFunc(host.Hidden, func(h Hidden) bool { return within(n, h.Path) }) {
		return false
	}
	b.add("--ro-bind", n, n)
	return true
}

// etc covers the host's files about hosts and people with our own, and returns
// their paths. A read-only /etc cannot grow a mount point, so only what the host
// has can be covered.
func (b *builder) etc(spec Spec) (covered []string) {
	for _, name := range coveredNames {
		dest, ok := spec.Host.Etc[name]
		// bwrap cannot mount over a file that it has made itself.
		if !ok || slices.ContainsFunc(spec.Host.Hidden, func(h Hidden) bool { return h.Path == dest }) {
			continue
		}
		b.add("--perms", "0444")
		b.data(dest, etcContent(name, spec))
		covered = append(covered, dest)
	}
	return covered
}

func (b *builder) workspace(dir Dir, features feature.Bwrap) {
	b.bind(dir, Workspace, features)
	b.add("--chdir", Workspace)
}

// bind shows a directory of the host at dest, or makes an empty one there.
func (b *builder) bind(dir Dir, dest string, features feature.Bwrap) {
	switch {
	case dir.FD != 0 && features.BindFD == feature.Yes:
		b.add("--bind-fd", strconv.Itoa(dir.FD), dest)
	case dir.Path != "":
		b.add("--bind", dir.Path, dest)
	default:
		b.add("--dir", dest)
	}
}

// seal makes read-only what commands have no business changing. What lies on
// mounts of its own (/tmp, /dev/shm, /dev/pts, the workspace) stays as it is.
// The device nodes are the host's own; bwrap can only remount them so that they
// could not be opened any more, so init makes those read-only.
func (b *builder) seal(id Identity) {
	if id.Root() {
		// kernel.core_pattern and others take writes from the host's uid 0
		// without any capability, and bwrap covers only part of them.
		b.add("--remount-ro", "/proc")
	}
	b.add("--remount-ro", "/dev", "--remount-ro", "/")
}

// within reports whether p is dir or lies below it. Both are clean.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// inTree reports whether p is shown by one of the trees.
func inTree(p string, trees []Tree) bool {
	return slices.ContainsFunc(trees, func(t Tree) bool { return t.Link == "" && within(p, t.Path) })
}

// mountable reports whether a host path can stand at the same path inside
// without covering what the sandbox puts there.
func mountable(p string) bool {
	for _, own := range []string{"/proc", "/dev", Workspace} {
		if within(p, own) || within(own, p) {
			return false
		}
	}
	return !within("/tmp", p) && p != "/"
}

// minimal drops what lies in a directory that is hidden as a whole, sorted so
// that the same facts give the same arguments.
func minimal(hidden []Hidden) []Hidden {
	hidden = slices.Clone(hidden)
	slices.SortFunc(hidden, func(a, b Hidden) int {
		// Parents first, also before "/a-b" which sorts between "/a" and "/a/b".
		return strings.Compare(strings.ReplaceAll(a.Path, "/", "\x00"), strings.ReplaceAll(b.Path, "/", "\x00"))
	})
	var out []Hidden
	for _, h := range hidden {
		h.Path = path.Clean(h.Path)
		if n := len(out); n > 0 && (out[n-1].Path == h.Path || out[n-1].Dir && within(h.Path, out[n-1].Path)) {
			continue
		}
		out = append(out, h)
	}
	return out
}
