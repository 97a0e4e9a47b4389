//go:build !sbxbreak

package supervise

// holds reports whether a rule is kept. Only test builds can switch one off, to
// see the test that guards it fail.
func holds(string) bool { return true }

// bwrapEnvironment is empty: bwrap is process 1 for a moment, and shows its
// environment to the sandbox (rule init3).
func bwrapEnvironment() []string { return nil }
