package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// request is a function that answers requests of one kind. data holds the raw
// bytes that came along, nil if none; the function owns them. It returns the
// members of the reply (nil for none) and raw bytes.
//
// Members that hold an output bring raw bytes, in place of the other ones, that are
// handed over and not copied.
//
// With an error the raw bytes still go out, and the members stand beside the
// error: {"error":{…},"stdoutBytes":…}. An error caused by ctx and without a
// code of its own becomes ERR_ABORTED.
type request[Req any] func(ctx context.Context, e *environment, req Req, data []byte) (any, []byte, error)

// serve answers one request with f, in a goroutine of its own: the caller is
// never kept waiting, and f never runs on the caller's thread, on which nothing
// may be forked.
func serve[Req any](e *environment, call uint64, body, data []byte, f request[Req]) {
	ctx, ok := e.begin(call)
	if !ok {
		return
	}
	ctx, wait, placed := place[Req](ctx, &e.line)
	answer := func() {
		members, out, err := protect(func() (any, []byte, error) {
			defer placed()
			req, err := decode[Req](body)
			if err != nil {
				return nil, nil, err
			}
			wait()
			return f(ctx, e, req, data)
		})
		e.end(call)
		e.reply(call, members, out, err)
	}
	if brokenRule == "3" {
		answer()
		return
	}
	go answer()
}

// protect turns a panic of f into ERR_INTERNAL.
func protect(f func() (any, []byte, error)) (members any, data []byte, err error) {
	defer func() {
		if brokenRule == "5" {
			return
		}
		if v := recover(); v != nil {
			members, data, err = nil, nil, internal(v)
		}
	}()
	return f()
}

// internal is the error of a panic with v, made while the stack still stands.
func internal(v any) error {
	return &errdefs.Error{
		Code:   errdefs.Internal,
		Msg:    fmt.Sprintf("panic: %v", v),
		Detail: string(debug.Stack()),
	}
}

// reply sends the one reply to a call, unless the environment has ended.
func (e *environment) reply(call uint64, members any, data []byte, err error) {
	body := encode(members, err)
	_, out, noMemory := protect(func() (any, []byte, error) { return nil, handOver(members, data), nil })
	if noMemory != nil {
		body = encode(nil, noMemory)
	}
	e.replying.RLock()
	defer e.replying.RUnlock()
	if e.silent {
		outside(out, 0)
		return
	}
	e.send(call, body, out)
}

// handOver returns a reply's raw bytes in memory of C's.
func handOver(members any, data []byte) []byte {
	if brings, ok := members.(interface{ raw() []byte }); ok {
		return brings.raw()
	}
	if len(data) == 0 {
		return nil
	}
	out := outside(nil, len(data))
	copy(out, data)
	return out
}

// output is raw bytes that outside gave, as a part of a reply's members.
type output struct{ bytes []byte }

func (o output) raw() []byte { return o.bytes }

// event sends an event, unless the environment has ended.
func (e *environment) event(members any) { e.reply(0, members, nil, nil) }

// decode reads a request strictly: a member that Req does not have is refused by
// name, so that a misspelt option never goes unnoticed.
func decode[Req any](body []byte) (Req, error) {
	var req Req
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		return req, invalidRequest(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return req, errdefs.Invalid("request", "has something behind its end")
	}
	return req, nil
}

// invalidRequest names the member that a decoder stumbled over.
func invalidRequest(err error) error {
	var wrongType *json.UnmarshalTypeError
	var known *errdefs.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return errdefs.Invalid(wrongType.Field, fmt.Sprintf("must be of type %s, not %s", wrongType.Type, wrongType.Value))
	case errors.Is(err, io.EOF):
		return errdefs.Invalid("request", "is empty")
	}
	// The decoder has no type for this one, only the text.
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if field = strings.Trim(field, `"`); field == "" {
			return errdefs.Invalid("request", "has a member without a name")
		}
		return errdefs.Invalid(field, "unknown member")
	}
	return errdefs.Invalid("request", err.Error())
}

// encode returns the JSON of a reply.
func encode(members any, err error) []byte {
	body := []byte("{}")
	if members != nil {
		_, encoded, encodeErr := protect(func() (any, []byte, error) {
			encoded, err := json.Marshal(members)
			return nil, encoded, err
		})
		if encodeErr != nil {
			return encode(nil, errors.Join(err, fmt.Errorf("encode reply: %w", encodeErr)))
		}
		body = encoded
	}
	if err == nil {
		return bytes.Join([][]byte{[]byte(`{"ok":`), body, []byte("}")}, nil)
	}
	if errors.Is(err, context.Canceled) && errdefs.CodeOf(err) == errdefs.Internal {
		err = &errdefs.Error{Code: errdefs.Aborted, Err: err}
	}
	out := append([]byte(`{"error":`), errdefs.Marshal(err)...)
	if inner := bytes.TrimPrefix(body, []byte("{")); len(inner) > len("}") && len(inner) < len(body) {
		return append(append(out, ','), inner...)
	}
	return append(out, '}')
}
