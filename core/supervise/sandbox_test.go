package supervise

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/image"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

const testPath = "/usr/local/bin:/usr/bin:/bin"

// config is for a sandbox whose workspace is dir; empty gives it none.
func config(t testing.TB, dir string, ask bwrap.Request) Config {
	t.Helper()
	found, err := FindBwrap(t.Context(), nil, "", testPath)
	require.NoError(t, err)
	ask.Path = testPath
	host, err := bwrap.Survey(ask)
	require.NoError(t, err)
	program, err := image.Open()
	require.NoError(t, err)
	cfg := Config{
		Bwrap: found, Image: program,
		Spec: bwrap.Spec{Host: host, Identity: bwrap.Identity{UID: os.Geteuid(), GID: os.Getegid()}},
	}
	if dir != "" {
		cfg.Spec.Workspace.Path = dir
		f, err := os.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		cfg.Workspace = f
	}
	return cfg
}

// sandbox starts one that the test's end stops.
func sandbox(t testing.TB) (g *Generation, workspace string) {
	t.Helper()
	workspace = t.TempDir()
	return start(t, config(t, workspace, bwrap.Request{})), workspace
}

func start(t testing.TB, cfg Config) *Generation {
	t.Helper()
	g, err := Start(t.Context(), cfg)
	if err != nil {
		require.NoError(t, err, "%s", errdefs.Marshal(err))
	}
	t.Cleanup(func() { stop(t, g) })
	return g
}

func stop(t testing.TB, g *Generation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, g.Stop(ctx))
}

func bash(script string) Command {
	return Command{
		Argv: []string{"/bin/bash", "-c", script}, Dir: bwrap.Workspace,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/workspace"},
	}
}

// must runs a script and returns its output, which must be a success.
func must(t testing.TB, g *Generation, script string) string {
	t.Helper()
	r, err := Run(t.Context(), g, bash(script), Limits{})
	require.NoError(t, err)
	require.Equal(t, 0, r.ExitCode, "%s\nstdout: %s\nstderr: %s", script, r.Stdout, r.Stderr)
	return string(r.Stdout)
}

func spawn(t testing.TB, g *Generation, cmd Command) *Process {
	t.Helper()
	p, err := g.Spawn(t.Context(), cmd)
	require.NoError(t, err)
	return p
}

// readAll reads a stream to its end.
func readAll(t testing.TB, p *Process, stream int) string {
	t.Helper()
	var out strings.Builder
	for {
		data, err := p.Read(t.Context(), stream, 64<<10)
		if err == io.EOF {
			return out.String()
		}
		require.NoError(t, err)
		out.Write(data)
	}
}

// readUntil reads until what was read has the text in it.
func readUntil(t testing.TB, p *Process, stream int, text string) string {
	t.Helper()
	var out strings.Builder
	for !strings.Contains(out.String(), text) {
		data, err := p.Read(t.Context(), stream, 64<<10)
		require.NoError(t, err, "so far: %s", out.String())
		out.Write(data)
	}
	return out.String()
}

func exitCode(t testing.TB, p *Process) int {
	t.Helper()
	exit, err := p.Wait(t.Context())
	require.NoError(t, err)
	return exit.Code
}

// fds counts this process's descriptors.
func fds(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list) - 1 // the listing's own
}

// fdList names this process's descriptors.
func fdList() string {
	var out strings.Builder
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		fmt.Fprintf(&out, "%s %s\n", e.Name(), target)
	}
	return out.String()
}

// children counts this process's children.
func children(t testing.TB) int {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	n := 0
	for _, name := range lists {
		data, _ := os.ReadFile(name)
		n += len(strings.Fields(string(data)))
	}
	return n
}

// marked counts the host's processes whose command line has the marker.
func marked(marker string) int {
	lists, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, name := range lists {
		data, _ := os.ReadFile(name)
		if strings.Contains(string(data), marker) && !strings.Contains(name, fmt.Sprintf("/%d/", os.Getpid())) {
			n++
		}
	}
	return n
}

var networkNone = wire.NetworkNone
