package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Problem is an error as a client receives it (RFC 9457). Code and Hint are those of the protocol:
// the kind of the error, and what to do.
type Problem struct {
	Type   string    `json:"type"`  // about:blank: the status defines the type
	Title  string    `json:"title"` // text of the status
	Status int       `json:"status"`
	Detail string    `json:"detail"`
	Code   wire.Code `json:"code"`
	Hint   string    `json:"hint,omitempty"`
}

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// statusError is an error whose status does not follow from its code.
type statusError struct {
	status int
	err    *wire.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// WithStatus returns e as an error that is answered with status.
func WithStatus(status int, e *wire.Error) error { return &statusError{status, e} }

// Status returns the HTTP status of an error.
func Status(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return http.StatusInternalServerError
	}
	switch e.Code {
	case wire.CodeUsage, wire.CodeSyntax, wire.CodeLineTooLong:
		return http.StatusBadRequest
	case wire.CodeNotFound:
		return http.StatusNotFound
	case wire.CodeDenied:
		return http.StatusForbidden
	case wire.CodeExists, wire.CodeNotPrompt, wire.CodeNotWaiting, wire.CodeKeyboardHeld:
		return http.StatusConflict
	case wire.CodeLost:
		// The request may have taken effect, and clients repeat after 502, 503 and 504.
		if e.Reason != "" {
			return http.StatusInternalServerError
		}
		return http.StatusServiceUnavailable
	case wire.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	if strings.HasPrefix(string(e.Code), "limit_") {
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}

// NewProblem returns err as a client may see it. hub decides what that is. It may be nil for a
// *wire.Error, which is always public.
func NewProblem(hub *gateway.Hub, err error) Problem {
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case ok:
	case hub != nil:
		e = hub.Public(err)
	default:
		e = wire.Errorf(wire.CodeInternal, "internal error")
	}
	status := Status(err)
	if status == http.StatusInternalServerError {
		status = Status(e)
	}
	return Problem{Type: "about:blank", Title: cmp.Or(http.StatusText(status), "Error"),
		Status: status, Detail: e.Message, Code: e.Code, Hint: e.Hint}
}

// Fail answers with err as a problem document. If the client has disconnected, it sends nothing. A
// body timeout looks like a disconnect, so it is always answered.
func Fail(w http.ResponseWriter, r *http.Request, hub *gateway.Hub, err error) {
	if Status(err) != http.StatusRequestTimeout && errors.Is(r.Context().Err(), context.Canceled) &&
		errors.Is(context.Cause(r.Context()), context.Canceled) {
		return
	}
	p := NewProblem(hub, err)
	text, err := json.Marshal(p)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", ProblemType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(text, '\n'))
}
