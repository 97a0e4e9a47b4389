package core

import (
	runtime "runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/event"
	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// host is what the processes of a test have in common: the cache. None of them
// starts a sandbox.
type host struct {
	t        *testing.T
	cacheDir string
}

func newHost(t *testing.T) host { return host{t, t.TempDir()} }

// process returns a client in a process of its own.
func (h host) process() *Client {
	c := new(Runtime).NewClient()
	h.t.Cleanup(c.Close)
	return c
}

// create opens the session of the test, which would get any network, with
// initial as the policy to begin with.
func (h host) create(c *Client, initial spec.Network) *Handle {
	h.t.Helper()
	handle, err := c.Create(h.t.Context(), CreateRequest{
		Sandbox: spec.Sandbox{CacheDir: h.cacheDir}, SessionKey: "s", NetworkPolicy: spec.AllowAll, InitialNetworkPolicy: initial,
	})
	require.NoError(h.t, err)
	return handle
}

// requireNetwork is the network that the handle's next command gets.
func (h host) requireNetwork(handle *Handle, want spec.Network) {
	h.t.Helper()
	held, err := handle.session.acquire(h.t.Context())
	require.NoError(h.t, err)
	defer handle.session.release(held)
	require.Equal(h.t, want, held.policy(handle.policy))
}

func TestCreate_InitialPolicyIsTheMakersAlone(t *testing.T) {
	h := newHost(t)
	here, there := h.process(), h.process()
	made := h.create(here, spec.DenyAll)
	h.requireNetwork(made, spec.DenyAll)
	for _, other := range []*Handle{h.create(here, ""), h.create(here, spec.AllowAll), h.create(there, spec.AllowAll)} {
		h.requireNetwork(other, spec.DenyAll)
	}
	require.NoError(t, made.SetNetworkPolicy(t.Context(), spec.AllowAll))
	h.requireNetwork(h.create(here, spec.DenyAll), spec.AllowAll)
	h.requireNetwork(h.create(h.process(), spec.DenyAll), spec.AllowAll)
}

func TestCreate_RefusesAnInitialPolicyThatCannotBeEnforced(t *testing.T) {
	h := newHost(t)
	_, err := h.process().Create(t.Context(), CreateRequest{
		Sandbox: spec.Sandbox{CacheDir: h.cacheDir}, SessionKey: "s", NetworkPolicy: spec.AllowAll, InitialNetworkPolicy: "some",
	})
	require.Equal(t, errdefs.Unsupported, errdefs.CodeOf(err))
	h.requireNetwork(h.create(h.process(), ""), spec.AllowAll)
}

func TestPolicy_IsThatOfTheSessionThatIsThere(t *testing.T) {
	for name, makeAnew := range map[string]func(h host, here, there *Client){
		"made anew by this process":   func(h host, here, _ *Client) { h.create(here, spec.DenyAll) },
		"made anew by another one":    func(h host, _, there *Client) { h.create(there, spec.DenyAll) },
		"by another, and opened here": func(h host, here, there *Client) { h.create(there, spec.DenyAll); h.create(here, "") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			here, there := h.process(), h.process()
			old := h.create(here, "")
			require.NoError(t, old.SetNetworkPolicy(t.Context(), spec.AllowAll))
			require.NoError(t, h.create(there, "").Delete(t.Context()))
			makeAnew(h, here, there)
			h.requireNetwork(old, spec.DenyAll)
		})
	}
}

func TestClaim_NothingStartsInASessionThatNobodyUses(t *testing.T) {
	h := newHost(t)
	for _, processes := range []spec.Processes{spec.OfSession, spec.OfCommand} {
		c := h.process()
		handle := h.create(c, "")
		handle.sandbox.Processes = processes
		c.Close()
		// As a command does that was admitted just before the end.
		_, err := handle.session.generation(t.Context(), handle, false)
		require.Equal(t, errdefs.Closed, errdefs.CodeOf(err))
		require.Empty(t, handle.session.live)
	}
}

// A policy that only a later version knows must not be taken for none.
func TestNetwork_OnlyAllowAllShares(t *testing.T) {
	for policy, want := range map[spec.Network]wire.Network{
		spec.AllowAll: wire.NetworkShared, spec.DenyAll: wire.NetworkNone,
		"allow-list": wire.NetworkNone, "": wire.NetworkNone,
	} {
		require.Equal(t, want, network(policy), "%q", policy)
	}
}

func TestTellCommand_EventsComeInTheOrderOfTheirCounts(t *testing.T) {
	live := 0 // the sink is called by one at a time
	g := &generation{events: func(e event.Event) {
		want := live + 1
		if e.Type == event.CommandFinished {
			want = live - 1
		}
		runtime.Gosched()
		if live = *e.LiveProcesses; live != want {
			t.Errorf("%s tells of %d live commands, not %d", e.Type, live, want)
		}
	}}
	s := &Session{}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 100 {
				s.tellCommand(g, event.Event{Type: event.CommandStarted}, 1)
				s.tellCommand(g, event.Event{Type: event.CommandFinished}, -1)
			}
		})
	}
	all.Wait()
	require.Zero(t, live)
}
