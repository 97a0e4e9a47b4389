package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
	"github.com/evelandhq/sandbox-bwrap/core/spec"
)

// decoders decode each of the requests.
var decoders = map[string]func([]byte) (any, error){}

func decoder[Req any]() {
	decoders[reflect.TypeFor[Req]().Name()] = func(body []byte) (any, error) {
		req, err := decode[Req](body)
		return req, err
	}
}

func init() {
	decoder[cancelRequest]()
	decoder[createRequest]()
	decoder[fileRequest]()
	decoder[killRequest]()
	decoder[pathRequest]()
	decoder[policyRequest]()
	decoder[prewarmRequest]()
	decoder[probeRequest]()
	decoder[processRequest]()
	decoder[pruneRequest]()
	decoder[removeRequest]()
	decoder[resizeRequest]()
	decoder[runRequest]()
	decoder[sessionRequest]()
	decoder[spawnRequest]()
	decoder[streamRequest]()
}

func TestDecoders_AreAllThereAre(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.Contains(file, "test") {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`type (\w+Request) struct`).FindAllSubmatch(source, -1) {
			require.Contains(t, decoders, string(found[1]))
		}
	}
}

// What is taken has no member that we do not know, means the same when it is
// written again, and makes an environment that a program can be given.
func FuzzRequest(f *testing.F) {
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		decode := decoders[kind]
		if decode == nil {
			return
		}
		req, err := decode(body)
		if err != nil {
			require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err), "%v", err)
			var known *errdefs.Error
			require.True(t, errors.As(err, &known) && known.Op != "", "no field is named: %v", err)
			return
		}
		require.True(t, json.Valid(body))
		if rest, ok := bytes.CutPrefix(bytes.TrimSpace(body), []byte("{")); ok {
			comma := ","
			if bytes.HasPrefix(bytes.TrimSpace(rest), []byte("}")) {
				comma = ""
			}
			_, err := decode(slices.Concat([]byte(`{"noSuchMember":1`), []byte(comma), rest))
			require.ErrorContains(t, err, "noSuchMember")
		}
		once, err := json.Marshal(req)
		require.NoError(t, err)
		again, err := decode(once)
		require.NoError(t, err, "%s", once)
		twice, err := json.Marshal(again)
		require.NoError(t, err)
		require.JSONEq(t, string(once), string(twice))
		validate(t, req)
	})
}

func validate(t *testing.T, req any) {
	var command spec.Command
	switch r := req.(type) {
	case createRequest:
		_ = r.Sandbox.Validate()
		return
	case prewarmRequest:
		_ = r.Sandbox.Validate()
		return
	case runRequest:
		_ = r.Limits.Validate()
		command = r.Command
	case spawnRequest:
		command = r.Command
	default:
		return
	}
	if command.Validate() != nil {
		return
	}
	require.NotContains(t, command.Command, "\x00")
	seen := map[string]bool{}
	for _, variable := range command.Environ(spec.Login{User: "u", Shell: "/bin/bash"}) {
		name, value, found := strings.Cut(variable, "=")
		require.True(t, found && name != "", "%q", variable)
		require.NotContains(t, variable, "\x00")
		require.Less(t, len(variable), 128<<10)
		require.False(t, seen[name], "%s twice", name)
		seen[name] = true
		if set := command.Env[name]; set != nil {
			require.Equal(t, *set, value)
		}
	}
}
