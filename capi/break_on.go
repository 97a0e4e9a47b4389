//go:build sbxbreak

package main

// brokenRule names the rule that this build breaks on purpose, and is set by
// -X main.brokenRule. Such a build exists only to show that a test fails.
var brokenRule = ""
