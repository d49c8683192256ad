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
	maxSockets  = 512              // open at once
	maxOwn      = 64               // of one principal, by all of their tokens
	perSecond   = 200              // messages of a page; faster ones wait
	maxFrame    = 64 << 10         // bytes that a page sends at once
	closeWithin = 4 * time.Second  // until what is under way has been sent, and then until the other side closes, too
	pingEvery   = 20 * time.Second // whether somebody is still there
	pingWithin  = 20 * time.Second // until an answer, and until a frame has been taken
)

// Codes with which a socket closes (RFC 6455, section 7.4.2: 4000 to 4999 are ours).
const (
	closedDone   = websocket.StatusNormalClosure
	closedToken  = websocket.StatusCode(4401) // the token has ended: log in again
	closedAway   = websocket.StatusGoingAway  // the daemon ends: try again
	closedFailed = websocket.StatusCode(4400) // the reason says why
)

// socket is a page's end of a stream. Write and say may be called at once with themselves and with hear.
//
// Whoever calls end first decides with which code and reason it closes. From then on nothing is sent but these, and nothing is heard.
type socket struct {
	conn  *websocket.Conn
	pace  *rate.Limiter   // of what is read
	ctx   context.Context //nolint:containedctx // ends with the token, the daemon or the socket; its cause says why
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // what may wait for the socket until it is closed

	// io is for what is sent and read. It does not end: the library closes a connection without a word when a context of those does.
	io context.Context //nolint:containedctx // see there
}

// serve opens a socket and runs f with it; it closes when f returns, with the reason that f gives, or that its context has. Where that ends,
// f has to return at once; what f began in tasks may wait for the end of the socket.
func (d *Door) serve(w http.ResponseWriter, r *http.Request, f func(s *socket) error) {
	leave, err := d.enter(rest.Caller(r.Context()).Principal)
	if err != nil {
		rest.Fail(w, r, nil, err)
		return
	}
	defer leave()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow() //nolint:errcheck // it is closed
	conn.SetReadLimit(maxFrame)
	s := &socket{conn: conn, pace: rate.NewLimiter(perSecond, perSecond), io: context.WithoutCancel(r.Context())}
	s.ctx, s.end = context.WithCancelCause(r.Context())
	control := http.NewResponseController(w)
	// What is being sent to somebody who reads nothing holds up the end no longer.
	context.AfterFunc(s.ctx, func() { _ = control.SetWriteDeadline(time.Now().Add(closeWithin)) })
	s.tasks.Go(s.ping)
	s.end(cmp.Or(f(s), errDone))
	code, reason := closing(d.Hub, context.Cause(s.ctx))
	// The library reads the rest of a frame, of any length that it was said to have, before it waits for an answer, and nothing else ends that.
	_ = control.SetReadDeadline(time.Now().Add(closeWithin))
	_ = control.SetWriteDeadline(time.Now().Add(closeWithin)) // f may have needed its time; where a frame was cut off nothing more is sent
	_ = conn.Close(code, reason)                              // who is gone is not told
	s.tasks.Wait()
}

// enter counts a socket of a principal.
func (d *Door) enter(principal string) (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open >= maxSockets || d.sockets[principal] >= maxOwn {
		return nil, rest.WithStatus(http.StatusTooManyRequests, &wire.Error{Code: wire.CodeUnavailable, Message: "too many sockets are open", Hint: "close some pages"})
	}
	d.open++
	d.sockets[principal]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open--
		if d.sockets[principal]--; d.sockets[principal] == 0 {
			delete(d.sockets, principal)
		}
	}, nil
}

// closing is how a socket is closed that ended with err.
func closing(hub *gateway.Hub, err error) (websocket.StatusCode, string) {
	switch {
	case errors.Is(err, errDone), errors.Is(err, errGone):
		return closedDone, ""
	case errors.Is(err, token.ErrRevoked), errors.Is(err, token.ErrExpired), errors.Is(err, token.ErrUnbacked):
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

// closeReason is a text as a socket may be closed with: 123 bytes of UTF-8 are allowed (RFC 6455,
// section 5.5).
func closeReason(text string) string { return strings.ToValidUTF8(text[:min(len(text), 120)], "") }

// ping ends the socket of a page that has gone without a word.
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

// Write sends what a terminal is to show.
func (s *socket) Write(p []byte) (int, error) {
	if err := s.send(websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// say sends an object.
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

// hear reads what the page sends: input, or an object into v. It ends the socket when there is no more.
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

// window is the size that a page says its terminal has, of the parameters cols and rows.
func window(r *http.Request) (cols, rows int) {
	size := func(name string) uint32 { n, _ := strconv.ParseUint(r.FormValue(name), 10, 16); return uint32(n) }
	return wire.ClampSize(size("cols"), size("rows"))
}

// target is the session that a path names.
func target(r *http.Request) wire.Target {
	return wire.Target{Sandbox: r.PathValue("sandbox"), Session: r.PathValue("session")}
}
