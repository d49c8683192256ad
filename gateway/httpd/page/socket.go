package page

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"golang.org/x/time/rate"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of sockets.
const (
	maxSockets = 512      // open at once
	maxOwn     = 64       // of one principal, over all of its tokens
	perSecond  = 200      // messages of a page; faster ones are delayed
	maxFrame   = 64 << 10 // bytes of a message from the page
	// To send what is under way, and then for the other side to close.
	closeWithin = 4 * time.Second
	pingEvery   = 20 * time.Second // interval of pings
	pingWithin  = 20 * time.Second // to answer a ping, and to take a frame
)

// Close codes of a socket (RFC 6455, section 7.4.2 reserves 4000 to 4999 for applications).
const (
	closedDone   = websocket.StatusNormalClosure
	closedToken  = websocket.StatusCode(4401) // the token ended: log in again
	closedAway   = websocket.StatusGoingAway  // the daemon stops: try again
	closedFailed = websocket.StatusCode(4400) // the close reason has the error
)

// socket is the daemon's end of a WebSocket. Write, say and hear are safe for concurrent use,
// except that only one goroutine may call hear.
//
// The first call of end decides the close code and reason. After it, nothing else is sent, and
// input is discarded.
type socket struct {
	conn  *websocket.Conn
	pace  *rate.Limiter   // of received messages
	ctx   context.Context //nolint:containedctx // ends with the token, the daemon or the socket; its cause is the reason
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // goroutines that may use the socket until it is closed

	// io is the context of reads and writes. It never ends: when it does, the library closes the
	// connection without a close frame.
	io context.Context //nolint:containedctx // see above
}

// serve opens a socket, runs f, and closes the socket when f returns. The close reason is f's
// error, or else the cause of the socket's context. f must return when that context ends.
// Goroutines that f started in tasks may run until the socket is closed.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, f func(s *socket) error) {
	h.serveAs(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol},
		CompressionMode: websocket.CompressionDisabled}, f)
}

// serveAs is serve with the terms of a socket.
func (h *Handler) serveAs(w http.ResponseWriter, r *http.Request, o *websocket.AcceptOptions,
	f func(s *socket) error) {
	leave, err := h.enter(rest.Caller(r.Context()).Principal)
	if err != nil {
		rest.Fail(w, r, nil, err)
		return
	}
	defer leave()
	conn, err := websocket.Accept(w, r, o)
	if err != nil {
		return // Accept has answered
	}
	defer conn.CloseNow() //nolint:errcheck // usually closed already
	conn.SetReadLimit(maxFrame)
	s := &socket{conn: conn, pace: rate.NewLimiter(perSecond, perSecond),
		io: context.WithoutCancel(r.Context())}
	s.ctx, s.end = context.WithCancelCause(r.Context())
	control := http.NewResponseController(w)
	// A write to a client that does not read must not delay the end.
	context.AfterFunc(s.ctx, func() { _ = control.SetWriteDeadline(time.Now().Add(closeWithin)) })
	s.tasks.Go(s.ping)
	s.end(cmp.Or(f(s), errDone))
	code, reason := closing(h.Hub, context.Cause(s.ctx))
	// Before it waits for the close frame, the library reads the rest of the current frame, however
	// long its header says. Only the deadline ends that.
	_ = control.SetReadDeadline(time.Now().Add(closeWithin))
	// F may have taken long; after a partial frame, nothing more is sent.
	_ = control.SetWriteDeadline(time.Now().Add(closeWithin))
	_ = conn.Close(code, reason) // the client may be gone
	s.tasks.Wait()
}

// enter counts a socket of a principal, until leave is called.
func (h *Handler) enter(principal string) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= maxSockets || h.sockets[principal] >= maxOwn {
		return nil, rest.WithStatus(http.StatusTooManyRequests,
			&wire.Error{Code: wire.CodeUnavailable, Message: "too many open sockets",
				Hint: "close some browser tabs"})
	}
	h.open++
	h.sockets[principal]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open--
		if h.sockets[principal]--; h.sockets[principal] == 0 {
			delete(h.sockets, principal)
		}
	}, nil
}

// closing returns the close code and reason for a socket that ended with err.
func closing(hub *gateway.Hub, err error) (websocket.StatusCode, string) {
	switch {
	case errors.Is(err, errDone), errors.Is(err, errGone):
		return closedDone, ""
	case errors.Is(err, token.ErrRevoked), errors.Is(err, token.ErrExpired),
		errors.Is(err, token.ErrUnbacked):
		return closedToken, closeReason(err.Error())
	case errors.Is(err, lifecycle.ErrClosed), errors.Is(err, context.Canceled):
		return closedAway, "the daemon is stopping"
	}
	e := hub.Public(err)
	reason := e.Message
	if e.Hint != "" {
		reason += "; " + e.Hint
	}
	return closedFailed, closeReason(reason)
}

// closeReason shortens text for a close frame, which allows 123 bytes of UTF-8 (RFC 6455, section
// 5.5).
func closeReason(text string) string { return strings.ToValidUTF8(text[:min(len(text), 120)], "") }

// ping ends the socket when the page stops answering.
func (s *socket) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(s.io, pingWithin)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			s.end(errGone)
			return
		}
	}
}

// Causes of a socket's end.
var (
	errGone = errors.New("the page is gone")
	errDone = errors.New("done")
)

// Write sends terminal output.
func (s *socket) Write(p []byte) (int, error) {
	if err := s.send(websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// say sends v as JSON.
func (s *socket) say(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(websocket.MessageText, text)
}

func (s *socket) send(kind websocket.MessageType, p []byte) error {
	if s.ctx.Err() != nil {
		return errGone
	}
	ctx, cancel := context.WithTimeout(s.io, pingWithin)
	defer cancel()
	if err := s.conn.Write(ctx, kind, p); err != nil {
		s.end(errGone)
		return errGone
	}
	return nil
}

// ignore reads until the page leaves: it sends nothing.
func (s *socket) ignore() {
	for s.ctx.Err() == nil {
		_, _ = s.hear(&struct{}{})
	}
}

// hear reads a message: terminal input, or JSON into v. When there are no more messages, it ends
// the socket and returns errGone.
func (s *socket) hear(v any) (input []byte, err error) {
	if err := s.pace.Wait(s.ctx); err != nil {
		s.end(errGone)
		return nil, errGone
	}
	kind, p, err := s.conn.Read(s.io)
	switch {
	case err != nil || s.ctx.Err() != nil:
		s.end(errGone)
		return nil, errGone
	case kind == websocket.MessageBinary:
		return p, nil
	}
	return nil, rest.Unmarshal(p, v, json.RejectUnknownMembers(true))
}

// window returns the terminal size in the parameters cols and rows.
func window(r *http.Request) (cols, rows int) {
	size := func(name string) uint32 {
		n, _ := strconv.ParseUint(r.FormValue(name), 10, 16)
		return uint32(n)
	}
	return wire.ClampSize(size("cols"), size("rows"))
}

// target returns the session that the path names.
func target(r *http.Request) wire.Target {
	return wire.Target{Sandbox: r.PathValue("sandbox"), Session: r.PathValue("session")}
}
