package core

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

func TestStart_OnAHostThatChanges(t *testing.T) {
	dir, err := os.MkdirTemp("/opt", "sbx-test-")
	if err != nil {
		t.Skip("needs to write below /opt")
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	hidden := filepath.Join(dir, "hidden")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for there := false; ; there = !there {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if there {
				_ = os.Remove(hidden)
			} else {
				_ = os.WriteFile(hidden, []byte("secret"), 0o644)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()

	c := new(Runtime).NewClient()
	defer c.Close()
	h, err := c.Create(t.Context(), CreateRequest{
		Sandbox: spec.Sandbox{
			CacheDir: t.TempDir(), Path: os.Getenv("PATH"), HidePaths: []string{hidden}, Processes: spec.OfCommand,
		},
		SessionKey: "s", NetworkPolicy: spec.DenyAll,
	})
	require.NoError(t, err)
	for range 30 {
		_, err := h.Run(t.Context(), spec.Command{Command: "true"}, spec.Limits{})
		require.NoError(t, err)
	}
}
