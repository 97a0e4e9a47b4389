package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

func TestEncode(t *testing.T) {
	type members struct {
		N int `json:"n"`
	}
	refused := errdefs.New(errdefs.Timeout, "run", "took too long")
	for name, tc := range map[string]struct {
		members any
		err     error
		want    string
	}{
		"nothing":                   {nil, nil, `{"ok":{}}`},
		"members":                   {members{1}, nil, `{"ok":{"n":1}}`},
		"no members":                {struct{}{}, nil, `{"ok":{}}`},
		"an error":                  {nil, refused, `{"error":{"code":"ERR_TIMEOUT","op":"run","message":"run: took too long"}}`},
		"an error and members":      {members{2}, refused, `{"error":{"code":"ERR_TIMEOUT","op":"run","message":"run: took too long"},"n":2}`},
		"an error and no members":   {struct{}{}, refused, `{"error":{"code":"ERR_TIMEOUT","op":"run","message":"run: took too long"}}`},
		"a context's end":           {nil, fmt.Errorf("wait: %w", context.Canceled), `{"error":{"code":"ERR_ABORTED","message":"wait: context canceled"}}`},
		"a context's end, coded":    {nil, &errdefs.Error{Code: errdefs.Closed, Err: context.Canceled}, `{"error":{"code":"ERR_CLOSED","message":"context canceled"}}`},
		"what JSON cannot say":      {make(chan int), nil, `{"error":{"code":"ERR_INTERNAL","message":"encode reply: json: unsupported type: chan int"}}`},
		"an error without any code": {nil, errors.New("odd"), `{"error":{"code":"ERR_INTERNAL","message":"odd"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			require.JSONEq(t, tc.want, string(encode(tc.members, tc.err)))
		})
	}
}

func TestDecode(t *testing.T) {
	type inner struct {
		Path string `json:"path"`
	}
	type request struct {
		Session uint64 `json:"session"`
		Inner   inner  `json:"inner"`
	}
	for name, tc := range map[string]struct {
		body    string
		message string // "" means that it is taken
	}{
		"whole":             {`{"session":1,"inner":{"path":"x"}}`, ""},
		"empty object":      {`{}`, ""},
		"white space after": {"{}\n ", ""},
		"nothing":           {"", "request: is empty"},
		"unknown member":    {`{"sesion":1}`, "sesion: unknown member"},
		"unknown inside":    {`{"inner":{"pth":1}}`, "pth: unknown member"},
		"wrong type":        {`{"session":"1"}`, "session: must be of type uint64, not string"},
		"wrong type inside": {`{"inner":{"path":1}}`, "inner.path: must be of type string, not number"},
		"negative":          {`{"session":-1}`, "session: must be of type uint64, not number -1"},
		"fraction":          {`{"session":1.5}`, "session: must be of type uint64, not number 1.5"},
		"not an object":     {`[]`, "request: "},
		"cut off":           {`{"session":`, "request: "},
		"two":               {`{}{}`, "request: has something behind its end"},
		"garbage after":     {`{}x`, "request: has something behind its end"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decode[request]([]byte(tc.body))
			if tc.message == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
			require.ErrorContains(t, err, tc.message)
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"session":1,"path":"a"}`))
	f.Add([]byte(`{"session":1}{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := decode[map[string]any](body); err == nil {
			require.True(t, json.Valid(body))
		} else {
			require.Equal(t, errdefs.InvalidArgument, errdefs.CodeOf(err))
		}
	})
}

func TestServe_TurnsAPanicIntoAReply(t *testing.T) {
	e, replies := testEnvironment(t)
	for name, f := range map[string]request[nothing]{
		"a value": func(context.Context, *environment, nothing, []byte) (any, []byte, error) { panic("on purpose") },
		"an error": func(context.Context, *environment, nothing, []byte) (any, []byte, error) {
			panic(errors.New("on purpose"))
		},
		"nil memory": func(context.Context, *environment, nothing, []byte) (any, []byte, error) {
			var e *environment
			return e.id, nil, nil
		},
		"the reply": func(context.Context, *environment, nothing, []byte) (any, []byte, error) {
			return explosive{}, nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			serve(e, 1, []byte("{}"), nil, f)
			r := next(t, replies)
			require.Equal(t, errdefs.Internal, codeOf(t, r))
			require.True(t, strings.Contains(r.json, "panic: "), r.json)
		})
	}
}

// explosive panics when it is encoded.
type explosive struct{}

func (explosive) MarshalJSON() ([]byte, error) { panic("while encoding") }
