package main

import (
	"context"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core"
	"github.com/evelandhq/sandbox-bwrap/core/doctor"
)

// probeTimeout is the longest that a caller's thread is held up.
const probeTimeout = 5 * time.Second

type probeRequest struct {
	BwrapPath string `json:"bwrapPath"`
	Path      string `json:"path"`
}

type probeReply struct {
	Available bool             `json:"available"`
	Findings  []doctor.Finding `json:"findings"`
}

func probe(req probeRequest) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	findings := core.Probe(ctx, req.BwrapPath, req.Path)
	return probeReply{len(findings) == 0, findings}, nil
}
