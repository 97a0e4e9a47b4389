package main

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core"
	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/pathfs"
	"github.com/evelandhq/sandbox-bwrap/core/prune"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

const (
	// maxBufferedRead bounds a whole-file read: the file is content that the
	// sandbox made, and a sparse one costs it nothing.
	maxBufferedRead = 1 << 30
	// maxChunk bounds one read of a stream.
	maxChunk = 4 << 20
)

// The requests, in the order of sandbox.h. Each type is the JSON of one.

type prewarmRequest struct {
	Sandbox          spec.Sandbox      `json:"sandbox"`
	TemplateKey      string            `json:"templateKey"`
	TemplateRevision string            `json:"templateRevision"`
	NetworkPolicy    spec.Network      `json:"networkPolicy"`
	Tags             map[string]string `json:"tags"`
	Events           bool              `json:"events"`
	spec.Lifetime
}

func prewarmBegin(ctx context.Context, e *environment, req prewarmRequest, _ []byte) (any, []byte, error) {
	var w watch
	h, reused, err := clientOf(e).BeginTemplate(ctx, core.PrewarmRequest{
		Sandbox: req.Sandbox, TemplateKey: req.TemplateKey, TemplateRevision: req.TemplateRevision,
		NetworkPolicy: req.NetworkPolicy, Lifetime: req.Lifetime, Tags: req.Tags, Events: w.sink(e, req.Events),
	})
	if err != nil {
		return nil, nil, err
	}
	type reply struct {
		Reused  bool   `json:"reused"`
		Session uint64 `json:"session,omitempty"`
	}
	if reused {
		return reply{Reused: true}, nil, nil
	}
	id, err := admit(ctx, e, h, &w)
	return reply{Session: id}, nil, err
}

type sessionRequest struct {
	Session uint64 `json:"session"`
}

func prewarmCommit(ctx context.Context, e *environment, req sessionRequest, _ []byte) (any, []byte, error) {
	h, err := dismiss(e, req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.CommitTemplate(ctx)
}

func prewarmAbort(ctx context.Context, e *environment, req sessionRequest, _ []byte) (any, []byte, error) {
	h, err := dismiss(e, req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.AbortTemplate(ctx)
}

type createRequest struct {
	Sandbox              spec.Sandbox      `json:"sandbox"`
	SessionKey           string            `json:"sessionKey"`
	ExistingOnly         bool              `json:"existingOnly"`
	TemplateKey          *string           `json:"templateKey"`
	TemplateRevision     string            `json:"templateRevision"`
	NetworkPolicy        spec.Network      `json:"networkPolicy"`
	InitialNetworkPolicy spec.Network      `json:"initialNetworkPolicy"`
	Tags                 map[string]string `json:"tags"`
	Events               bool              `json:"events"`
	spec.Lifetime
}

func create(ctx context.Context, e *environment, req createRequest, _ []byte) (any, []byte, error) {
	var w watch
	h, err := clientOf(e).Create(ctx, core.CreateRequest{
		Sandbox: req.Sandbox, SessionKey: req.SessionKey, ExistingOnly: req.ExistingOnly, TemplateKey: req.TemplateKey,
		TemplateRevision: req.TemplateRevision, NetworkPolicy: req.NetworkPolicy,
		InitialNetworkPolicy: req.InitialNetworkPolicy, Lifetime: req.Lifetime, Tags: req.Tags, Events: w.sink(e, req.Events),
	})
	if err != nil {
		return nil, nil, err
	}
	id, err := admit(ctx, e, h, &w)
	return struct {
		Session   uint64 `json:"session"`
		SessionID string `json:"sessionId"`
		Strategy  string `json:"strategy"`
	}{id, h.SessionID(), h.Strategy()}, nil, err
}

type policyRequest struct {
	Session       uint64       `json:"session"`
	NetworkPolicy spec.Network `json:"networkPolicy"`
}

func sessionPolicy(ctx context.Context, e *environment, req policyRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.SetNetworkPolicy(ctx, req.NetworkPolicy)
}

func sessionStop(ctx context.Context, e *environment, req sessionRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.Stop(ctx)
}

func sessionClose(ctx context.Context, e *environment, req sessionRequest, _ []byte) (any, []byte, error) {
	h, err := dismiss(e, req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.Close(ctx)
}

func sessionDelete(ctx context.Context, e *environment, req sessionRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.Delete(ctx)
}

type runRequest struct {
	Session uint64 `json:"session"`
	spec.Command
	spec.Limits
}

// ran stands beside the error, too, when a limit or an abort ended the command.
type ran struct {
	ExitCode int `json:"exitCode"`
	// StdoutLength is how much of the reply's data is stdout; the rest is stderr.
	StdoutLength int `json:"stdoutLength"`
	// StdoutBytes and StderrBytes are how much arrived; less was captured of a
	// stream that is truncated.
	StdoutBytes     int64 `json:"stdoutBytes"`
	StderrBytes     int64 `json:"stderrBytes"`
	StdoutTruncated bool  `json:"stdoutTruncated"`
	StderrTruncated bool  `json:"stderrTruncated"`
	DurationMs      int64 `json:"durationMs"`
	output
}

func (runRequest) queues() {}

func run(ctx context.Context, e *environment, req runRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	result, err := h.Run(ctx, req.Command, req.Limits)
	switch errdefs.CodeOf(err) {
	case "", errdefs.Timeout, errdefs.Aborted: // in the queue, perhaps
	default:
		if !result.Started {
			return nil, nil, err
		}
	}
	stdoutLength, stderrLength := len(result.Stdout), len(result.Stderr)
	both := outside(result.Stdout, stdoutLength+stderrLength)
	copy(both[stdoutLength:], result.Stderr)
	outside(result.Stderr, 0)
	return ran{
		ExitCode: result.ExitCode, StdoutLength: stdoutLength,
		StdoutBytes: result.StdoutTotal, StderrBytes: result.StderrTotal,
		StdoutTruncated: result.StdoutTruncated, StderrTruncated: result.StderrTruncated,
		DurationMs: result.Duration.Milliseconds(),
		output:     output{both},
	}, nil, err
}

type spawnRequest struct {
	Session uint64 `json:"session"`
	spec.Command
}

func (spawnRequest) queues() {}

func spawn(ctx context.Context, e *environment, req spawnRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	p, err := h.Spawn(ctx, req.Command)
	if err != nil {
		return nil, nil, err
	}
	// The process itself goes on when its environment ends: its sandbox decides.
	id, err := e.add(p, func(context.Context) { p.Release() })
	return struct {
		Process uint64 `json:"process"`
		Pid     int    `json:"pid"`
	}{id, p.Pid()}, nil, err
}

type streamRequest struct {
	Process  uint64 `json:"process"`
	Stream   int    `json:"stream"`
	MaxBytes int    `json:"maxBytes"`
}

// stream returns the process of a request for one of its output streams.
func (r streamRequest) stream(e *environment) (*core.Process, error) {
	if r.Stream != 1 && r.Stream != 2 {
		return nil, errdefs.Invalid("stream", "must be 1 or 2")
	}
	return lookup[*core.Process](e, "process", r.Process)
}

// part is the reply to a read of a stream or of a file.
type part struct {
	End bool `json:"end"`
}

// read is a part of a process's output.
type read struct {
	part
	output
}

func processRead(ctx context.Context, e *environment, req streamRequest, _ []byte) (any, []byte, error) {
	p, err := req.stream(e)
	if err != nil {
		return nil, nil, err
	}
	limit, err := chunk(req.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	data, err := p.Read(ctx, req.Stream, limit)
	if errors.Is(err, io.EOF) {
		return part{End: true}, nil, nil
	}
	return read{output: output{data}}, nil, err
}

// chunk is the size of a read that asks for at most n bytes.
func chunk(n int) (int, error) {
	if n < 1 {
		return 0, errdefs.Invalid("maxBytes", "must be positive")
	}
	return min(n, maxChunk), nil
}

func processDiscard(_ context.Context, e *environment, req streamRequest, _ []byte) (any, []byte, error) {
	p, err := req.stream(e)
	if err == nil {
		p.Discard(req.Stream)
	}
	return nil, nil, err
}

type processRequest struct {
	Process uint64 `json:"process"`
}

func processKeep(_ context.Context, e *environment, req processRequest, _ []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err == nil {
		p.KeepUnread()
	}
	return nil, nil, err
}

func processWrite(ctx context.Context, e *environment, req processRequest, data []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, p.Write(ctx, data)
}

func processEnd(_ context.Context, e *environment, req processRequest, _ []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, p.CloseStdin()
}

type resizeRequest struct {
	Process uint64 `json:"process"`
	spec.TerminalSize
}

func processResize(_ context.Context, e *environment, req resizeRequest, _ []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, p.Resize(req.TerminalSize)
}

func processWait(ctx context.Context, e *environment, req processRequest, _ []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		return nil, nil, err
	}
	return struct {
		ExitCode int `json:"exitCode"`
	}{code}, nil, nil
}

type killRequest struct {
	Process uint64 `json:"process"`
	Aborted bool   `json:"aborted"`
}

func processKill(ctx context.Context, e *environment, req killRequest, _ []byte) (any, []byte, error) {
	p, err := lookup[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	reason := event.ReasonKilled
	if req.Aborted {
		reason = event.ReasonAbort
	}
	return nil, nil, p.Kill(ctx, reason)
}

func processRelease(_ context.Context, e *environment, req processRequest, _ []byte) (any, []byte, error) {
	p, err := take[*core.Process](e, "process", req.Process)
	if err != nil {
		return nil, nil, err
	}
	p.Release()
	return nil, nil, nil
}

type pathRequest struct {
	Session uint64 `json:"session"`
	Path    string `json:"path"`
}

// found is the reply to the opening of a file that may not exist.
type found struct {
	Missing bool   `json:"missing"`
	File    uint64 `json:"file,omitempty"`
	Size    int64  `json:"size,omitempty"`
}

// openFile opens a file for reading; nil without an error is a missing one.
func openFile(ctx context.Context, e *environment, req pathRequest) (*os.File, int64, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, 0, err
	}
	f, err := h.OpenFile(ctx, req.Path)
	if pathfs.IsMissing(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, errdefs.File("read", req.Path, err)
	}
	return f, info.Size(), nil
}

func fileRead(ctx context.Context, e *environment, req pathRequest, _ []byte) (any, []byte, error) {
	f, size, err := openFile(ctx, e, req)
	if err != nil || f == nil {
		return found{Missing: true}, nil, err
	}
	defer f.Close()
	if size > maxBufferedRead {
		return nil, nil, tooLarge(req.Path)
	}
	// The file may grow while it is read, and in procfs-like places says 0.
	data := make([]byte, 0, size+1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF):
			return found{}, data, nil
		case err != nil:
			return nil, nil, errdefs.File("read", req.Path, err)
		case len(data) > maxBufferedRead:
			return nil, nil, tooLarge(req.Path)
		case len(data) == cap(data):
			data = append(data, 0)[:len(data)]
		}
	}
}

func tooLarge(path string) error {
	return &errdefs.Error{Code: "EFBIG", Op: "read", Path: path, Msg: "too large to be read at once (1 GiB at most): read it as a stream"}
}

func fileOpen(ctx context.Context, e *environment, req pathRequest, _ []byte) (any, []byte, error) {
	f, size, err := openFile(ctx, e, req)
	if err != nil || f == nil {
		return found{Missing: true}, nil, err
	}
	id, err := e.add(f, func(context.Context) { _ = f.Close() })
	return found{File: id, Size: size}, nil, err
}

type fileRequest struct {
	File     uint64 `json:"file"`
	MaxBytes int    `json:"maxBytes"`
}

func fileNext(_ context.Context, e *environment, req fileRequest, _ []byte) (any, []byte, error) {
	f, err := lookup[*os.File](e, "file", req.File)
	if err != nil {
		return nil, nil, err
	}
	limit, err := chunk(req.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	data := make([]byte, limit)
	n, err := f.Read(data)
	if errors.Is(err, io.EOF) {
		return part{End: true}, nil, nil
	}
	if err != nil {
		err = errdefs.File("read", "", err)
	}
	return part{}, data[:n], err
}

func fileWrite(ctx context.Context, e *environment, req pathRequest, data []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.WriteFile(ctx, req.Path, data)
}

func fileCreate(ctx context.Context, e *environment, req pathRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	r, err := h.CreateFile(ctx, req.Path)
	if err != nil {
		return nil, nil, err
	}
	id, err := e.add(r, func(context.Context) { _ = r.Close() })
	return struct {
		File uint64 `json:"file"`
	}{id}, nil, err
}

func fileAppend(_ context.Context, e *environment, req fileRequest, data []byte) (any, []byte, error) {
	r, err := lookup[*core.Replacement](e, "file", req.File)
	if err != nil {
		return nil, nil, err
	}
	_, err = r.Write(data)
	return nil, nil, err
}

func fileCommit(_ context.Context, e *environment, req fileRequest, _ []byte) (any, []byte, error) {
	r, err := take[*core.Replacement](e, "file", req.File)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, r.Commit()
}

func fileClose(_ context.Context, e *environment, req fileRequest, _ []byte) (any, []byte, error) {
	v, err := take[io.Closer](e, "file", req.File)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, v.Close()
}

type removeRequest struct {
	Session   uint64 `json:"session"`
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	Force     bool   `json:"force"`
}

func fileRemove(ctx context.Context, e *environment, req removeRequest, _ []byte) (any, []byte, error) {
	h, err := lookup[*core.Handle](e, "session", req.Session)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, h.Remove(ctx, req.Path, req.Recursive, req.Force)
}

type pruneRequest struct {
	CacheDir string `json:"cacheDir"`
	Tag      struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"tag"`
	MaxAgeMs int64 `json:"maxAgeMs"`
}

func cachePrune(ctx context.Context, _ *environment, req pruneRequest, _ []byte) (any, []byte, error) {
	if req.Tag.Name == "" {
		return nil, nil, errdefs.Invalid("tag", "must have a name")
	}
	if req.MaxAgeMs < 0 {
		return nil, nil, errdefs.Invalid("maxAgeMs", "must not be negative")
	}
	// What is more than a duration holds is as good as for ever.
	maxAge := time.Duration(min(req.MaxAgeMs, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	result, err := runtime.Prune(ctx, req.CacheDir, prune.Policy{Tag: req.Tag.Name, Value: req.Tag.Value, MaxAge: maxAge})
	return struct {
		Removed int `json:"removed"`
		InUse   int `json:"inUse"`
		Failed  int `json:"failed"`
	}{result.Removed, result.InUse, len(result.Failed)}, nil, err
}
