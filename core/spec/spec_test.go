package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// requireField checks that err rejects the field, by its name.
func requireField(t *testing.T, err error, field string) {
	t.Helper()
	if field == "" {
		require.NoError(t, err)
		return
	}
	var e *errdefs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, errdefs.InvalidArgument, e.Code)
	require.Equal(t, field, e.Op)
}

// set is an environment of one variable.
func set(name, value string) map[string]*string { return map[string]*string{name: &value} }

func TestSandbox_Validate(t *testing.T) {
	tooMany := make([]string, maxHidePaths+1)
	for i := range tooMany {
		tooMany[i] = fmt.Sprintf("/x/%d", i)
	}
	for name, tc := range map[string]struct {
		sandbox Sandbox
		field   string
	}{
		"least":               {Sandbox{CacheDir: "/c"}, ""},
		"all":                 {Sandbox{CacheDir: "/c", AppRoot: "/a", BwrapPath: "bwrap", HidePaths: []string{"/x"}, NodePath: "/n", Processes: OfCommand}, ""},
		"most hidden":         {Sandbox{CacheDir: "/c", HidePaths: tooMany[1:]}, ""},
		"no cache":            {Sandbox{}, "cacheDir"},
		"relative cache":      {Sandbox{CacheDir: "c"}, "cacheDir"},
		"NUL in cache":        {Sandbox{CacheDir: "/c\x00"}, "cacheDir"},
		"relative app":        {Sandbox{CacheDir: "/c", AppRoot: "a"}, "appRoot"},
		"relative hidden":     {Sandbox{CacheDir: "/c", HidePaths: []string{"/x", "y"}}, "hidePaths[1]"},
		"root hidden":         {Sandbox{CacheDir: "/c", HidePaths: []string{"/x/.."}}, "hidePaths[0]"},
		"too many hidden":     {Sandbox{CacheDir: "/c", HidePaths: tooMany}, "hidePaths"},
		"NUL in bwrap":        {Sandbox{CacheDir: "/c", BwrapPath: "b\x00"}, "bwrapPath"},
		"unknown processes":   {Sandbox{CacheDir: "/c", Processes: "job"}, "processes"},
		"relative executable": {Sandbox{CacheDir: "/c", NodePath: "node"}, "nodePath"},
	} {
		t.Run(name, func(t *testing.T) { requireField(t, tc.sandbox.Validate(), tc.field) })
	}
}

func TestSandbox_ShapeChangesWithEveryField(t *testing.T) {
	shapes := map[string]bool{}
	for _, s := range []Sandbox{
		{},
		{CacheDir: "/c"},
		{AppRoot: "/c"},
		{BwrapPath: "/c"},
		{HidePaths: []string{"/c"}},
		{Path: "/c"},
		{NodePath: "/c"},
		{Processes: OfCommand},
	} {
		require.Equal(t, s.Shape(), s.Shape())
		shapes[s.Shape()] = true
	}
	require.Len(t, shapes, 8)
	require.Equal(t, Sandbox{}.Shape(), Sandbox{Processes: OfSession}.Shape(), "left out and its default are one")
}

func TestCommand_Validate(t *testing.T) {
	long := strings.Repeat("x", maxStringBytes)
	zone := "\x00"
	for name, tc := range map[string]struct {
		command Command
		field   string
	}{
		"empty":              {Command{}, ""},
		"newline in a value": {Command{Env: set("A", "x\ny")}, ""},
		"longest value":      {Command{Env: set("A", long[3:])}, ""},
		"taken away":         {Command{Env: map[string]*string{"A": nil}}, ""},
		"longest command":    {Command{Command: strings.Repeat("x", maxCommandBytes)}, ""},
		"longest PATH":       {Command{Env: set("PATH", long[len("__sandbox_PATH=0"):])}, ""},
		"NUL":                {Command{Command: "a\x00b"}, "command"},
		"too long":           {Command{Command: strings.Repeat("x", maxCommandBytes+1)}, "command"},
		"too long a PATH":    {Command{Env: set("PATH", long[len("__sandbox_PATH="):])}, "env.PATH"},
		"a name of ours":     {Command{Env: set("__sandbox_PATH", "x")}, "env.__sandbox_PATH"},
		"relative directory": {Command{WorkingDirectory: "x"}, "workingDirectory"},
		"nameless variable":  {Command{Env: set("", "x")}, "env"},
		"nameless, away":     {Command{Env: map[string]*string{"": nil}}, "env"},
		"equals in a name":   {Command{Env: set("A=B", "x")}, "env"},
		"NUL in a name":      {Command{Env: set("A\x00", "x")}, "env"},
		"NUL in a value":     {Command{Env: set("A", "\x00")}, "env.A"},
		"too long a value":   {Command{Env: set("A", long[2:])}, "env.A"},
		"NUL in a zone":      {Command{TimeZone: &zone}, "timeZone"},
		"negative processes": {Command{MaxProcesses: -1}, "maxProcesses"},
	} {
		t.Run(name, func(t *testing.T) { requireField(t, tc.command.Validate(), tc.field) })
	}
}

func TestLimits(t *testing.T) {
	requireField(t, Limits{}.Validate(), "")
	requireField(t, Limits{TimeoutMs: -1}.Validate(), "timeoutMs")
	requireField(t, Limits{MaxOutputBytes: -1}.Validate(), "maxOutputBytes")
	require.Zero(t, Limits{}.Timeout())
	require.EqualValues(t, 1_500_000_000, Limits{TimeoutMs: 1500}.Timeout())
	// A JavaScript safe integer can be more than a duration holds.
	require.Zero(t, Limits{TimeoutMs: 1<<53 - 1}.Timeout())
}

func TestNetwork_Validate(t *testing.T) {
	require.NoError(t, AllowAll.Validate())
	require.NoError(t, DenyAll.Validate())
	for _, n := range []Network{"", "allow", "deny-all "} {
		require.Equal(t, errdefs.Unsupported, errdefs.CodeOf(n.Validate()))
	}
}
