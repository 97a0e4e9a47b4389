//go:build linux

package initproc

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process names itself, and init reads that name in /proc to find out whom it
// is to kill: no name may change what is read behind it.
func FuzzParseStat(f *testing.F) {
	f.Fuzz(func(t *testing.T, content []byte, name string, session int, started uint64) {
		_, _ = parseStat(content) // whatever it is, without a panic

		const stat = "42 (%s) S 1 42 %d 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 18446744073709551615 0\n"
		got, err := parseStat(fmt.Appendf(nil, stat, name, session, started))
		require.NoError(t, err)
		require.Equal(t, taskStat{session: session, started: started}, got)
	})
}
