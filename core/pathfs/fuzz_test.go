package pathfs

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// The kernel and the walk by components answer the same, whatever the path is.
func FuzzTree_ResolversAgree(f *testing.F) {
	for _, tc := range readCases {
		f.Add(tc.path)
	}
	for _, tc := range writeCases {
		f.Add(tc.path)
	}
	f.Add("to-d-e/./..//../in")
	f.Add("/workspace/./to-d-e/../../d/../.../x")
	w := fuzzWorld(f)
	f.Fuzz(func(t *testing.T, path string) {
		kernel, walk := *w.Tree, *w.Tree
		kernel.Opener, walk.Opener = nil, nil
		walk.noOpenat2 = true
		content, code := read(t, &kernel, path)
		content2, code2 := read(t, &walk, path)
		require.Equal(t, code, code2, "%q", path)
		require.Equal(t, content, content2, "%q", path)
		require.NotEqual(t, "sandbox\n", content, "read outside: %q", path)

		p, err := kernel.locate(path)
		if err != nil {
			return
		}
		if p.rel != "" {
			require.NotEqual(t, byte('/'), p.rel[0], "%q", path)
		}
		require.True(t, strings.HasPrefix(p.abs, "/"), "%q", path)
	})
}

func read(t *testing.T, tree *Tree, path string) (string, errdefs.Code) {
	t.Helper()
	f, err := tree.Open(t.Context(), path)
	if err != nil {
		return "", errdefs.CodeOf(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	require.NoError(t, err)
	return string(data), ""
}

// fuzzWorld is the tree of the read cases, without its socket: binding one
// changes the working directory, which a fuzz target may not.
func fuzzWorld(f *testing.F) *world {
	var entries []string
	for _, entry := range readTree {
		if !strings.HasPrefix(entry, "socket ") {
			entries = append(entries, entry)
		}
	}
	return buildWorld(f, entries...)
}

// BenchmarkTree compares a small write and read with what the kernel alone takes.
func BenchmarkTree(b *testing.B) {
	w := buildWorld(b)
	data := make([]byte, 1024)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, w.WriteFile(b.Context(), "f", data))
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			f, err := w.Open(b.Context(), "f")
			require.NoError(b, err)
			_, err = io.ReadFull(f, data)
			require.NoError(b, err)
			require.NoError(b, f.Close())
		}
	})
	b.Run("stat", func(b *testing.B) {
		var st unix.Stat_t
		for b.Loop() {
			require.NoError(b, unix.Stat(w.host("/workspace/f"), &st))
		}
	})
}
