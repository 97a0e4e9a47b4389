//go:build sbxtest

package main

// #include "sandbox.h"
import "C"

import (
	"context"
	"errors"
	"os"
	goruntime "runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// The exports of this file let test/addon put load on the boundary without a
// sandbox. They have the signature of every request and are in no build that is
// shipped.

type loadRequest struct {
	Milliseconds int `json:"milliseconds"`
	Goroutines   int `json:"goroutines"`
}

// sbx_test_load keeps goroutines with small stacks busy on every thread of Go.
//
//export sbx_test_load
func sbx_test_load(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testLoad)
}

func testLoad(ctx context.Context, _ *environment, req loadRequest, _ []byte) (any, []byte, error) {
	end := time.Now().Add(time.Duration(req.Milliseconds) * time.Millisecond)
	var busy sync.WaitGroup
	for range req.Goroutines {
		busy.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				var inner sync.WaitGroup
				for range 64 {
					inner.Go(func() { climb(6, new([24]byte)) })
				}
				inner.Wait()
			}
		})
	}
	busy.Wait()
	return nil, nil, nil
}

// climb works on a stack of a few hundred bytes, with pointers to it from below.
//
//go:noinline
func climb(depth int, below *[24]byte) byte {
	var own [24]byte
	for i := range 200 {
		own[i%len(own)] ^= below[i%len(below)] + byte(i)
	}
	if depth > 0 {
		return climb(depth-1, &own) ^ own[0]
	}
	return own[1]
}

type signalRequest struct {
	Signal       int `json:"signal"`
	Milliseconds int `json:"milliseconds"`
}

// sbx_test_aim sends a signal to each thread but the first, again and again.
//
//export sbx_test_aim
func sbx_test_aim(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testAim)
}

func testAim(_ context.Context, _ *environment, req signalRequest, _ []byte) (any, []byte, error) {
	sent, pid := 0, os.Getpid()
	for end := time.Now().Add(time.Duration(req.Milliseconds) * time.Millisecond); time.Now().Before(end); {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return nil, nil, err
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err == nil && tid != pid && unix.Tgkill(pid, tid, unix.Signal(req.Signal)) == nil {
				sent++
			}
		}
	}
	return struct {
		Sent int `json:"sent"`
	}{sent}, nil, nil
}

// sbx_test_action tells what the process does on a signal.
//
//export sbx_test_action
func sbx_test_action(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testAction)
}

func testAction(_ context.Context, _ *environment, req signalRequest, _ []byte) (any, []byte, error) {
	// The kernel's struct sigaction of 64-bit machines.
	var action struct {
		handler  uintptr
		flags    uint64
		restorer uintptr
		mask     uint64
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(req.Signal), 0,
		uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
	if errno != 0 {
		return nil, nil, errno
	}
	const onStack = 0x08000000 // SA_ONSTACK
	return struct {
		Handled bool `json:"handled"`
		OnStack bool `json:"onStack"`
	}{action.handler > 1, action.flags&onStack != 0}, nil, nil
}

type panicRequest struct {
	Where string `json:"where"`
}

// sbx_test_panic panics in the export itself ("export") or in the goroutine that
// answers ("goroutine").
//
//export sbx_test_panic
func sbx_test_panic(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	req, _ := decode[panicRequest](copyIn(unsafe.Pointer(json), jsonLen))
	if req.Where == "export" {
		e := findEnvironment(uint64(env))
		if _, _, err := protect(func() (any, []byte, error) { panic("on purpose") }); err != nil {
			e.reply(uint64(call), nil, nil, err)
		}
		return
	}
	handle(env, call, json, jsonLen, data, dataLen, testPanic)
}

func testPanic(context.Context, *environment, panicRequest, []byte) (any, []byte, error) {
	var nowhere *panicRequest
	return nowhere.Where, nil, nil
}

type testSpawnRequest struct {
	Argv   []string `json:"argv"`
	Stdout string   `json:"stdout"`
	Wait   bool     `json:"wait"`
}

// sbx_test_spawn starts a program by the launcher.
//
//export sbx_test_spawn
func sbx_test_spawn(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testSpawn)
}

func testSpawn(ctx context.Context, _ *environment, req testSpawnRequest, _ []byte) (any, []byte, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	out := null
	if req.Stdout != "" {
		if out, err = os.OpenFile(req.Stdout, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return nil, nil, errors.Join(err, null.Close())
		}
		defer out.Close()
	}
	defer null.Close()
	child, err := supervise.Default().Start(supervise.Exec{
		Path: req.Argv[0], Argv: req.Argv, Files: []*os.File{null, out, null},
	})
	if err != nil {
		return nil, nil, err
	}
	type reply struct {
		Pid      int `json:"pid"`
		ExitCode int `json:"exitCode"`
	}
	if !req.Wait {
		return reply{Pid: child.Pid}, nil, nil
	}
	status, err := child.Wait(ctx)
	return reply{child.Pid, status.ExitStatus()}, nil, err
}

type repliesRequest struct {
	Count int `json:"count"`
	Bytes int `json:"bytes"`
}

// sbx_test_replies sends Count events, each the reply to nobody, with Bytes of
// data, and then its reply.
//
//export sbx_test_replies
func sbx_test_replies(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testReplies)
}

func testReplies(ctx context.Context, e *environment, req repliesRequest, _ []byte) (any, []byte, error) {
	blob := make([]byte, req.Bytes)
	for range req.Count {
		if ctx.Err() != nil && brokenRule == "" {
			return nil, nil, ctx.Err()
		}
		e.reply(0, nil, blob, nil)
	}
	return nil, blob, nil
}

type echoRequest struct {
	Text string `json:"text"`
}

// sbx_test_echo answers with what it was sent.
//
//export sbx_test_echo
func sbx_test_echo(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testEcho)
}

func testEcho(_ context.Context, _ *environment, req echoRequest, data []byte) (any, []byte, error) {
	return req, data, nil
}

// sbx_test_census counts what Go has: goroutines, and the bytes of living objects.
//
//export sbx_test_census
func sbx_test_census(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, testCensus)
}

func testCensus(context.Context, *environment, struct{}, []byte) (any, []byte, error) {
	var memory goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&memory)
	return struct {
		Goroutines int    `json:"goroutines"`
		HeapBytes  uint64 `json:"goHeapBytes"`
		// HeldBytes is what Go has from the kernel, used or not.
		HeldBytes uint64 `json:"goHeldBytes"`
	}{goruntime.NumGoroutine(), memory.HeapAlloc, memory.Sys - memory.HeapReleased}, nil, nil
}
