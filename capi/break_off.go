//go:build !sbxbreak

package main

// brokenRule names the rule that this build breaks on purpose: none. Builds with
// the tag sbxbreak show that the tests of the rules notice.
const brokenRule = ""
