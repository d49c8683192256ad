package jupyter

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// channels matches the only path with WebSockets.
var channels = regexp.MustCompile(`^kernels/[0-9A-Za-z-]{1,64}/channels$`)

// protocol is the optional subprotocol of the server's WebSockets: messages in binary frames.
const protocol = "v1.kernel.websocket.jupyter.org"

// closedToken is the close code of a socket whose token ended.
const closedToken = websocket.StatusCode(4401)

// socket connects a client to the channels of a kernel. It passes messages on in pieces, as fast as
// the receiver takes them, and queues nothing. It returns an error only before the client's socket
// is open.
func (h *Handler) socket(w http.ResponseWriter, r *http.Request, who, below string,
	lease func(context.Context) (server, error)) error {
	if !channels.MatchString(below) {
		return &wire.Error{Code: wire.CodeNotFound,
			Message: "no such WebSocket: only kernels/ID/channels is available"}
	}
	leave, err := h.enter(who)
	if err != nil {
		return err
	}
	defer leave()
	dialing, cancel := context.WithTimeout(r.Context(), dialWithin)
	defer cancel()
	s, err := lease(dialing)
	if err != nil {
		return err
	}
	defer s.Release()
	o := &websocket.DialOptions{HTTPClient: &http.Client{Transport: s, CheckRedirect: func(
		*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}},
		CompressionMode: websocket.CompressionDisabled}
	if offers(r, protocol) {
		o.Subprotocols = []string{protocol}
	}
	to := url.URL{Scheme: "http", Host: "localhost", Path: "/api/" + below}
	if id := r.URL.Query().Get("session_id"); id != "" {
		to.RawQuery = url.Values{"session_id": {id}}.Encode()
	}
	far, resp, err := websocket.Dial(dialing, to.String(), o) //nolint:bodyclose // Dial needs no close
	if err != nil {
		if resp != nil && resp.StatusCode == http.StatusNotFound {
			return &wire.Error{Code: wire.CodeNotFound, Message: "no such kernel"}
		}
		s.Broken()
		return unreached(err)
	}
	defer far.CloseNow() //nolint:errcheck // on return
	far.SetReadLimit(h.limits.message)
	near, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: o.Subprotocols,
		CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // Accept has answered
	}
	defer near.CloseNow() //nolint:errcheck // on return
	near.SetReadLimit(maxSent)
	h.join(r.Context(), near, far)
	return nil
}

// offers reports whether a client offers a subprotocol.
func offers(r *http.Request, protocol string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"),
		","), ","), func(p string) bool { return strings.TrimSpace(p) == protocol })
}

// enter counts a socket of a principal until leave is called.
func (h *Handler) enter(who string) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sockets[who] >= maxSockets {
		return nil, rest.WithStatus(http.StatusTooManyRequests,
			wire.Errorf(wire.CodeLimitOps, "limit of %d open kernel WebSockets reached",
				maxSockets))
	}
	h.sockets[who]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.sockets[who]--; h.sockets[who] == 0 {
			delete(h.sockets, who)
		}
	}, nil
}

// join passes messages on in both directions until ctx or one side ends, then closes the client's
// socket.
func (h *Handler) join(ctx context.Context, near, far *websocket.Conn) {
	over, end := context.WithCancelCause(ctx)
	// passing is separate from ctx: when a context ends, the library closes its connection without
	// a close frame.
	passing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var pumps sync.WaitGroup
	pumps.Go(func() { end(&ending{"client", h.pump(passing, far, near)}) })
	pumps.Go(func() { end(&ending{"server", h.pump(passing, near, far)}) })
	<-over.Done()
	status, reason := closing(context.Cause(over))
	_ = near.Close(status, reason) // the client may be gone
	stop()
	_ = far.CloseNow() // ends its pump
	_ = near.CloseNow()
	pumps.Wait()
}

// closing returns the close code and reason for a client's socket.
func closing(cause error) (websocket.StatusCode, string) {
	_, passed := errors.AsType[*ending](cause)
	switch {
	case !passed: // the request's context ended
		return closedToken, "the token has ended, or the daemon"
	case errors.Is(cause, errStalled):
		return websocket.StatusPolicyViolation, "a message was not read in time"
	case errors.Is(cause, websocket.ErrMessageTooBig):
		return websocket.StatusMessageTooBig, "a message was too large"
	}
	return websocket.StatusGoingAway, "the connection to the kernel ended"
}

// ending is the cause of the end of a connection.
type ending struct {
	side string // sender of the messages
	err  error
}

func (e *ending) Error() string { return e.side + ": " + e.err.Error() }
func (e *ending) Unwrap() error { return e.err }

var errStalled = errors.New("a message was not read in time")

// pump passes messages from one connection to the other until an error.
func (h *Handler) pump(ctx context.Context, to, from *websocket.Conn) error {
	buffer := make([]byte, 32<<10)
	for {
		kind, message, err := from.Reader(ctx)
		if err != nil {
			return err
		}
		if err := h.pass(ctx, to, kind, message, buffer); err != nil {
			return err
		}
	}
}

// pass passes on one message.
func (h *Handler) pass(ctx context.Context, to *websocket.Conn, kind websocket.MessageType,
	message io.Reader, buffer []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, err := to.Writer(ctx, kind)
	if err != nil {
		return err
	}
	write := func(f func() error) error {
		stalled := time.AfterFunc(h.limits.stall, func() { cancel(errStalled) })
		defer stalled.Stop()
		err := f()
		if err != nil && errors.Is(context.Cause(ctx), errStalled) {
			return errStalled
		}
		return err
	}
	for {
		n, err := message.Read(buffer)
		if n > 0 {
			if werr := write(func() error {
				_, err := w.Write(buffer[:n])
				return err
			}); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return write(w.Close)
		}
		if err != nil {
			return err
		}
	}
}
