// Package supervise starts sandboxes and keeps their ends: it forks, waits,
// speaks with init, and sees to it that nothing is left.
//
// Everything that forks goes through one [Launcher] thread. A [Generation] is
// one live sandbox, a [Process] one command in it. supervise does not decide
// what a sandbox shows (package bwrap does) nor how many may live (package core).
package supervise

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-parameter
#include <stdlib.h>
#include "spawn.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// Exec is a program to start.
type Exec struct {
	// Path is the absolute path of the executable.
	Path string
	// Argv is the argument vector, Argv[0] included.
	Argv []string
	// Env is the whole environment as NAME=value; nil is an empty environment.
	Env []string
	// Dir is the working directory. Empty keeps that of this process.
	Dir string
	// Files are the child's descriptors 0, 1, 2, …; it gets no others. One file
	// may stand at several places. They stay the caller's.
	Files []*os.File
}

// Launcher is the thread that forks. It never ends: bwrap's --die-with-parent
// follows the thread that forked it, and a caller's thread may be a Worker's,
// about to be terminated.
type Launcher struct {
	requests chan func()
}

// NewLauncher starts a launcher thread, which lives as long as the process.
// Programs want [Default].
func NewLauncher() *Launcher {
	l := &Launcher{requests: make(chan func())}
	go func() {
		// Never unlocked: the thread would go back to the pool and could end.
		runtime.LockOSThread()
		// Every signal a child must not get while it shares our handlers.
		C.sbx_block_signals()
		for work := range l.requests {
			work()
		}
	}()
	return l
}

var defaultLauncher = sync.OnceValue(NewLauncher)

// Default returns the launcher of this process, started on first use.
func Default() *Launcher { return defaultLauncher() }

// do runs f on the launcher thread. A panic in f is returned as an error: the
// thread must survive it.
func (l *Launcher) do(f func() error) (err error) {
	done := make(chan struct{})
	work := func() {
		defer close(done)
		defer errdefs.Recover(&err)
		err = f()
	}
	if !holds("rule3.thread") {
		work()
		return err
	}
	l.requests <- work
	<-done
	return err
}

// Start starts a program and returns once it runs (or could not). The error's
// chain has the errno.
func (l *Launcher) Start(exec Exec) (*Child, error) {
	var started C.struct_sbx_started
	err := l.do(func() error {
		request, free, err := newRequest(exec)
		if err != nil {
			return err
		}
		defer free()
		C.sbx_start_child(request, &started)
		runtime.KeepAlive(exec.Files)
		if started.err != 0 {
			return syscall.Errno(started.err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", exec.Path, err)
	}
	return newChild(int(started.pid), int(started.pidfd))
}

// tryUserns reports whether the kernel makes a user namespace for us: nil, or its errno.
func (l *Launcher) tryUserns() error {
	return l.do(func() error {
		if errno := C.sbx_try_userns(); errno != 0 {
			return syscall.Errno(errno)
		}
		return nil
	})
}

// newRequest copies exec into C memory, which the child reads before its exec.
func newRequest(exec Exec) (request *C.struct_sbx_exec, free func(), err error) {
	fds := make([]C.int, len(exec.Files))
	for i, f := range exec.Files {
		fd, err := rawFD(f)
		if err != nil {
			return nil, nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
		fds[i] = C.int(fd)
	}
	var owned []unsafe.Pointer
	keep := func(p unsafe.Pointer) unsafe.Pointer {
		owned = append(owned, p)
		return p
	}
	vector := func(list []string) **C.char {
		size := C.size_t(len(list)+1) * C.size_t(unsafe.Sizeof((*C.char)(nil)))
		v := (**C.char)(keep(C.calloc(1, size)))
		for i, s := range list {
			unsafe.Slice(v, len(list))[i] = (*C.char)(keep(unsafe.Pointer(C.CString(s))))
		}
		return v
	}
	request = (*C.struct_sbx_exec)(keep(C.calloc(1, C.sizeof_struct_sbx_exec)))
	request.path = (*C.char)(keep(unsafe.Pointer(C.CString(exec.Path))))
	request.argv = vector(exec.Argv)
	request.envp = vector(exec.Env)
	if exec.Dir != "" {
		request.dir = (*C.char)(keep(unsafe.Pointer(C.CString(exec.Dir))))
	}
	request.nfds = C.int(len(fds))
	request.fds = (*C.int)(keep(C.calloc(C.size_t(len(fds)+1), C.sizeof_int)))
	copy(unsafe.Slice(request.fds, len(fds)), fds)
	request.keep_mask = C.bool(!holds("rule3.mask"))
	return request, func() {
		for _, p := range owned {
			C.free(p)
		}
	}, nil
}

// rawFD returns f's descriptor without what (*os.File).Fd does on the side: it
// makes the file blocking, for every holder of it.
func rawFD(f *os.File) (int, error) {
	if f == nil {
		return -1, errors.New("no file")
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	got := -1
	if err := raw.Control(func(fd uintptr) { got = int(fd) }); err != nil {
		return -1, err
	}
	return got, nil
}
