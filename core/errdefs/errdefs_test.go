package errdefs_test

import (
	"context"
	"errors"
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
