package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evelandhq/sandbox-bwrap/core/bwrap"
	"github.com/evelandhq/sandbox-bwrap/core/doctor"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/feature"
)

// Bwrap is a bwrap that can be run.
type Bwrap struct {
	// Path is absolute.
	Path string
	// Features are its options.
	Features feature.Bwrap
}

// probeTimeout bounds an availability probe, the wait for `bwrap --help` included.
const probeTimeout = 5 * time.Second

// identity tells one installed program from the next that is put in its place.
type identity struct {
	path     string
	dev, ino uint64
	size     int64
	changed  unix.Timespec
}

// known has what was found out about programs; only what is certain.
var known struct {
	// mu guards the fields below it.
	mu       sync.Mutex
	features map[identity]feature.Bwrap
	builds   map[identity]bool
}

func identify(path string) (identity, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return identity{}, false
	}
	return identity{path, uint64(st.Dev), st.Ino, st.Size, st.Ctim}, true
}

// FindBwrap finds bwrap and its options: name is absolute, or looked up in the
// given value of PATH; empty means "bwrap". A nil launcher means Default.
//
// Errors: Unavailable with a remedy.
func FindBwrap(ctx context.Context, l *Launcher, name, path string) (Bwrap, error) {
	if name == "" {
		name = "bwrap"
	}
	failed := facts(Config{Bwrap: Bwrap{Path: name}})
	abs, err := feature.Lookup(name, path)
	if err != nil {
		failed.LookupErr = err
		return Bwrap{}, setupFailed(failed, err)
	}
	id, identified := identify(abs)
	if identified {
		known.mu.Lock()
		features, ok := known.features[id]
		known.mu.Unlock()
		if ok {
			return Bwrap{abs, features}, nil
		}
	}
	help, err := output(ctx, l, Exec{Path: abs, Argv: []string{"bwrap", "--help"}, Dir: "/"})
	if err != nil {
		if ctx.Err() != nil {
			return Bwrap{}, aborted(ctx, "start")
		}
		failed.StartErr = err
		return Bwrap{}, setupFailed(failed, err)
	}
	features := feature.ParseHelp(help)
	if identified && features.Args != feature.Unknown {
		known.mu.Lock()
		if known.features == nil {
			known.features = map[identity]feature.Bwrap{}
		}
		known.features[id] = features
		known.mu.Unlock()
	}
	return Bwrap{abs, features}, nil
}

// output runs a program to its end and returns what it writes on both streams.
func output(ctx context.Context, l *Launcher, exec Exec) (string, error) {
	if l == nil {
		l = Default()
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = null.Close() }()
	reader, writer, err := pipe()
	if err != nil {
		return "", err
	}
	exec.Files = []*os.File{null, writer, writer}
	child, err := l.Start(exec)
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return "", err
	}
	out := newCapture(reader)
	if _, err := child.Wait(ctx); err != nil {
		_ = child.Kill()
		<-child.Done()
		return "", err
	}
	return out.text(), nil
}

// Probe tells whether this host can build a sandbox, by building one, within 5
// seconds. No findings mean that it can; that answer, and no other, is
// remembered for the program found. An error means that it could not be told.
func Probe(ctx context.Context, l *Launcher, name, path string, image *os.File) ([]doctor.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	found, err := FindBwrap(ctx, l, name, path)
	if err != nil {
		return findings(err)
	}
	id, identified := identify(found.Path)
	known.mu.Lock()
	builds := known.builds[id]
	known.mu.Unlock()
	if identified && builds {
		return nil, nil
	}
	host, err := bwrap.Survey(bwrap.Request{Path: path})
	if err != nil {
		return nil, err
	}
	g, err := Start(ctx, Config{
		Launcher: l, Bwrap: found, Image: image, HelloTimeout: probeTimeout,
		Spec: bwrap.Spec{Host: host, Identity: bwrap.Identity{UID: os.Geteuid(), GID: os.Getegid()}},
	})
	if err != nil {
		return findings(err)
	}
	if err := g.Stop(ctx); err != nil {
		return nil, err
	}
	if identified {
		known.mu.Lock()
		if known.builds == nil {
			known.builds = map[identity]bool{}
		}
		known.builds[id] = true
		known.mu.Unlock()
	}
	return nil, nil
}

// setupError is the error of a start that failed, with all findings.
type setupError struct {
	err      *errdefs.Error
	findings []doctor.Finding
}

// Error implements error.
func (e *setupError) Error() string { return e.err.Error() }

// Unwrap returns the error that callers know.
func (e *setupError) Unwrap() error { return e.err }

// findings returns what a failed start has found out about the host.
func findings(err error) ([]doctor.Finding, error) {
	var setup *setupError
	if errors.As(err, &setup) {
		return setup.findings, nil
	}
	return nil, err
}

func setupFailed(facts doctor.Facts, cause error) error {
	list := doctor.Diagnose(facts)
	return &setupError{doctor.Error(list, cause), list}
}

// startFailed is the error when not even bwrap could be started.
func startFailed(cfg Config, err error) error {
	for _, busy := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, busy) {
			return &errdefs.Error{Code: errdefs.Busy, Op: "start", Msg: "the host has no room for another process: " + busy.Error(), Err: err}
		}
	}
	f := facts(cfg)
	f.StartErr = err
	return setupFailed(f, err)
}

func facts(cfg Config) doctor.Facts {
	return doctor.Facts{OS: runtime.GOOS, UID: os.Geteuid(), BwrapPath: cfg.Bwrap.Path, Bwrap: cfg.Bwrap.Features}
}

// diagnose finds out why a sandbox did not come up. bwrap's words are evidence
// for a person; what is concluded comes from asking the host.
func diagnose(cfg Config, stderr string, cause error) error {
	f := facts(cfg)
	f.Userns = feature.ReadUserns()
	f.TriedUserns, f.TryErr = true, cfg.Launcher.tryUserns()
	f.MayMapRoot = feature.HasCapability(feature.CapSetfcap)
	f.Stderr = stderr
	if stderr != "" {
		cause = fmt.Errorf("%w: %s", cause, stderr)
	}
	return setupFailed(f, cause)
}
