//go:build linux

// The program sets the number of its processors itself; the runtime would keep
// files of the cgroup open to follow them.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// sandbox-init is the program inside a sandbox; see package initproc. It is
// started by bwrap as process 1 and of no use by hand.
package main

import (
	"os"

	"github.com/evelandhq/sandbox-bwrap/core/initproc"
)

func init() { initproc.LockMain() }

func main() { os.Exit(initproc.Main(os.Args)) }
