package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/treecopy"
)

func TestBeginTemplate_BuiltOnce(t *testing.T) {
	s := open(t)
	var built, reused atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			st, again, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
			if err != nil {
				t.Errorf("begin: %v", err)
				return
			}
			if again {
				reused.Add(1)
				return
			}
			built.Add(1)
			if err := os.WriteFile(filepath.Join(st.Workspace().Path(), "f"), []byte("f"), 0o600); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := st.Publish(t.Context()); err != nil {
				t.Errorf("publish: %v", err)
			}
		})
	}
	all.Wait()
	require.Equal(t, []int64{1, 7}, []int64{built.Load(), reused.Load()})
	require.FileExists(t, filepath.Join(s.path(KindTemplate, TemplateID(TemplateRef{Key: "t"})), "f"))
}

func TestBeginTemplate_DiscardLetsTheNextOneBuild(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	require.NoError(t, err)
	type answer struct {
		st     *Staging
		reused bool
		err    error
	}
	second := make(chan answer, 1)
	go func() {
		st, reused, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
		second <- answer{st, reused, err}
	}()
	other, reused, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "another"}, nil)
	require.NoError(t, err, "another key does not wait")
	require.False(t, reused)
	require.NoError(t, other.Discard())

	require.NoError(t, os.WriteFile(filepath.Join(st.Workspace().Path(), "half"), nil, 0o600))
	require.NoError(t, st.Discard())
	require.NoError(t, st.Discard())
	requireCode(t, s, st.Publish(t.Context()), errdefs.Closed)
	got := <-second
	require.NoError(t, got.err)
	require.False(t, got.reused)
	require.NoFileExists(t, filepath.Join(got.st.Workspace().Path(), "half"))
	require.NoError(t, got.st.Publish(t.Context()))
	require.NoError(t, got.st.Publish(t.Context()))
	require.NoError(t, got.st.Discard())
	require.DirExists(t, s.path(KindTemplate, TemplateID(TemplateRef{Key: "t"})))
}

func TestBeginTemplate_Aborted(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	_, _, err = s.BeginTemplate(ctx, TemplateRef{Key: "t"}, nil)
	requireCode(t, s, err, errdefs.Aborted)
	require.ErrorIs(t, err, reason)
	requireCode(t, s, st.Publish(ctx), errdefs.Aborted)
	require.NoError(t, st.Discard())
	_, _, err = s.BeginTemplate(t.Context(), TemplateRef{Key: ""}, nil)
	requireCode(t, s, err, errdefs.InvalidArgument)
}

func TestStaging_Workspace(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	require.NoError(t, err)
	ws := st.Workspace()
	require.NoError(t, ws.Check())
	require.Equal(t, treecopy.Empty, ws.Strategy())
	require.NoError(t, ws.SetNetworkPolicy("deny-all"))
	require.Equal(t, "deny-all", ws.NetworkPolicy())
	ws.Touch()
	held, err := ws.AcquireLease(t.Context())
	require.NoError(t, err)
	require.NoError(t, held.Release())
	require.NoError(t, st.Publish(t.Context()))
	requireCode(t, s, ws.Check(), errdefs.Closed)
	require.Empty(t, metadata(t, s, KindTemplate, TemplateID(TemplateRef{Key: "t"})).NetworkPolicy)
}

func TestStaging_TakenAway(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(st.Workspace().Path()))
	requireCode(t, s, st.Publish(t.Context()), errdefs.SessionGone)
	require.NoError(t, st.Discard())
	makeTemplate(t, s, "t", nil)
}

func TestPublish_LosingARaceIsSuccess(t *testing.T) {
	s := open(t)
	st, _, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
	require.NoError(t, err)
	// One that does not know of the key.
	theirs := s.path(KindTemplate, TemplateID(TemplateRef{Key: "t"}))
	require.NoError(t, os.Mkdir(theirs, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "theirs"), nil, 0o600))
	require.NoError(t, st.Publish(t.Context()))
	require.FileExists(t, filepath.Join(theirs, "theirs"))
}
