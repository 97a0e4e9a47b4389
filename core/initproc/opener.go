//go:build linux

package initproc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// runOpener serves the file API until the supervisor, or init, has gone.
//
// The opener has the user id, the mounts and the filter of a command and no
// capability, so a path means to it what it means to a command, and what it may
// not open a command may not either. It is not init for one reason: init's own
// /proc/self would be the answer to a planted link.
func runOpener() error {
	if err := hideMemory(); err != nil {
		return err
	}
	if err := closeAbove(wire.ControlFD); err != nil {
		return err
	}
	unix.Umask(0o022)
	conn, err := wire.NewConn(wire.ControlFD)
	if err != nil {
		return err
	}
	// A file system of the host may let one request wait for ever.
	slots := make(chan struct{}, 64)
	for {
		m, fds, err := conn.Recv()
		if err != nil {
			return nil
		}
		closeAll(fds)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			reply, fd := answer(m)
			reply.ID = m.ID
			if fd < 0 {
				conn.Send(reply)
				return
			}
			conn.Send(reply, fd)
		}()
	}
}

// answer serves one request. The descriptor, or -1, belongs to the caller.
func answer(m wire.Message) (reply wire.Message, fd int) {
	defer func() {
		if recover() != nil {
			reply, fd = wire.Message{Kind: wire.KindFailed, Errno: int(unix.EIO)}, -1
		}
	}()
	var name string
	var err error
	switch {
	case !strings.HasPrefix(m.Path, "/") || strings.ContainsRune(m.Path, 0):
		err = unix.EINVAL
	case m.Kind == wire.KindOpen:
		fd, err = openRegular(m.Path)
	case m.Kind == wire.KindParent:
		fd, name, err = openParent(m.Path, m.Follow, m.MakeParents)
	default:
		err = unix.EINVAL
	}
	if err != nil {
		return wire.Message{Kind: wire.KindFailed, Errno: int(errnoOf(err))}, -1
	}
	return wire.Message{Kind: wire.KindOpened, Name: name}, fd
}

// openRegular opens a regular file for reading. Nothing is opened before it is
// known to be one: opening a FIFO or a device has effects, or never returns.
func openRegular(path string) (int, error) {
	found, err := resolve(unix.AT_FDCWD, path, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(found)
	if err := refuseProc(found); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return -1, fmt.Errorf("stat: %w", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return -1, unix.EISDIR
	default:
		return -1, unix.EINVAL
	}
	return reopen(found, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// reopen opens what the O_PATH descriptor fd means, and nothing else.
func reopen(fd, flags int) (int, error) {
	return retry(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	})
}

// resolve finds path from dir without opening it.
func resolve(dir int, path string, flags int) (int, error) {
	flags |= unix.O_PATH | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) {
		return unix.Openat2(dir, path, &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_MAGICLINKS})
	})
	// Before Linux 5.6, and under container filters that do not know the call. A
	// magic link is then followed, to what a command would find there.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		fd, err = retry(func() (int, error) { return unix.Openat(dir, path, flags, 0) })
	}
	if err != nil {
		return -1, fmt.Errorf("resolve: %w", err)
	}
	return fd, nil
}

// refuseProc refuses what lies in a procfs: the answer would be about the opener,
// and whoever planted the link knows that (rule init5).
func refuseProc(fd int) error {
	if !holds("init5") {
		return nil
	}
	var st unix.Statfs_t
	if _, err := retry(func() (int, error) { return 0, unix.Fstatfs(fd, &st) }); err != nil {
		return fmt.Errorf("stat file system: %w", err)
	}
	if st.Type == unix.PROC_SUPER_MAGIC {
		return unix.EACCES
	}
	return nil
}

// maxLinks is how many links the kernel follows in one path.
const maxLinks = 40

// openParent opens the directory that path's last component lies in and returns
// it with that component's name. With follow, a link there is followed, so that
// the name is not a link, or does not exist: the target of a link that dangles.
func openParent(path string, follow, makeParents bool) (int, string, error) {
	dir, name, err := parent(unix.AT_FDCWD, path, makeParents)
	if err != nil {
		return -1, "", err
	}
	for links := 0; follow; links++ {
		target, err := readLink(dir, name)
		if err == unix.EINVAL || err == unix.ENOENT {
			break // not a link, or nothing there yet
		}
		if err == nil && links == maxLinks {
			err = unix.ELOOP
		}
		next := -1
		if err == nil {
			// Directories that a link's target lacks are not made: what writes
			// through such a link fails, in a shell as well.
			next, name, err = parent(dir, target, false)
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, "", err
		}
		dir = next
	}
	defer unix.Close(dir)
	// Good for fsync and for listing; a directory one may enter but not read has
	// to do without.
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if errors.Is(err, unix.EACCES) {
		fd, err = unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return -1, "", fmt.Errorf("open directory: %w", err)
	}
	return fd, name, nil
}

// parent resolves all of path but its last component, from the directory from.
func parent(from int, path string, makeParents bool) (dir int, name string, err error) {
	path = strings.TrimRight(path, "/")
	cut := strings.LastIndexByte(path, '/') + 1
	head, name := path[:cut], path[cut:]
	switch name {
	case "", ".", "..":
		return -1, "", unix.EISDIR // "" is the root, or an empty link
	}
	if head == "" {
		head = "."
	}
	dir, err = resolve(from, head, unix.O_DIRECTORY)
	if makeParents && errors.Is(err, unix.ENOENT) {
		dir, err = makePath(from, head)
	}
	if err != nil {
		return -1, "", err
	}
	if err := refuseProc(dir); err != nil {
		_ = unix.Close(dir)
		return -1, "", err
	}
	return dir, name, nil
}

// makePath resolves a directory and makes what is missing on the way.
func makePath(from int, path string) (int, error) {
	start := "."
	if strings.HasPrefix(path, "/") {
		start = "/"
	}
	dir, err := resolve(from, start, unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		next, err := resolve(dir, name, unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			if err = makeDir(dir, name); err == nil {
				next, err = resolve(dir, name, unix.O_DIRECTORY)
			}
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// makeDir makes a directory. That somebody else was faster is no error, a link
// to nowhere in its place is.
func makeDir(dir int, name string) error {
	err := unix.Mkdirat(dir, name, 0o755)
	if err == unix.EEXIST {
		if _, linkErr := readLink(dir, name); linkErr != nil {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

func readLink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := retry(func() (int, error) { return unix.Readlinkat(dir, name, buf) })
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
