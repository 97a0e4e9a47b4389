package prune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/store"
)

func TestPlan(t *testing.T) {
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	tagged := map[string]string{"kind": "tool-session"}
	entries := []store.Entry{
		{ID: "old", LastUsedAt: now.Add(-8 * day)},
		{ID: "old tagged", LastUsedAt: now.Add(-8 * day), Tags: tagged},
		{ID: "just due", LastUsedAt: now.Add(-7 * day), Tags: tagged},
		{ID: "fresh tagged", LastUsedAt: now.Add(-6 * day), Tags: tagged},
		{ID: "otherwise tagged", LastUsedAt: now.Add(-8 * day), Tags: map[string]string{"kind": "x"}},
	}
	for name, tc := range map[string]struct {
		policy Policy
		want   []string
	}{
		"by tag and age": {Policy{"kind", "tool-session", 7 * day}, []string{"old tagged", "just due"}},
		"by age":         {Policy{MaxAge: 7 * day}, []string{"old", "old tagged", "just due", "otherwise tagged"}},
		"all of a tag":   {Policy{Tag: "kind", Value: "x"}, []string{"otherwise tagged"}},
		"no such tag":    {Policy{Tag: "other", Value: ""}, []string{"old", "old tagged", "just due", "fresh tagged", "otherwise tagged"}},
		"none":           {Policy{MaxAge: 9 * day}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Plan(entries, tc.policy, now)) })
	}
}

func TestApply(t *testing.T) {
	st, err := store.Open(t.TempDir())
	require.NoError(t, err)
	open := func(key string, tags map[string]string) *store.Workspace {
		ws, err := st.OpenSession(t.Context(), key, store.NewSession{Tags: tags})
		require.NoError(t, err)
		t.Cleanup(func() { _ = ws.Close() })
		return ws
	}
	tagged := map[string]string{"kind": "tool-session"}
	idle, busy, other := open("idle", tagged), open("busy", tagged), open("other", nil)
	lease, err := busy.AcquireLease(t.Context())
	require.NoError(t, err)

	policy := Policy{Tag: "kind", Value: "tool-session", MaxAge: time.Hour}
	result, err := Apply(t.Context(), st, policy)
	require.NoError(t, err)
	require.Zero(t, result, "nothing is old enough")

	policy.MaxAge = 0
	result, err = Apply(t.Context(), st, policy)
	require.NoError(t, err)
	require.Equal(t, Result{Removed: 1, InUse: 1}, result)
	require.Error(t, idle.Check())
	require.NoError(t, busy.Check())
	require.NoError(t, other.Check())

	require.NoError(t, lease.Release())
	result, err = Apply(t.Context(), st, policy)
	require.NoError(t, err)
	require.Equal(t, Result{Removed: 1}, result)
}
