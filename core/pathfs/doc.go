// Package pathfs reads, replaces and removes files of a workspace by the paths
// that mean them inside the sandbox, while the sandbox may be changing the tree.
//
// A path under the mount point is resolved by the kernel from the workspace's
// directory descriptor, with openat2 and RESOLVE_BENEATH, or component by
// component where openat2 is missing. Whatever leaves the workspace on the way (an
// absolute link, ".." beyond the root, any other absolute path) is given to an
// [Opener], which resolves it as the sandbox would. No path is ever checked
// first and used afterwards, and no message holds a host path.
//
// Only regular files are opened, and nothing here waits for another process: a
// FIFO, a device or a socket is refused. New content goes into a temporary file
// beside the old and is renamed over it. So
//   - replacing a file needs the right to write its directory, not the file:
//     a file of mode 0444 is replaced, as rename allows it;
//   - the mode of a replaced file is kept, its owner where the process may give
//     files away, and its other hard links keep the old content;
//   - the content survives the end of this process, but not a power failure.
//
// pathfs does not know sessions or generations; [Tree.Check] tells it whether
// its root still is what the caller means.
package pathfs
