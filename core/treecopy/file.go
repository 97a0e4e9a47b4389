package treecopy

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

const (
	// reflinkSize is the smallest file worth sharing blocks for: below, reading
	// and writing is as fast.
	reflinkSize = 64 << 10
	// rangeSize is how much copy_file_range is asked for at once; between two
	// calls ctx is looked at.
	rangeSize  = 16 << 20
	bufferSize = 256 << 10
)

// copyFiles is a worker. After a failure it only gives back what it gets.
func (c *clone) copyFiles() {
	buf := make([]byte, bufferSize)
	for b := range c.work {
		for _, name := range b.names {
			if c.ctx.Err() != nil {
				break
			}
			if err := c.copyFile(b.dir, name, buf); err != nil {
				c.cancel(at(join(b.dir.path, name), err))
			}
		}
		if err := c.release(b.dir); err != nil {
			c.cancel(err)
		}
	}
}

func (c *clone) copyFile(p *pair, name string, buf []byte) (err error) {
	// O_NONBLOCK for what pretended to be a file in the listing.
	src, err := linux.Openat(p.src, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = linux.Close(src) }()
	st, err := linux.Fstat(src)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errChanged
	}
	dst := -1
	first, err := c.first(p, name, &st, func() error {
		var err error
		dst, err = linux.Openat(p.dst, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil || !first {
		return err
	}
	err = c.copyBytes(dst, src, &st, buf)
	if err == nil {
		err = c.attributes(dst, &st, true)
	}
	// A full disk may be reported no earlier than here.
	return errors.Join(err, linux.Close(dst))
}

var errChanged = errors.New("changed while it was copied")

func (c *clone) copyBytes(dst, src int, st *unix.Stat_t, buf []byte) error {
	if st.Size == 0 {
		return nil
	}
	if st.Size >= reflinkSize && c.reflink.Load() != reflinkRefused {
		switch err := linux.Ficlone(dst, src); {
		case err == nil:
			c.reflink.Store(reflinkWorks)
			return nil
		case !refused(err):
			return err
		default:
			// One file may be refused where others are not (swap files, files
			// without checksums): "works" is not taken back.
			c.reflink.CompareAndSwap(reflinkUntried, reflinkRefused)
		}
	}
	if st.Blocks*512 >= st.Size {
		return c.copyRange(dst, src, 0, st.Size, buf)
	}
	return c.copySparse(dst, src, st.Size, buf)
}

// refused reports whether the file systems or the kernel do not offer a way to
// copy, as opposed to having failed at it. EPERM is a container's seccomp filter.
func refused(err error) bool {
	for _, errno := range []error{
		unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// copySparse copies the data between the holes.
func (c *clone) copySparse(dst, src int, size int64, buf []byte) error {
	for off := int64(0); off < size; {
		data, err := linux.Seek(src, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole to the end
		}
		if refused(err) {
			return c.copyRange(dst, src, 0, size, buf)
		}
		if err != nil {
			return err
		}
		hole, err := linux.Seek(src, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := c.copyRange(dst, src, data, min(hole, size), buf); err != nil {
			return err
		}
		off = hole
	}
	return linux.Ftruncate(dst, size)
}

// copyRange copies [off, end) to the same place. A source that turns out to be
// shorter is copied as far as it goes.
func (c *clone) copyRange(dst, src int, off, end int64, buf []byte) error {
	for end-off >= reflinkSize {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		n, err := linux.CopyFileRange(dst, off, src, off, int(min(rangeSize, end-off)))
		// 0 may be the end, or a file system whose files have no size until read.
		if refused(err) || (err == nil && n == 0) {
			break
		}
		if err != nil {
			return err
		}
		off += int64(n)
	}
	for off < end {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		n, err := linux.Pread(src, buf[:min(int64(len(buf)), end-off)], off)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := linux.PwriteAll(dst, buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}
