package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Call is one operation of an interface. I and O are huma's inputs and outputs.
type Call[I, O any] struct {
	Op       huma.Operation
	Operator bool                                     // needs the operator's token
	Verify   func(r *http.Request, body []byte) error // checks the bytes before they are read, or nil
	Do       func(context.Context, *I) (*O, error)    // domain errors are fine: the table knows them
	Request  any                                      // example of the body, nil where there is none
	Response any                                      // example of the good answer, nil where it has no body
	Refusals []Refusal                                // what else it can answer, values that cannot be accepted among it
}

// Add serves and documents a call. It is for the functions that New calls.
func Add[I, O any](a *API, c Call[I, O]) {
	if c.Operator {
		c.Op.Middlewares = append(c.Op.Middlewares, a.operatorOnly)
	}
	if c.Request != nil {
		c.Op.Middlewares = append(c.Op.Middlewares, a.buffered(c.Verify))
		// huma reads what is buffered. With a deadline of its own the server would take a
		// client that quietly waits for the answer for one that went away.
		c.Op.BodyReadTimeout = -1
		c.Op.MaxBodyBytes = -1
	}
	a.document(&c.Op, c.Operator, c.Request, c.Response, c.Refusals)
	huma.Register(a.huma, c.Op, func(ctx context.Context, in *I) (*O, error) {
		out, err := c.Do(ctx, in)
		if err != nil {
			return nil, a.failed(ctx, err)
		}
		return out, nil
	})
}

// buffered reads the body, so that a body that is too long, too slow or cut off gets
// its own answer, and that a signature is checked over the very bytes that came, before
// anything looks into them.
func (a *API) buffered(verify func(*http.Request, []byte) error) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		body, problem := a.readBody(w, r)
		if problem == nil && verify != nil {
			if err := verify(r, body); err != nil {
				problem = a.problemFor(err)
			}
		}
		if problem != nil {
			writeProblem(w, r, problem)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next(ctx)
	}
}

func (a *API) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Problem) {
	// Not every writer can do this (httptest's cannot); the server's own timeout remains.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.timeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.maxBody))
	var (
		tooLong *http.MaxBytesError
		netErr  net.Error
	)
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLong):
		return nil, bodyTooLong(a.maxBody)
	case errors.As(err, &netErr) && netErr.Timeout():
		return nil, bodyTooSlow()
	default:
		return nil, NewProblem(http.StatusBadRequest, "the body could not be read to its end")
	}
}

func bodyTooLong(allowed int64) *Problem {
	return NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than the allowed %d bytes", allowed))
}

func bodyTooSlow() *Problem {
	return NewProblem(http.StatusRequestTimeout, "the body did not come in time")
}

// Uninterrupted returns a context for work that writes. It keeps the request's deadline
// but does not end when the client goes away: cutting a transaction off helps nobody,
// costs the pool a connection, and makes a commit in doubt. What a client that left
// cannot know it must be able to learn by repeating the call.
func Uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	whole := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(whole, deadline)
	}
	return context.WithTimeout(whole, DefaultTimeout)
}
