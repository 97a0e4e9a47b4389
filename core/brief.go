package core

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/internal/linux"
)

// brief resolves in a sandbox that ends with the operation. What would lie in a
// tmpfs of that sandbox is refused, however the path leads there: it is nobody's
// else, and what was written to it would vanish with the answer.
type brief struct {
	*opener
	// own are the devices of those tmpfs, once they are known.
	own []uint64
}

// ownTrees are the writable tmpfs of every sandbox; /var/tmp is a link to /tmp.
var ownTrees = []string{"/tmp", "/dev/shm", "/var/tmp"}

var errBrief = &errdefs.Error{
	Code: errdefs.Unsupported, Msg: "every command has /tmp, /var/tmp and /dev/shm of its own, which end with it",
	Remedy: `use a path under /workspace, or open the session with processes: "session"`,
}

// Open implements [pathfs.Opener].
func (b *brief) Open(ctx context.Context, path string) (*os.File, error) {
	if named(path) {
		return nil, errBrief
	}
	f, err := b.opener.Open(ctx, path)
	if err != nil {
		return nil, b.explain(ctx, path, err)
	}
	// A file that is there is not in those tmpfs, which are empty.
	return f, nil
}

// Parent implements [pathfs.Opener].
func (b *brief) Parent(ctx context.Context, path string, follow, makeParents bool) (*os.File, string, error) {
	if named(path) {
		return nil, "", errBrief
	}
	dir, name, err := b.opener.Parent(ctx, path, follow, makeParents)
	if err != nil {
		return nil, "", b.explain(ctx, path, err)
	}
	if err := b.refuse(ctx, dir); err != nil {
		_ = dir.Close()
		return nil, "", err
	}
	return dir, name, nil
}

// named tells whether a path names one of those trees. One with ".." may mean
// something else, and is left to be resolved.
func named(path string) bool {
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
		case "..":
			return false
		default:
			names = append(names, name)
		}
	}
	clean := "/" + strings.Join(names, "/") + "/"
	return slices.ContainsFunc(ownTrees, func(tree string) bool { return strings.HasPrefix(clean, tree+"/") })
}

// explain returns errBrief in place of err when the part of the path that can be
// resolved leads into one of those trees: what is missing there would be there if
// commands shared it.
func (b *brief) explain(ctx context.Context, path string, err error) error {
	if code := errdefs.CodeOf(err); code != "ENOENT" {
		return err
	}
	for path = strings.TrimRight(path, "/"); path != ""; path = strings.TrimRight(path[:strings.LastIndexByte(path, '/')], "/") {
		dir, _, parentErr := b.opener.Parent(ctx, path, true, false)
		if ctx.Err() != nil {
			return err
		}
		if parentErr != nil {
			continue
		}
		defer dir.Close()
		if refusal := b.refuse(ctx, dir); refusal != nil {
			return refusal
		}
		return err
	}
	return err
}

// refuse refuses a directory in one of those tmpfs.
func (b *brief) refuse(ctx context.Context, dir *os.File) error {
	if b.own == nil {
		for _, tree := range ownTrees {
			root, _, err := b.opener.Parent(ctx, tree+"/any", false, false)
			if err != nil {
				return err
			}
			device, err := deviceOf(root)
			_ = root.Close()
			if err != nil {
				return err
			}
			b.own = append(b.own, device)
		}
	}
	device, err := deviceOf(dir)
	if err == nil && slices.Contains(b.own, device) {
		return errBrief
	}
	return err
}

func deviceOf(f *os.File) (device uint64, err error) {
	err = linux.Hold(f, func(fd int) error {
		st, err := linux.Fstat(fd)
		device = st.Dev
		return err
	})
	return device, err
}
