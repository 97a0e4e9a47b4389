// Package linux wraps the kernel calls that the packages above make on
// directories and files, each once: interrupted calls are repeated, every
// descriptor is opened with O_CLOEXEC, and a failure is an *os.PathError that
// holds the name as it was passed, relative to a descriptor. A host path gets
// into a message only if the caller passed one.
//
// What belongs here: one function per call, plus what is needed to read its
// result (directory entries). What does not: loops that decide something,
// fall-backs from one call to another, and anything that knows what a session is.
//
// Descriptors are plain integers that the caller closes. [Hold] turns an
// *os.File into one for as long as a function runs, during which no Close can
// give the number to another file.
package linux
