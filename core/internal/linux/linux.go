package linux

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hold calls fn with f's descriptor. A concurrent f.Close takes effect after fn
// has returned; a file closed before is os.ErrClosed.
func Hold(f *os.File, fn func(fd int) error) error {
	if f == nil {
		return os.ErrInvalid
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	if err := conn.Control(func(fd uintptr) { fnErr = fn(int(fd)) }); err != nil {
		return os.ErrClosed // the one way in which Control fails
	}
	return fnErr
}

// retry repeats a call that a signal interrupted. Slow file systems (FUSE, NFS)
// return EINTR even for handlers with SA_RESTART.
func retry[T any](op, name string, call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err == nil {
			return v, nil
		}
		if err != unix.EINTR {
			return v, &os.PathError{Op: op, Path: name, Err: err}
		}
	}
}

func retry0(op, name string, call func() error) error {
	_, err := retry(op, name, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// Openat2 opens path beneath dir with the RESOLVE_ flags of resolve.
func Openat2(dir int, path string, flags int, mode uint32, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: uint64(mode), Resolve: resolve}
	return retry("openat2", path, func() (int, error) { return unix.Openat2(dir, path, &how) })
}

// Openat opens path from dir.
func Openat(dir int, path string, flags int, mode uint32) (int, error) {
	return retry("openat", path, func() (int, error) {
		return unix.Openat(dir, path, flags|unix.O_CLOEXEC, mode)
	})
}

// Dup duplicates fd.
func Dup(fd int) (int, error) {
	return retry("dup", "", func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) })
}

// Close closes fd. It is not repeated on EINTR: Linux has closed the
// descriptor by then, and the number may be another file's.
func Close(fd int) error {
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return os.NewSyscallError("close", err)
	}
	return nil
}

// Fstat describes the open file fd.
func Fstat(fd int) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry0("fstat", "", func() error { return unix.Fstat(fd, &st) })
	return st, err
}

// Lstatat describes what name stands for in dir, a link itself.
func Lstatat(dir int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry0("fstatat", name, func() error {
		return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

// Mkdirat makes a directory; the umask applies.
func Mkdirat(dir int, name string, mode uint32) error {
	return retry0("mkdirat", name, func() error { return unix.Mkdirat(dir, name, mode) })
}

// Mkfifoat makes a named pipe; the umask applies.
func Mkfifoat(dir int, name string, mode uint32) error {
	return retry0("mknodat", name, func() error { return unix.Mknodat(dir, name, unix.S_IFIFO|mode, 0) })
}

// Symlinkat makes the link name, which holds target verbatim.
func Symlinkat(target string, dir int, name string) error {
	return retry0("symlinkat", name, func() error { return unix.Symlinkat(target, dir, name) })
}

// Linkat makes a hard link; a link in the last component of from is not followed.
func Linkat(fromDir int, from string, toDir int, to string) error {
	return retry0("linkat", to, func() error { return unix.Linkat(fromDir, from, toDir, to, 0) })
}

// Unlinkat removes name from dir; flags is 0 or AT_REMOVEDIR.
func Unlinkat(dir int, name string, flags int) error {
	return retry0("unlinkat", name, func() error { return unix.Unlinkat(dir, name, flags) })
}

// Renameat2 renames; flags is 0 or RENAME_NOREPLACE and the like. File systems
// that do not know a flag answer EINVAL: the fall-back is the caller's.
func Renameat2(fromDir int, from string, toDir int, to string, flags uint) error {
	return retry0("renameat", to, func() error {
		if flags == 0 {
			return unix.Renameat(fromDir, from, toDir, to)
		}
		return unix.Renameat2(fromDir, from, toDir, to, flags)
	})
}

// Readlinkat returns what the link name in dir holds; an empty name means the
// O_PATH descriptor dir itself.
func Readlinkat(dir int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := retry("readlinkat", name, func() (int, error) { return unix.Readlinkat(dir, name, buf) })
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// Fchmod sets the mode of an open file, not an O_PATH one.
func Fchmod(fd int, mode uint32) error {
	return retry0("fchmod", "", func() error { return unix.Fchmod(fd, mode) })
}

// Fchmodat sets the mode of name in dir and follows links: only for
// directories that nobody else can change.
func Fchmodat(dir int, name string, mode uint32) error {
	return retry0("fchmodat", name, func() error { return unix.Fchmodat(dir, name, mode, 0) })
}

// ChmodPath sets the mode of the file behind an O_PATH descriptor. With a name
// instead, a link put there at the right moment would have its target changed.
func ChmodPath(fd int, mode uint32) error {
	// fchmodat2 is in Linux from 6.6 on. EPERM may be a container's seccomp
	// filter as well as the file's owner; /proc tells the two apart.
	err := retry0("fchmodat2", "", func() error {
		empty, err := unix.BytePtrFromString("")
		if err != nil {
			return err
		}
		_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(fd), uintptr(unsafe.Pointer(empty)),
			uintptr(mode), unix.AT_EMPTY_PATH, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err == nil {
		return nil
	}
	return retry0("chmod", "", func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
}

// Fchown sets the owner of an open file.
func Fchown(fd, uid, gid int) error {
	return retry0("fchown", "", func() error { return unix.Fchown(fd, uid, gid) })
}

// Lchownat sets the owner of name in dir, of a link itself.
func Lchownat(dir int, name string, uid, gid int) error {
	return retry0("fchownat", name, func() error {
		return unix.Fchownat(dir, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Futimens sets the times of an open file.
func Futimens(fd int, atime, mtime unix.Timespec) error {
	times := [2]unix.Timespec{atime, mtime}
	return retry0("futimens", "", func() error {
		// A null path means the descriptor itself, on every kernel;
		// AT_EMPTY_PATH does so only from 5.8 on.
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

// Lutimensat sets the times of name in dir, of a link itself.
func Lutimensat(dir int, name string, atime, mtime unix.Timespec) error {
	return retry0("utimensat", name, func() error {
		return unix.UtimesNanoAt(dir, name, []unix.Timespec{atime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Flock applies how (LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB) to fd.
func Flock(fd, how int) error {
	return retry0("flock", "", func() error { return unix.Flock(fd, how) })
}

// Ficlone makes dst share the blocks of src.
func Ficlone(dst, src int) error {
	return retry0("ficlone", "", func() error { return unix.IoctlFileClone(dst, src) })
}

// CopyFileRange copies up to n bytes at the files' offsets given, inside the
// kernel, and returns how many it copied; 0 is the end of src.
func CopyFileRange(dst int, dstOff int64, src int, srcOff int64, n int) (int, error) {
	return retry("copy_file_range", "", func() (int, error) {
		return unix.CopyFileRange(src, &srcOff, dst, &dstOff, n, 0)
	})
}

// Pread reads into buf at off; 0 is the end of the file.
func Pread(fd int, buf []byte, off int64) (int, error) {
	return retry("pread", "", func() (int, error) { return unix.Pread(fd, buf, off) })
}

// PwriteAll writes all of buf at off.
func PwriteAll(fd int, buf []byte, off int64) error {
	for len(buf) > 0 {
		n, err := retry("pwrite", "", func() (int, error) { return unix.Pwrite(fd, buf, off) })
		if err != nil {
			return err
		}
		buf, off = buf[n:], off+int64(n)
	}
	return nil
}

// WriteAll writes all of buf at the file's offset and returns how much of it
// was written before an error.
func WriteAll(fd int, buf []byte) (int, error) {
	done := 0
	for done < len(buf) {
		n, err := retry("write", "", func() (int, error) { return unix.Write(fd, buf[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Seek moves the file's offset; whence may be SEEK_DATA or SEEK_HOLE.
func Seek(fd int, off int64, whence int) (int64, error) {
	return retry("lseek", "", func() (int64, error) { return unix.Seek(fd, off, whence) })
}

// Ftruncate sets the file's size.
func Ftruncate(fd int, size int64) error {
	return retry0("ftruncate", "", func() error { return unix.Ftruncate(fd, size) })
}

// Fsync writes an open file, or a directory's entries, to its device.
func Fsync(fd int) error { return retry0("fsync", "", func() error { return unix.Fsync(fd) }) }

// Syncfs writes the whole file system of fd to its device.
func Syncfs(fd int) error { return retry0("syncfs", "", func() error { return unix.Syncfs(fd) }) }
