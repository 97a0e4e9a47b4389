//go:build sbxbreak

package initproc

// broken names the one rule that this build breaks on purpose, so that a test
// can prove that it would notice: -ldflags "-X …/core/initproc.broken=init1".
var broken string

// holds tells whether a safety rule is kept.
func holds(rule string) bool { return rule != broken }
