//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

func TestOpener_Open(t *testing.T) {
	s := start(t, settings{})
	s.run(`echo content > file; ln -s file link; ln -s /workspace/link absolute; ln -s nowhere dangling; ln -s loop loop
		mkdir dir; mkfifo fifo; echo closed > closed; chmod 0 closed; mkdir shut; echo x > shut/file; chmod 0 shut
		echo temporary > /tmp/file; ln -s /tmp/file out; ln -s ../../../../etc/hostname up
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'`)
	o := s.opener()
	for name, tc := range map[string]struct {
		path    string
		content string
		want    error
	}{
		"a file":              {"/workspace/file", "content\n", nil},
		"a link":              {"/workspace/link", "content\n", nil},
		"a link to a link":    {"/workspace/absolute", "content\n", nil},
		"dots":                {"/workspace/dir/../file", "content\n", nil},
		"another directory":   {"/tmp/file", "temporary\n", nil},
		"a link out":          {"/workspace/out", "temporary\n", nil},
		"missing":             {"/workspace/missing", "", unix.ENOENT},
		"dangling":            {"/workspace/dangling", "", unix.ENOENT},
		"a loop":              {"/workspace/loop", "", unix.ELOOP},
		"below a file":        {"/workspace/file/x", "", unix.ENOTDIR},
		"a directory":         {"/workspace/dir", "", unix.EISDIR},
		"the root":            {"/", "", unix.EISDIR},
		"a fifo":              {"/workspace/fifo", "", unix.EINVAL},
		"a socket":            {"/workspace/socket", "", unix.EINVAL},
		"a device":            {"/dev/zero", "", unix.EINVAL},
		"a terminal":          {"/dev/ptmx", "", unix.EINVAL},
		"standard input":      {"/dev/stdin", "", unix.ELOOP},
		"relative":            {"workspace/file", "", unix.EINVAL},
		"empty":               {"", "", unix.EINVAL},
		"with a NUL":          {"/workspace/file\x00", "", unix.EINVAL},
		"not for this user":   {"/workspace/closed", "", unix.EACCES},
		"in a shut directory": {"/workspace/shut/file", "", unix.EACCES},
		"a long name":         {"/" + longName, "", unix.ENAMETOOLONG},
	} {
		t.Run(name, func(t *testing.T) {
			content, err := o.read(tc.path)
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, tc.content, content)
		})
	}
	s.run("chmod 0700 shut closed")
}

var longName = fmt.Sprintf("%0300d", 0)

func TestOpener_OpensForReadingOnly(t *testing.T) {
	s := start(t, settings{})
	s.run("echo content > file")
	_, fd, err := s.opener().ask(wire.Message{Kind: wire.KindOpen, Path: "/workspace/file"})
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("x"))
	require.ErrorIs(t, err, unix.EBADF)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
}

func TestOpener_Parent(t *testing.T) {
	s := start(t, settings{})
	s.run(`echo content > file; mkdir -p dir/sub; ln -s dir/sub/new dangling; ln -s /tmp/new away; ln -s dir todir; ln -s loop loop
		ln -s missing/new deep; ln -s file link; ln -s link link2; ln -s . here; ln -s nowhere gap; mkdir -m 0300 blind; mkdir shut; chmod 0 shut
		touch dir/in`)
	o := s.opener()
	for name, tc := range map[string]struct {
		ask  wire.Message
		dir  string // where the name must then appear, as the sandbox sees it
		name string
		want error
	}{
		"new":                       {wire.Message{Path: "/workspace/new"}, "/workspace", "new", nil},
		"there":                     {wire.Message{Path: "/workspace/file"}, "/workspace", "file", nil},
		"a directory":               {wire.Message{Path: "/workspace/dir/"}, "/workspace", "dir", nil},
		"below a link":              {wire.Message{Path: "/workspace/todir/new"}, "/workspace/dir", "new", nil},
		"elsewhere":                 {wire.Message{Path: "/tmp/new"}, "/tmp", "new", nil},
		"a link itself":             {wire.Message{Path: "/workspace/link"}, "/workspace", "link", nil},
		"through a link":            {wire.Message{Path: "/workspace/link", Follow: true}, "/workspace", "file", nil},
		"through two":               {wire.Message{Path: "/workspace/link2", Follow: true}, "/workspace", "file", nil},
		"through a dangling one":    {wire.Message{Path: "/workspace/dangling", Follow: true}, "/workspace/dir/sub", "new", nil},
		"through one that leaves":   {wire.Message{Path: "/workspace/away", Follow: true}, "/tmp", "new", nil},
		"a target without parents":  {wire.Message{Path: "/workspace/deep", Follow: true}, "", "", unix.ENOENT},
		"nor are they made":         {wire.Message{Path: "/workspace/deep", Follow: true, MakeParents: true}, "", "", unix.ENOENT},
		"a loop":                    {wire.Message{Path: "/workspace/loop", Follow: true}, "", "", unix.ELOOP},
		"a loop itself":             {wire.Message{Path: "/workspace/loop"}, "/workspace", "loop", nil},
		"a link to a dot":           {wire.Message{Path: "/workspace/here", Follow: true}, "", "", unix.EISDIR},
		"no parents":                {wire.Message{Path: "/workspace/a/b/c"}, "", "", unix.ENOENT},
		"parents made":              {wire.Message{Path: "/workspace/p/q/c", MakeParents: true}, "/workspace/p/q", "c", nil},
		"made across a link":        {wire.Message{Path: "/workspace/todir/r/s", MakeParents: true}, "/workspace/dir/r", "s", nil},
		"made across dots":          {wire.Message{Path: "/workspace/u/../v/w", MakeParents: true}, "/workspace/v", "w", nil},
		"made across a gap":         {wire.Message{Path: "/workspace/gap/x", MakeParents: true}, "", "", unix.EEXIST},
		"made below a file":         {wire.Message{Path: "/workspace/file/x/y", MakeParents: true}, "", "", unix.ENOTDIR},
		"made where none may":       {wire.Message{Path: "/usr/new/x", MakeParents: true}, "", "", unix.EROFS},
		"one that cannot be read":   {wire.Message{Path: "/workspace/blind/new"}, "/workspace/blind", "new", nil},
		"one that cannot be passed": {wire.Message{Path: "/workspace/shut/new/x"}, "", "", unix.EACCES},
		"the root":                  {wire.Message{Path: "/"}, "", "", unix.EISDIR},
		"a dot":                     {wire.Message{Path: "/workspace/."}, "", "", unix.EISDIR},
		"two dots":                  {wire.Message{Path: "/workspace/.."}, "", "", unix.EISDIR},
		"relative":                  {wire.Message{Path: "new"}, "", "", unix.EINVAL},
		"empty":                     {wire.Message{}, "", "", unix.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			tc.ask.Kind = wire.KindParent
			m, fd, err := o.ask(tc.ask)
			require.ErrorIs(t, err, tc.want)
			if tc.want != nil {
				return
			}
			defer unix.Close(fd)
			require.Equal(t, tc.name, m.Name)
			var got unix.Stat_t
			require.NoError(t, unix.Fstat(fd, &got))
			require.Equal(t, s.run(fmt.Sprintf("stat -L -c '%%i %%D' %s", tc.dir)), fmt.Sprintf("%d %x\n", got.Ino, got.Dev))
		})
	}
	s.run("chmod 0700 shut blind; stat -c %a p p/q | sort -u | grep -qx 755")
}

func TestOpener_IsOutOfReach(t *testing.T) {
	s := start(t, settings{})
	o := s.opener()
	s.run("echo content > file")
	require.Equal(t, "refused\n", s.run(fmt.Sprintf(
		"cat /proc/%d/maps /proc/%d/environ /proc/%d/mem 2>/dev/null; readlink /proc/%d/fd/3; strace -p %d 2>/dev/null; echo refused", o.pid, o.pid, o.pid, o.pid, o.pid)))
	status := s.run(fmt.Sprintf("cat /proc/%d/status", o.pid))
	for _, field := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		require.Contains(t, status, "\n"+field+":\t0000000000000000\n")
	}
	require.Contains(t, status, "\nSeccomp:\t2\n")

	// Ending a command does not end it.
	j := s.bash("echo up; exec sleep 1000")
	j.line()
	require.Zero(t, j.kill())
	content, err := o.read("/workspace/file")
	require.NoError(t, err)
	require.Equal(t, "content\n", content)
}

func TestOpener_IsReplacedWhenKilled(t *testing.T) {
	s := start(t, settings{})
	s.run("echo content > file")
	first := s.opener()
	s.run(fmt.Sprintf("kill -KILL %d", first.pid))
	_, err := first.read("/workspace/file")
	require.Error(t, err)

	second := s.opener()
	content, err := second.read("/workspace/file")
	require.NoError(t, err)
	require.Equal(t, "content\n", content)

	// A stopped one is replaced as well, and does not stay.
	s.run(fmt.Sprintf("kill -STOP %d", second.pid))
	third := s.opener()
	content, err = third.read("/workspace/file")
	require.NoError(t, err)
	require.Equal(t, "content\n", content)
	require.NotEqual(t, second.pid, third.pid)
	s.run(fmt.Sprintf("for i in $(seq 1000); do kill -0 %d 2>/dev/null || exit 0; done; exit 1", second.pid))
}

func TestOpener_EndsWithItsSocket(t *testing.T) {
	s := start(t, settings{})
	o := s.opener()
	require.NoError(t, o.conn.Close())
	s.run(fmt.Sprintf("for i in $(seq 1000); do kill -0 %d 2>/dev/null || exit 0; sleep 0.01; done; exit 1", o.pid))
	require.NoError(t, os.WriteFile(s.dir+"/file", []byte("new"), 0o644))
	content, err := s.opener().read("/workspace/file")
	require.NoError(t, err)
	require.Equal(t, "new", content)
}
