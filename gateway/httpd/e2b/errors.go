package e2b

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// apiError is an error in the SDKs' format. They branch on the status, and for 502 on words in the
// message.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *apiError) Error() string { return e.Message }

// problems converts errors for the SDKs.
type problems struct{ hub *gateway.Hub }

// apiErrorOf returns what a client sees of err.
func (pr *problems) apiErrorOf(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	p := rest.NewProblem(pr.hub, err)
	e := &apiError{p.Status, p.Detail}
	if p.Hint != "" {
		e.Message += " (" + p.Hint + ")"
	}
	return e
}

// rpcErrors writes errors of the Connect protocol, for a call or a stream.
var rpcErrors = connect.NewErrorWriter(connect.WithRequireConnectProtocolHeader())

// fail answers with err. A client that has disconnected gets nothing.
func (pr *problems) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) &&
		errors.Is(context.Cause(r.Context()), context.Canceled) {
		return
	}
	e := pr.apiErrorOf(err)
	// Except for 502: the SDKs recognize an ended sandbox by the status, as from a proxy in front
	// of envd. The SDK for JavaScript shows the text of no other answer to a call.
	call := strings.Contains(r.URL.Path, "/process.Process/") ||
		strings.Contains(r.URL.Path, "/filesystem.Filesystem/")
	if call && e.Code != http.StatusBadGateway && rpcErrors.IsSupported(r) {
		_ = rpcErrors.Write(w, r, connect.NewError(codeOf(e.Code), e)) // the client may be gone
		return
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
		// The SDKs interpret a plain JSON answer to a stream by its status, as from a proxy in
		// front of envd.
		w.Header().Set("Connection", "close")
	}
	rest.WriteJSON(w, e.Code, e)
}

// rpcError converts err for a client of the Connect protocol.
func (pr *problems) rpcError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*connect.Error)), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, errors.New("no such file or directory"))
	case errors.Is(err, fs.ErrPermission):
		return connect.NewError(connect.CodePermissionDenied, errors.New("permission denied"))
	}
	if errors.Is(err, token.ErrRevoked) || errors.Is(err, token.ErrExpired) ||
		errors.Is(err, token.ErrUnbacked) {
		return connect.NewError(connect.CodeUnauthenticated, err)
	}
	if e, ok := errors.AsType[*apiError](err); ok {
		return connect.NewError(codeOf(e.Code), e)
	}
	e := pr.hub.Public(err)
	text := e.Message
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	code := codeOf(rest.Status(e))
	switch e.Code {
	case wire.CodeKeyboardHeld, wire.CodeNotPrompt:
		code = connect.CodeFailedPrecondition
	case wire.CodeLost:
		// It may have run, and clients repeat after unavailable.
		if code = connect.CodeUnavailable; e.Reason != "" {
			code = connect.CodeAborted
		}
	case wire.CodeUnavailable:
		code = connect.CodeUnavailable
	}
	return connect.NewError(code, errors.New(text))
}

// codeOf returns the Connect code that corresponds to a status.
func codeOf(status int) connect.Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType:
		return connect.CodeInvalidArgument
	case http.StatusUnauthorized:
		return connect.CodeUnauthenticated
	case http.StatusForbidden:
		return connect.CodePermissionDenied
	case http.StatusNotFound:
		return connect.CodeNotFound
	case http.StatusConflict:
		return connect.CodeAlreadyExists
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge,
		http.StatusInsufficientStorage:
		return connect.CodeResourceExhausted
	case http.StatusNotImplemented:
		return connect.CodeUnimplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return connect.CodeUnavailable
	}
	return connect.CodeInternal
}

// invalid is the error of a malformed request.
func invalid(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, wire.Errorf(wire.CodeUsage, format, args...).Message}
}
