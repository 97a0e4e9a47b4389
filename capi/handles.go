package main

import (
	"context"
	"fmt"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// held is what stands behind a handle.
type held struct {
	value any
	close func(ctx context.Context)
}

// add gives value a handle. When the environment ends with the handle still
// open, closer is called; nil means that there is nothing to do. On an
// environment that has ended, add calls closer itself and returns ERR_CLOSED:
// the request that made value was overtaken.
func (e *environment) add(value any, closer func(ctx context.Context)) (uint64, error) {
	id := lastNumber.Add(1)
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.handles[id] = held{value, closer}
	}
	e.mu.Unlock()
	if closed {
		if closer != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			closer(ctx)
		}
		return 0, errdefs.New(errdefs.Closed, "", "the environment has ended")
	}
	return id, nil
}

// lookup returns what stands behind a handle, or ERR_BAD_HANDLE when the handle
// was never given out, is closed, belongs to another environment, or stands for
// something that is not a T. kind is what the caller calls a T: "session",
// "process", "file".
func lookup[T any](e *environment, kind string, id uint64) (T, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	value, ok := e.handles[id].value.(T)
	if !ok {
		return value, errdefs.New(errdefs.BadHandle, "", fmt.Sprintf("%d is not an open %s", id, kind))
	}
	return value, nil
}

// take is lookup, and closes the handle: of several callers one gets the value.
// The close function given to add is not called.
func take[T any](e *environment, kind string, id uint64) (T, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	value, ok := e.handles[id].value.(T)
	if !ok {
		return value, errdefs.New(errdefs.BadHandle, "", fmt.Sprintf("%d is not an open %s", id, kind))
	}
	delete(e.handles, id)
	return value, nil
}
