package core

import (
	"context"
	"errors"
	"os"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/doctor"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/image"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
	"github.com/evelandhq/sandbox-bwrap/core/store"
	"github.com/evelandhq/sandbox-bwrap/core/supervise"
)

// startTries is how often a sandbox is started that bwrap gives up to build: it
// stumbles over what was to be hidden and has vanished since the host was surveyed.
// What lasts fails as often, within milliseconds.
const startTries = 4

// startBox starts a sandbox on a workspace.
func startBox(ctx context.Context, sandbox spec.Sandbox, ws *store.Workspace) (*supervise.Generation, error) {
	program, err := supervise.FindBwrap(ctx, nil, sandbox.BwrapPath, sandbox.Path)
	if err != nil {
		return nil, err
	}
	initImage, err := image.Open()
	if err != nil {
		return nil, err
	}
	private := []string{sandbox.CacheDir}
	if sandbox.AppRoot != "" {
		private = append(private, sandbox.AppRoot)
	}
	survey := func() (bwrap.Host, error) {
		return bwrap.Survey(bwrap.Request{
			Hide: sandbox.HidePaths, Private: private,
			NodePath: sandbox.NodePath, Path: sandbox.Path,
		})
	}
	host, err := survey()
	if err != nil {
		return nil, err
	}
	var home store.Home
	if sandbox.SeparateHome() {
		if home, err = ws.OpenHome(ctx); err != nil {
			return nil, err
		}
		defer func() { _ = home.Dir.Close() }()
	}
	for try := 1; ; try++ {
		box, err := supervise.Start(ctx, supervise.Config{
			Bwrap: program, Image: initImage, Workspace: ws.Dir(), Home: home.Dir,
			Spec: bwrap.Spec{
				Host:      host,
				Identity:  bwrap.Identity{UID: os.Geteuid(), GID: os.Getegid()},
				Workspace: bwrap.Dir{Path: ws.Path()},
				Home:      bwrap.Dir{Path: home.Path},
				HomePath:  sandbox.HomePath(),
			},
		})
		if !errors.Is(err, supervise.ErrExited) || try == startTries {
			return box, err
		}
		if host, err = survey(); err != nil {
			return nil, err
		}
	}
}

// Probe tells whether this host can build a sandbox, by building one, within 5
// seconds. No findings mean that it can. bwrapPath is absolute or a name looked
// up in path, a value of PATH; empty means "bwrap".
func Probe(ctx context.Context, bwrapPath, path string) []doctor.Finding {
	initImage, err := image.Open()
	if err == nil {
		var findings []doctor.Finding
		if findings, err = supervise.Probe(ctx, nil, bwrapPath, path, initImage); err == nil {
			return findings
		}
	}
	return []doctor.Finding{doctor.Unexplained(err)}
}
