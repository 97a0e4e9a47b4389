package supervise

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// kit is what a sandbox is started with: the descriptors of bwrap, in their places.
type kit struct {
	files []*os.File
	// own are those that were made for it.
	own []*os.File
}

func (k *kit) close() {
	for _, f := range k.own {
		_ = f.Close()
	}
}

// fill makes the descriptors. The control socket and the reading end of stderr
// belong to the caller.
func (k *kit) fill(cfg Config, args bwrap.Arguments) (control int, stderr *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return -1, nil, err
	}
	k.own = append(k.own, null)
	stderr, writer, err := pipe()
	if err != nil {
		return -1, nil, err
	}
	k.own = append(k.own, writer)
	control, theirs, err := wire.Pair()
	if err != nil {
		_ = stderr.Close()
		return -1, nil, err
	}
	socket := os.NewFile(uintptr(theirs), "init")
	k.own = append(k.own, socket)
	k.files = []*os.File{null, null, writer, socket}
	if err := k.contents(cfg, args); err != nil {
		_ = unix.Close(control)
		_ = stderr.Close()
		return -1, nil, err
	}
	return control, stderr, nil
}

// pipe is os.Pipe with a writing end as programs expect it, blocking.
func pipe() (reader, writer *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	return pollable(ends[0], "output"), os.NewFile(uintptr(ends[1]), "output"), nil
}

func (k *kit) contents(cfg Config, args bwrap.Arguments) error {
	list, err := k.memfd("arguments", args.Encode())
	if err != nil {
		return err
	}
	k.files = append(k.files, list, cfg.Image)
	for _, dir := range []*os.File{cfg.Workspace, cfg.Home} {
		if dir != nil {
			k.files = append(k.files, dir)
		}
	}
	// All empty files are one: reading it does not move its end, and a
	// sandbox may hide hundreds.
	var empty *os.File
	for i, data := range args.Data {
		var f *os.File
		switch {
		case len(data) == 0 && empty != nil:
			f = empty
		default:
			if f, err = k.memfd("file", data); err != nil {
				return fmt.Errorf("file %d: %w", i, err)
			}
			if len(data) == 0 {
				empty = f
			}
		}
		k.files = append(k.files, f)
	}
	return nil
}

func (k *kit) memfd(name string, data []byte) (*os.File, error) {
	fd, err := wire.SealedMemfd(name, data)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	k.own = append(k.own, f)
	return f, nil
}

// captureLimit bounds what is kept of bwrap's words.
const captureLimit = 64 << 10

// capture keeps the beginning of what is written to a pipe, and reads on, so
// that nobody ever waits for it.
type capture struct {
	done chan struct{}

	// mu guards the field below it.
	mu   sync.Mutex
	kept strings.Builder
}

// newCapture takes ownership of the pipe's reading end.
func newCapture(pipe *os.File) *capture {
	c := &capture{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() { _ = pipe.Close() }()
		buf := make([]byte, 4096)
		for {
			n, err := pipe.Read(buf)
			c.keep(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *capture) keep(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Write(p[:min(len(p), captureLimit-c.kept.Len())])
}

// text returns what was kept, once the pipe has ended: its writers are gone.
func (c *capture) text() string {
	select {
	case <-c.done:
	case <-time.After(time.Second): // somebody else has got hold of the pipe
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.String()
}
