package main

/*
#include <stdlib.h>
#include <string.h>
#include "sandbox.h"

// Go cannot call a C function pointer.
static inline void sbx_call_reply(sbx_reply_fn reply, void *context, uint64_t call, char *json,
                                  size_t json_len, void *data, size_t data_len) {
  reply(context, call, json, json_len, data, data_len);
}
*/
import "C"

import (
	"context"
	"sync"
	"unsafe"
)

// The header is included above every export, so that a prototype that differs
// from the contract does not compile.

// versionText is the version as C wants it; never freed.
var versionText = sync.OnceValue(func() *C.char { return C.CString(version) })

//export sbx_version
func sbx_version() C.sbx_json { return versionText() }

//export sbx_env_open
func sbx_env_open(reply C.sbx_reply_fn, callerContext unsafe.Pointer) C.uint64_t {
	if reply == nil {
		return 0
	}
	return C.uint64_t(openEnvironment(func(call uint64, json, data []byte) {
		blob := unsafe.Pointer(unsafe.SliceData(data))
		C.sbx_call_reply(reply, callerContext, C.uint64_t(call), copyOut(json), C.size_t(len(json)), blob, C.size_t(len(data)))
	}).id)
}

//export sbx_env_close
func sbx_env_close(env C.uint64_t) {
	_, _, _ = protect(func() (any, []byte, error) {
		closeEnvironment(uint64(env))
		return nil, nil, nil
	})
}

type cancelRequest struct {
	Target uint64 `json:"target"`
}

//export sbx_cancel
func sbx_cancel(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, cancelCall)
}

func cancelCall(_ context.Context, e *environment, req cancelRequest, _ []byte) (any, []byte, error) {
	e.cancel(req.Target)
	return nil, nil, nil
}

// handle is the body of every exported request: it copies the request, has f
// answer it, and returns at once. A request to an environment that is not open
// has nobody to be answered to and is dropped.
func handle[Req any](env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t, f request[Req]) {
	e := findEnvironment(uint64(env))
	if e == nil {
		return
	}
	_, _, err := protect(func() (any, []byte, error) {
		body := copyIn(unsafe.Pointer(json), jsonLen)
		serve(e, uint64(call), body, copyIn(unsafe.Pointer(data), dataLen), f)
		return nil, nil, nil
	})
	if err != nil {
		e.reply(uint64(call), nil, nil, err)
	}
}

// ask answers a request on the caller's thread. The result is malloc'ed and its
// length goes to outLen, which may be nil.
func ask[Req any](json C.sbx_json, jsonLen C.size_t, outLen *C.size_t, f func(req Req) (any, error)) *C.char {
	members, _, err := protect(func() (any, []byte, error) {
		req, err := decode[Req](copyIn(unsafe.Pointer(json), jsonLen))
		if err != nil {
			return nil, nil, err
		}
		members, err := f(req)
		return members, nil, err
	})
	body := encode(members, err)
	if outLen != nil {
		*outLen = C.size_t(len(body))
	}
	return copyOut(body)
}

// copyIn returns a copy of the caller's memory, nil when there is none. C.GoBytes
// would not do: its length is an int.
func copyIn(from unsafe.Pointer, length C.size_t) []byte {
	if from == nil || length == 0 {
		return nil
	}
	return append([]byte(nil), unsafe.Slice((*byte)(from), length)...)
}

// outside is realloc over slices, with size 0 for free and nil for what is not
// there: a [supervise.Memory] that sbx_free takes. A large block grows there
// without being copied.
func outside(old []byte, size int) []byte {
	block := unsafe.Pointer(unsafe.SliceData(old))
	if size == 0 {
		C.free(block)
		return nil
	}
	if block = C.realloc(block, C.size_t(size)); block == nil {
		panic("out of memory") //permit:panic its callers are under protect or errdefs.Recover
	}
	return unsafe.Slice((*byte)(block), size)
}

// copyOut returns a malloc'ed copy with a terminating NUL.
func copyOut(text []byte) *C.char {
	out := C.malloc(C.size_t(len(text) + 1))
	copied := unsafe.Slice((*byte)(out), len(text)+1)
	copy(copied, text)
	copied[len(text)] = 0
	return (*C.char)(out)
}
