//go:build !sbxbreak

package initproc

// holds tells whether a safety rule is kept. In every program that is shipped
// it is, and the compiler drops the question; see rules_broken.go.
func holds(string) bool { return true }
