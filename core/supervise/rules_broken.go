//go:build sbxbreak

package supervise

import (
	"os"
	"strings"
)

// broken names the rules to break, separated by commas; set by the linker.
var broken string

func holds(rule string) bool {
	for b := range strings.SplitSeq(broken, ",") {
		if b == rule {
			return false
		}
	}
	return true
}

func bwrapEnvironment() []string {
	if !holds("init3") {
		return os.Environ()
	}
	return nil
}
