package errdefs_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestAbort(t *testing.T) {
	for name, tc := range map[string]struct {
		cause error
		want  errdefs.Code
		says  string
	}{
		"the caller's reason": {errors.New("enough"), errdefs.Aborted, "read: /workspace/f: aborted by the caller"},
		"none given":          {nil, errdefs.Aborted, "read: /workspace/f: aborted by the caller"},
		"one of our limits":   {errdefs.New(errdefs.Timeout, "run", "too long"), errdefs.Timeout, "run: too long"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(tc.cause)
			err := errdefs.Abort(ctx, "read", "/workspace/f")
			require.Equal(t, tc.want, errdefs.CodeOf(err))
			require.EqualError(t, err, tc.says)
			require.ErrorIs(t, err, context.Cause(ctx))
		})
	}
}

// A number that the kernel does not know may come from a process in a sandbox.
func TestFile_ErrnoWithoutAName(t *testing.T) {
	for errno, want := range map[syscall.Errno]errdefs.Code{syscall.ENOENT: "ENOENT", 4000: errdefs.Internal, 0: errdefs.Internal} {
		require.Equal(t, want, errdefs.CodeOf(errdefs.File("open", "/f", errno)))
		require.Equal(t, want, errdefs.CodeOf(errno))
	}
}
