package main

// #include "sandbox.h"
import "C"

// Every export has the one signature of SBX_REQUEST and the one body: what a
// request means is the matter of its Go function.

//export sbx_prewarm_begin
func sbx_prewarm_begin(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, prewarmBegin)
}

//export sbx_prewarm_commit
func sbx_prewarm_commit(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, prewarmCommit)
}

//export sbx_prewarm_abort
func sbx_prewarm_abort(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, prewarmAbort)
}

//export sbx_create
func sbx_create(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, create)
}

//export sbx_session_policy
func sbx_session_policy(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, sessionPolicy)
}

//export sbx_session_stop
func sbx_session_stop(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, sessionStop)
}

//export sbx_session_close
func sbx_session_close(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, sessionClose)
}

//export sbx_session_delete
func sbx_session_delete(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, sessionDelete)
}

//export sbx_run
func sbx_run(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, run)
}

//export sbx_spawn
func sbx_spawn(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, spawn)
}

//export sbx_process_read
func sbx_process_read(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processRead)
}

//export sbx_process_discard
func sbx_process_discard(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processDiscard)
}

//export sbx_process_keep
func sbx_process_keep(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processKeep)
}

//export sbx_process_write
func sbx_process_write(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processWrite)
}

//export sbx_process_end
func sbx_process_end(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processEnd)
}

//export sbx_process_resize
func sbx_process_resize(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processResize)
}

//export sbx_process_wait
func sbx_process_wait(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processWait)
}

//export sbx_process_kill
func sbx_process_kill(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processKill)
}

//export sbx_process_release
func sbx_process_release(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, processRelease)
}

//export sbx_file_read
func sbx_file_read(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileRead)
}

//export sbx_file_open
func sbx_file_open(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileOpen)
}

//export sbx_file_next
func sbx_file_next(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileNext)
}

//export sbx_file_write
func sbx_file_write(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileWrite)
}

//export sbx_file_create
func sbx_file_create(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileCreate)
}

//export sbx_file_append
func sbx_file_append(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileAppend)
}

//export sbx_file_commit
func sbx_file_commit(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileCommit)
}

//export sbx_file_close
func sbx_file_close(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileClose)
}

//export sbx_file_remove
func sbx_file_remove(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, fileRemove)
}

//export sbx_cache_prune
func sbx_cache_prune(env, call C.uint64_t, json C.sbx_json, jsonLen C.size_t, data C.sbx_bytes, dataLen C.size_t) {
	handle(env, call, json, jsonLen, data, dataLen, cachePrune)
}

//export sbx_probe
func sbx_probe(json C.sbx_json, jsonLen C.size_t, outLen *C.size_t) *C.char {
	return ask(json, jsonLen, outLen, probe)
}
