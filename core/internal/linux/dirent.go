package linux

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Dirent is one entry of a directory.
type Dirent struct {
	// Name is the entry's name, byte for byte: it need not be UTF-8.
	Name string
	// Type is DT_DIR, DT_REG, DT_LNK …, or DT_UNKNOWN where the file system does not say.
	Type uint8
}

// The layout of struct linux_dirent64: d_ino 8, d_off 8, d_reclen 2, d_type 1, name.
const (
	direntReclen = 16
	direntType   = 18
	direntName   = 19
)

// Entries yields the entries of the directory fd from its offset on, but "."
// and "..", and ends at the first error. Entries made or removed meanwhile may
// or may not be seen.
func Entries(fd int) iter.Seq2[Dirent, error] {
	return func(yield func(Dirent, error) bool) {
		buf := make([]byte, 16<<10)
		for {
			n, err := retry("getdents", "", func() (int, error) { return unix.Getdents(fd, buf) })
			if err != nil {
				yield(Dirent{}, err)
				return
			}
			if n == 0 {
				return
			}
			for rest := buf[:n]; len(rest) >= direntName; {
				size := int(binary.NativeEndian.Uint16(rest[direntReclen:]))
				if size < direntName || size > len(rest) {
					yield(Dirent{}, unix.EIO)
					return
				}
				name := rest[direntName:size]
				if end := bytes.IndexByte(name, 0); end >= 0 {
					name = name[:end]
				}
				entry := Dirent{Name: string(name), Type: rest[direntType]}
				rest = rest[size:]
				if entry.Name == "." || entry.Name == ".." {
					continue
				}
				if !yield(entry, nil) {
					return
				}
			}
		}
	}
}
