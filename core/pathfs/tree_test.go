package pathfs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func asErrno(err error, errno *syscall.Errno) bool { return errors.As(err, errno) }

// both runs a test with openat2 and with the walk by components.
func both(t *testing.T, test func(t *testing.T, newWorld func(t *testing.T, entries ...string) *world)) {
	for name, walk := range map[string]bool{"openat2": false, "walk": true} {
		t.Run(name, func(t *testing.T) {
			test(t, func(t *testing.T, entries ...string) *world {
				w := newWorld(t, entries...)
				w.noOpenat2 = walk
				return w
			})
		})
	}
}

var deepName = strings.Repeat("n", 300)

var readCases = map[string]struct {
	path    string
	content string
	code    errdefs.Code
	outside bool // the opener is asked
}{
	"plain":                       {path: "f", content: "f"},
	"absolute":                    {path: "/workspace/f", content: "f"},
	"doubled slashes":             {path: "//workspace///d//x", content: "x"},
	"dots":                        {path: "/./workspace/./d/./x", content: "x"},
	"up and down":                 {path: "d/../f", content: "f"},
	"up behind a link":            {path: "to-d-e/../x", content: "x"}, // d/x, not ./x
	"link":                        {path: "in", content: "f"},
	"link to a link":              {path: "in2", content: "f"},
	"link through a directory":    {path: "to-d-e/../../f", content: "f"},
	"absolute link back":          {path: "abs", content: "x", outside: true},
	"absolute path elsewhere":     {path: "/etc/hostname", content: "sandbox\n", outside: true},
	"up and out":                  {path: "../etc/hostname", content: "sandbox\n", outside: true},
	"up and out, absolute":        {path: "/workspace/../etc/hostname", content: "sandbox\n", outside: true},
	"up, out and in":              {path: "../workspace/f", content: "f", outside: true},
	"link out":                    {path: "out", content: "sandbox\n", outside: true},
	"relative link out":           {path: "rel-out", content: "sandbox\n", outside: true},
	"prefix of the mount":         {path: "/workspaces", code: "ENOENT", outside: true},
	"mount twice":                 {path: "/workspace/workspace/f", code: "ENOENT"},
	"newline and dash":            {path: "-a\nb", content: "dash"},
	"not UTF-8":                   {path: "bad\xff", content: "bytes"},
	"leading space":               {path: " f", code: "ENOENT"},
	"missing":                     {path: "nope", code: "ENOENT"},
	"missing directory":           {path: "nope/f", code: "ENOENT"},
	"below a file":                {path: "f/x", code: "ENOTDIR"},
	"file with slash":             {path: "f/", code: "ENOTDIR"},
	"file with dot":               {path: "f/.", code: "ENOTDIR"},
	"up from a file":              {path: "f/../f", code: "ENOTDIR"},
	"dangling link":               {path: "dangling", code: "ENOENT"},
	"dangling link out":           {path: "dangling-out", code: "ENOENT", outside: true},
	"loop":                        {path: "loop", code: "ELOOP"},
	"loop on the way":             {path: "loop/x", code: "ELOOP"},
	"directory":                   {path: "d", code: "EISDIR"},
	"directory with slash":        {path: "d/", code: "EISDIR"},
	"link to a directory":         {path: "to-d-e", code: "EISDIR"},
	"the root":                    {path: "/workspace", code: "EISDIR"},
	"the root, dot":               {path: ".", code: "EISDIR"},
	"above the root":              {path: "..", code: "EISDIR", outside: true},
	"slash":                       {path: "/", code: "EISDIR", outside: true},
	"long name":                   {path: deepName, code: "ENAMETOOLONG"},
	"long name on the way":        {path: deepName + "/x", code: "ENAMETOOLONG"},
	"long path":                   {path: strings.Repeat("d/../", 1000) + "f", code: "ENAMETOOLONG"},
	"fifo":                        {path: "fifo", code: "EINVAL"},
	"link to a fifo":              {path: "to-fifo", code: "EINVAL"},
	"below a fifo":                {path: "fifo/x", code: "ENOTDIR"},
	"socket":                      {path: "socket", code: "EINVAL"},
	"device behind a link":        {path: "zero", code: "ENOENT", outside: true},
	"empty":                       {path: "", code: errdefs.InvalidArgument},
	"NUL":                         {path: "f\x00", code: errdefs.InvalidArgument},
	"forty links":                 {path: "chain40", content: "f"},
	"forty-one links":             {path: "chain41", code: "ELOOP"},
	"name that only looks like":   {path: "..f", content: "dots"},
	"three dots":                  {path: ".../x", content: "three"},
	"slash behind a link to file": {path: "in/", code: "ENOTDIR"},
}

var readTree = []string{
	"file /workspace/f f", "file /workspace/d/x x", "dir /workspace/d/e", "file /workspace/x wrong",
	"link /workspace/in f", "link /workspace/in2 ./in", "link /workspace/to-d-e d/e",
	"link /workspace/abs /workspace/d/x", "link /workspace/out /etc/hostname",
	"link /workspace/rel-out ../etc/hostname",
	"file /workspace/-a\nb dash", "file /workspace/bad\xff bytes",
	"link /workspace/dangling nowhere", "link /workspace/dangling-out /nowhere",
	"link /workspace/loop loop", "fifo /workspace/fifo", "link /workspace/to-fifo fifo",
	"socket /workspace/socket", "link /workspace/zero /dev/zero",
	"file /workspace/..f dots", "file /workspace/.../x three",
	"link /workspace/chain1 f",
}

func TestTree_Open(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, readTree...)
		for i := 2; i <= 41; i++ {
			w.add(t, "link /workspace/chain"+strconv.Itoa(i)+" chain"+strconv.Itoa(i-1))
		}
		for name, tc := range readCases {
			t.Run(name, func(t *testing.T) {
				w.opener.calls = 0
				f, err := w.Open(t.Context(), tc.path)
				require.Equal(t, tc.outside, w.opener.calls > 0, "asked the opener")
				if tc.code != "" {
					requireCode(t, w, err, tc.code)
					require.Equal(t, tc.code == "ENOENT" || tc.code == "ENOTDIR", IsMissing(err))
					return
				}
				require.NoError(t, err)
				data, err := io.ReadAll(f)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				require.Equal(t, tc.content, string(data))
			})
		}
	})
}

// requireCode wants the code, and no host path in the message.
func requireCode(t *testing.T, w *world, err error, code errdefs.Code) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, errdefs.CodeOf(err), "%v", err)
	require.NotContains(t, string(errdefs.Marshal(err)), w.dir)
}

func TestTree_Open_PermissionsAreErrors(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root reads everything: the case needs an ordinary user")
		return
	}
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "file /workspace/secret s", "file /workspace/closed/f f")
		require.NoError(t, os.Chmod(w.host("/workspace/secret"), 0))
		require.NoError(t, os.Chmod(w.host("/workspace/closed"), 0))
		for _, path := range []string{"secret", "closed", "closed/f", "closed/../secret"} {
			_, err := w.Open(t.Context(), path)
			requireCode(t, w, err, "EACCES")
			require.False(t, IsMissing(err))
		}
	})
}

func TestTree_Open_LeasedFileDoesNotBlock(t *testing.T) {
	w := newWorld(t, "file /workspace/f f")
	f, err := os.OpenFile(w.host("/workspace/f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	const fSetLease = 1024
	if _, err := unix.FcntlInt(f.Fd(), fSetLease, unix.F_WRLCK); err != nil {
		t.Skipf("needs file leases: %v", err)
	}
	_, err = w.Open(t.Context(), "f")
	requireCode(t, w, err, errdefs.Escape)
}

func TestTree_WithoutOpener(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "link /workspace/out /etc/hostname", "file /workspace/f f")
		w.Opener = nil
		for _, path := range []string{"out", "../x", "/tmp/x"} {
			_, err := w.Open(t.Context(), path)
			requireCode(t, w, err, errdefs.Unsupported)
			requireCode(t, w, w.WriteFile(t.Context(), path, nil), errdefs.Unsupported)
		}
		requireCode(t, w, w.Remove(t.Context(), "/tmp/x", true, true), errdefs.Unsupported)
		require.NoError(t, w.Remove(t.Context(), "out", false, false), "a link is removed without looking where it leads")
	})
}

func TestTree_ChecksEveryOperation(t *testing.T) {
	w := newWorld(t, "file /workspace/f old")
	gone := errdefs.New(errdefs.SessionGone, "", "the session is gone")
	r, err := w.Create(t.Context(), "f")
	require.NoError(t, err)
	late := *w.Tree
	late.Check = func() error { return gone }
	_, err = late.Open(t.Context(), "f")
	requireCode(t, w, err, errdefs.SessionGone)
	requireCode(t, w, late.WriteFile(t.Context(), "f", nil), errdefs.SessionGone)
	requireCode(t, w, late.Remove(t.Context(), "f", false, true), errdefs.SessionGone)
	r.check = late.Check
	requireCode(t, w, r.Commit(), errdefs.SessionGone)
	require.Equal(t, "old", w.content(t, "/workspace/f"))
	w.requireClean(t)
}

func TestTree_Aborted(t *testing.T) {
	w := newWorld(t, "file /workspace/f old", "file /workspace/d/f f")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the user left")
	cancel(reason)
	_, err := w.Open(ctx, "f")
	requireCode(t, w, err, errdefs.Aborted)
	require.ErrorIs(t, err, reason)
	requireCode(t, w, w.WriteFile(ctx, "f", []byte("new")), errdefs.Aborted)
	requireCode(t, w, w.Remove(ctx, "f", false, true), errdefs.Aborted)
	requireCode(t, w, w.Remove(ctx, "d", true, true), errdefs.Aborted)
	require.Equal(t, "old", w.content(t, "/workspace/f"))
	require.Equal(t, "f", w.content(t, "/workspace/d/f"))
}

func TestTree_RootClosed(t *testing.T) {
	w := newWorld(t, "file /workspace/f f")
	require.NoError(t, w.Root.Close())
	_, err := w.Open(t.Context(), "f")
	requireCode(t, w, err, errdefs.Closed)
	requireCode(t, w, w.WriteFile(t.Context(), "g", nil), errdefs.Closed)
	requireCode(t, w, w.Remove(t.Context(), "f", false, false), errdefs.Closed)
}

// An opener was taken over: what it hands out is looked at all the same.
type lyingOpener struct {
	file string
	name string
}

func (o lyingOpener) Open(context.Context, string) (*os.File, error) {
	return os.OpenFile(o.file, os.O_RDWR|unix.O_NONBLOCK, 0)
}

func (o lyingOpener) Parent(context.Context, string, bool, bool) (*os.File, string, error) {
	f, err := os.Open(o.file)
	return f, o.name, err
}

func TestTree_DoesNotTrustTheOpener(t *testing.T) {
	w := newWorld(t, "fifo /tmp/p", "file /tmp/f f", "dir /tmp/d")
	w.Opener = lyingOpener{file: w.host("/tmp/p")}
	_, err := w.Open(t.Context(), "/x")
	requireCode(t, w, err, "EINVAL")
	for name, tc := range map[string]struct {
		opener lyingOpener
		code   errdefs.Code
	}{
		"a path":      {lyingOpener{w.host("/tmp/d"), "../f"}, errdefs.Internal},
		"dot dot":     {lyingOpener{w.host("/tmp/d"), ".."}, "EBUSY"},
		"nothing":     {lyingOpener{w.host("/tmp/d"), ""}, "EBUSY"},
		"no folder":   {lyingOpener{w.host("/tmp/f"), "x"}, "ENOTDIR"},
		"a NUL":       {lyingOpener{w.host("/tmp/d"), "x\x00"}, errdefs.Internal},
		"a long name": {lyingOpener{w.host("/tmp/d"), deepName}, "ENAMETOOLONG"},
	} {
		t.Run(name, func(t *testing.T) {
			w.Opener = tc.opener
			requireCode(t, w, w.Remove(t.Context(), "/x", true, false), tc.code)
		})
	}
	require.Equal(t, "f", w.content(t, "/tmp/f"))
}

var writeCases = map[string]struct {
	path  string
	code  errdefs.Code
	lands string // where the content is to be found
}{
	"new":                          {path: "new", lands: "/workspace/new"},
	"over":                         {path: "f", lands: "/workspace/f"},
	"with parents":                 {path: "a/b/c/new", lands: "/workspace/a/b/c/new"},
	"with parents and dots":        {path: "a/../b/./c//new", lands: "/workspace/b/c/new"},
	"absolute":                     {path: "/workspace/q/new", lands: "/workspace/q/new"},
	"through a link":               {path: "to-d/new", lands: "/workspace/d/new"},
	"parents behind a link":        {path: "to-d/m/new", lands: "/workspace/d/m/new"},
	"over a link":                  {path: "in", lands: "/workspace/f"},
	"over a link in a directory":   {path: "d/up", lands: "/workspace/f"},
	"dangling inside":              {path: "dangling", lands: "/workspace/inside.txt"},
	"absolute link back":           {path: "abs", lands: "/workspace/d/x"},
	"dangling absolute link back":  {path: "abs-new", lands: "/workspace/d/abs-new"},
	"link out":                     {path: "out", lands: "/tmp/t"},
	"directory link out":           {path: "to-tmp/new", lands: "/tmp/new"},
	"parents behind a link out":    {path: "to-tmp/k/new", lands: "/tmp/k/new"},
	"elsewhere":                    {path: "/tmp/e/new", lands: "/tmp/e/new"},
	"up and out":                   {path: "../tmp/up", lands: "/tmp/up"},
	"around":                       {path: "/tmp/../workspace/r", lands: "/workspace/r"},
	"not UTF-8":                    {path: "bad\xff", lands: "/workspace/bad\xff"},
	"empty":                        {path: "", code: errdefs.InvalidArgument},
	"NUL":                          {path: "a\x00b", code: errdefs.InvalidArgument},
	"directory":                    {path: "d", code: "EISDIR"},
	"trailing slash":               {path: "newdir/", code: "EISDIR"},
	"file with slash":              {path: "f/", code: "EISDIR"},
	"dot":                          {path: ".", code: "EISDIR"},
	"dot dot":                      {path: "d/..", code: "EISDIR"},
	"root":                         {path: "/workspace", code: "EISDIR"},
	"slash":                        {path: "/", code: "EISDIR"},
	"link to a directory":          {path: "to-d", code: "EISDIR"},
	"link to a directory with ..":  {path: "dotdot", code: "EISDIR"},
	"below a file":                 {path: "f/x", code: "ENOTDIR"},
	"parents below a file":         {path: "f/x/y", code: "ENOTDIR"},
	"fifo":                         {path: "fifo", code: "EINVAL"},
	"link to a fifo":               {path: "to-fifo", code: "EINVAL"},
	"socket":                       {path: "socket", code: "EINVAL"},
	"loop":                         {path: "loop", code: "ELOOP"},
	"below a dangling link":        {path: "dangling-dir/x", code: "ENOENT"},
	"link into a missing place":    {path: "to-missing", code: "ENOENT"},
	"long name":                    {path: deepName, code: "ENAMETOOLONG"},
	"long name as a parent":        {path: deepName + "/x", code: "ENAMETOOLONG"},
	"longest name":                 {path: strings.Repeat("m", 255), lands: "/workspace/" + strings.Repeat("m", 255)},
	"leading link then up and out": {path: "to-d/../../tmp/z", lands: "/tmp/z"},
}

func TestTree_WriteFile(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		for name, tc := range writeCases {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, "file /workspace/f old", "file /workspace/d/x old", "link /workspace/to-d d",
					"link /workspace/in f", "link /workspace/d/up ../f", "link /workspace/dangling inside.txt",
					"link /workspace/abs /workspace/d/x", "link /workspace/abs-new /workspace/d/abs-new",
					"link /workspace/out /tmp/t", "link /workspace/to-tmp /tmp", "fifo /workspace/fifo",
					"link /workspace/to-fifo fifo", "socket /workspace/socket", "link /workspace/loop loop",
					"link /workspace/dangling-dir nowhere", "link /workspace/to-missing nowhere/x",
					"link /workspace/dotdot d/..")
				err := w.WriteFile(t.Context(), tc.path, []byte("new"))
				w.requireClean(t)
				if tc.code != "" {
					requireCode(t, w, err, tc.code)
					require.Equal(t, "old", w.content(t, "/workspace/f"))
					return
				}
				require.NoError(t, err)
				require.Equal(t, "new", w.content(t, tc.lands))
				f, err := w.Open(t.Context(), tc.path)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				for _, link := range []string{"in", "dangling", "abs", "out", "to-d"} {
					st, err := os.Lstat(filepath.Join(w.workspace, link))
					require.NoError(t, err)
					require.Equal(t, os.ModeSymlink, st.Mode().Type(), "the link %q was replaced", link)
				}
			})
		}
	})
}

var removeCases = map[string]struct {
	path      string
	recursive bool
	force     bool
	code      errdefs.Code
	gone      []string
}{
	"file":                         {path: "f", gone: []string{"/workspace/f"}},
	"not UTF-8":                    {path: "bad\xff", gone: []string{"/workspace/bad\xff"}},
	"link":                         {path: "in", gone: []string{"/workspace/in"}},
	"link out":                     {path: "out", gone: []string{"/workspace/out"}},
	"dangling link":                {path: "dangling", gone: []string{"/workspace/dangling"}},
	"loop":                         {path: "loop", gone: []string{"/workspace/loop"}},
	"fifo":                         {path: "fifo", gone: []string{"/workspace/fifo"}},
	"link to a directory":          {path: "to-d", recursive: true, gone: []string{"/workspace/to-d"}},
	"directory link out":           {path: "to-tmp", recursive: true, force: true, gone: []string{"/workspace/to-tmp"}},
	"tree":                         {path: "d", recursive: true, gone: []string{"/workspace/d"}},
	"tree with slash":              {path: "d/", recursive: true, gone: []string{"/workspace/d"}},
	"file, recursive":              {path: "f", recursive: true, gone: []string{"/workspace/f"}},
	"elsewhere":                    {path: "/tmp/t", gone: []string{"/tmp/t"}},
	"tree elsewhere":               {path: "../tmp/d", recursive: true, gone: []string{"/tmp/d"}},
	"behind a link out":            {path: "to-tmp/t", gone: []string{"/tmp/t"}},
	"around":                       {path: "/tmp/../workspace/f", gone: []string{"/workspace/f"}},
	"missing, forced":              {path: "nope", force: true},
	"missing below, forced":        {path: "nope/x/y", force: true},
	"below a file, forced":         {path: "f/x", force: true},
	"missing elsewhere, forced":    {path: "/nope/x", force: true},
	"missing":                      {path: "nope", code: "ENOENT"},
	"missing, recursive":           {path: "nope", recursive: true, code: "ENOENT"},
	"below a file":                 {path: "f/x", code: "ENOTDIR"},
	"directory":                    {path: "d", code: "EISDIR"},
	"empty directory":              {path: "empty-dir", code: "EISDIR"},
	"directory, forced":            {path: "d", force: true, code: "EISDIR"},
	"file with slash":              {path: "f/", code: "ENOTDIR"},
	"link with slash":              {path: "to-d/", recursive: true, force: true, code: "ENOTDIR"},
	"root":                         {path: "/workspace", recursive: true, force: true, code: "EBUSY"},
	"root with slash":              {path: "/workspace/", recursive: true, force: true, code: "EBUSY"},
	"root with dot":                {path: "/workspace/.", recursive: true, force: true, code: "EBUSY"},
	"dot":                          {path: ".", recursive: true, force: true, code: "EBUSY"},
	"up to the root":               {path: "d/..", recursive: true, force: true, code: "EBUSY"},
	"dot dot":                      {path: "..", recursive: true, force: true, code: "EBUSY"},
	"root, around":                 {path: "/tmp/../workspace", recursive: true, force: true, code: "EBUSY"},
	"root, around through a link":  {path: "to-slash/workspace", recursive: true, force: true, code: "EBUSY"},
	"slash":                        {path: "/", recursive: true, force: true, code: "EBUSY"},
	"empty":                        {path: "", recursive: true, force: true, code: errdefs.InvalidArgument},
	"NUL":                          {path: "\x00", force: true, code: errdefs.InvalidArgument},
	"long name, forced":            {path: deepName, force: true, code: "ENAMETOOLONG"},
	"loop on the way, forced":      {path: "loop/x", force: true, code: "ELOOP"},
	"below a dangling link":        {path: "dangling/x", code: "ENOENT"},
	"below a dangling link, force": {path: "dangling/x", force: true},
}

func TestTree_Remove(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		for name, tc := range removeCases {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, "file /workspace/f f", "file /workspace/d/x x", "file /workspace/d/e/y y",
					"link /workspace/d/e/out /tmp", "file /workspace/d/e/\xfe\n y", "fifo /workspace/d/e/p",
					"dir /workspace/empty-dir",
					"link /workspace/in f", "link /workspace/out /etc/hostname", "link /workspace/dangling nowhere",
					"link /workspace/loop loop", "link /workspace/to-d d", "link /workspace/to-tmp /tmp",
					"link /workspace/to-slash /", "fifo /workspace/fifo", "file /workspace/bad\xff b",
					"file /tmp/t t", "file /tmp/d/t t")
				before := w.list(t)
				err := w.Remove(t.Context(), tc.path, tc.recursive, tc.force)
				if tc.code != "" {
					requireCode(t, w, err, tc.code)
				} else {
					require.NoError(t, err)
				}
				var want []string
				for _, path := range before {
					keep := true
					for _, gone := range tc.gone {
						keep = keep && path != gone && !strings.HasPrefix(path, gone+"/")
					}
					if keep {
						want = append(want, path)
					}
				}
				require.Equal(t, want, w.list(t))
			})
		}
	})
}

// list returns every sandbox path there is.
func (w *world) list(t *testing.T) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(w.dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, w.dir))
		return err
	}))
	return out
}

func TestTree_Remove_DirectoriesWithoutPermissions(t *testing.T) {
	both(t, func(t *testing.T, newWorld func(*testing.T, ...string) *world) {
		w := newWorld(t, "file /workspace/d/a/f f", "file /workspace/d/b/c/f f", "file /workspace/d/e/f f", "dir /workspace/d/g")
		for dir, mode := range map[string]os.FileMode{"d/a": 0, "d/b/c": 0o555, "d/b": 0o555, "d/e": 0o333, "d/g": 0, "d": 0o500} {
			require.NoError(t, os.Chmod(filepath.Join(w.workspace, dir), mode))
		}
		require.NoError(t, w.Remove(t.Context(), "d", true, false))
		require.NoFileExists(t, w.host("/workspace/d"))
	})
}

func TestTree_Locate(t *testing.T) {
	tree := &Tree{Mount: "/mnt/deep"}
	for path, want := range map[string]place{
		"a":                {"/mnt/deep/a", "a"},
		"/mnt/deep/a":      {"/mnt/deep/a", "a"},
		"/mnt/./deep//a/":  {"/mnt/./deep//a/", "a/"},
		"/mnt/deep":        {"/mnt/deep", "."},
		"/mnt/deep/":       {"/mnt/deep/", "."},
		"/mnt/deep/..":     {"/mnt/deep/..", ".."},
		"/mnt/deeper":      {"/mnt/deeper", ""},
		"/mnt":             {"/mnt", ""},
		"/mnt/x/../deep/a": {"/mnt/x/../deep/a", ""},
		"/":                {"/", ""},
	} {
		got, err := tree.locate(path)
		require.NoError(t, err)
		require.Equal(t, want, got, path)
	}
}
