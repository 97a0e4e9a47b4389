// Package main is the C face of the core, built as libsandbox.so.
//
// sandbox.h is its contract. What belongs here: environments, handles, the JSON
// of requests and replies, and the barrier that keeps a panic from ending the
// process that loaded us. What does not: system calls and decisions, which are
// the core's.
//
// Nothing here or below may write to descriptor 1 or 2: they belong to the
// process that loaded us, and writing to a broken one ends it with SIGPIPE.
package main

// version is set by the build.
var version = "0.0.0"

// main is never run in a shared library, but the build mode asks for it.
func main() {}
