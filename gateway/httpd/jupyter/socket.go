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

// channels is the one path with WebSockets.
var channels = regexp.MustCompile(`^kernels/[0-9A-Za-z-]{1,64}/channels$`)

// protocol is the one besides none that the server speaks on a WebSocket: messages in binary frames.
const protocol = "v1.kernel.websocket.jupyter.org"

// closedToken closes the socket of a client whose token has ended.
const closedToken = websocket.StatusCode(4401)

// socket joins a client to the channels of a kernel. Messages are passed on as they come, in pieces, at the pace of who takes them: there is
// nothing to pile up. An error is for a client that has no socket yet.
func (d *Door) socket(w http.ResponseWriter, r *http.Request, who, below string, lease func(context.Context) (server, error)) error {
	if !channels.MatchString(below) {
		return &wire.Error{Code: wire.CodeNotFound, Message: "WebSockets are those of kernels: kernels/ID/channels"}
	}
	leave, err := d.enter(who)
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
	o := &websocket.DialOptions{HTTPClient: &http.Client{Transport: s, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		CompressionMode: websocket.CompressionDisabled}
	if offers(r, protocol) {
		o.Subprotocols = []string{protocol}
	}
	to := url.URL{Scheme: "http", Host: "localhost", Path: "/api/" + below}
	if id := r.URL.Query().Get("session_id"); id != "" {
		to.RawQuery = url.Values{"session_id": {id}}.Encode()
	}
	far, resp, err := websocket.Dial(dialing, to.String(), o) //nolint:bodyclose // it says itself that nobody needs to
	if err != nil {
		if resp != nil && resp.StatusCode == http.StatusNotFound {
			return &wire.Error{Code: wire.CodeNotFound, Message: "no such kernel"}
		}
		s.Broken()
		return unreached(err)
	}
	defer far.CloseNow() //nolint:errcheck // at the end
	far.SetReadLimit(d.limits.message)
	near, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: o.Subprotocols, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // Accept has answered
	}
	defer near.CloseNow() //nolint:errcheck // at the end
	near.SetReadLimit(maxSent)
	d.join(r.Context(), near, far)
	return nil
}

// offers reports whether a client speaks a protocol.
func offers(r *http.Request, protocol string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ","), func(p string) bool { return strings.TrimSpace(p) == protocol })
}

// enter counts a socket of a principal until leave is called.
func (d *Door) enter(who string) (leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sockets[who] >= maxSockets {
		return nil, rest.WithStatus(http.StatusTooManyRequests, wire.Errorf(wire.CodeLimitOps, "%d WebSockets of kernels are open, the most there may be", maxSockets))
	}
	d.sockets[who]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.sockets[who]--; d.sockets[who] == 0 {
			delete(d.sockets, who)
		}
	}, nil
}

// join passes messages on, both ways, until one side ends or ctx does, and closes the client's socket.
func (d *Door) join(ctx context.Context, near, far *websocket.Conn) {
	over, end := context.WithCancelCause(ctx)
	// Of its own: to end it closes a connection without a word.
	passing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var pumps sync.WaitGroup
	pumps.Go(func() { end(&ending{"client", d.pump(passing, far, near)}) })
	pumps.Go(func() { end(&ending{"server", d.pump(passing, near, far)}) })
	<-over.Done()
	status, reason := closing(context.Cause(over))
	_ = near.Close(status, reason) // a client that has gone
	stop()
	_ = far.CloseNow() // ends its pump
	_ = near.CloseNow()
	pumps.Wait()
}

// closing is what a client's socket is closed with.
func closing(cause error) (websocket.StatusCode, string) {
	_, passed := errors.AsType[*ending](cause)
	switch {
	case !passed: // the request ended by itself
		return closedToken, "the token has ended, or the daemon"
	case errors.Is(cause, errStalled):
		return websocket.StatusPolicyViolation, "nobody takes what is sent"
	case errors.Is(cause, websocket.ErrMessageTooBig):
		return websocket.StatusMessageTooBig, "a message was too large"
	}
	return websocket.StatusGoingAway, "the connection to the kernel ended"
}

// ending is why messages are passed on no more.
type ending struct {
	side string // whose messages they were
	err  error
}

func (e *ending) Error() string { return e.side + ": " + e.err.Error() }
func (e *ending) Unwrap() error { return e.err }

var errStalled = errors.New("nobody takes what is sent")

// pump passes on messages from one to the other until it cannot.
func (d *Door) pump(ctx context.Context, to, from *websocket.Conn) error {
	buffer := make([]byte, 32<<10)
	for {
		kind, message, err := from.Reader(ctx)
		if err != nil {
			return err
		}
		if err := d.pass(ctx, to, kind, message, buffer); err != nil {
			return err
		}
	}
}

// pass passes on one message.
func (d *Door) pass(ctx context.Context, to *websocket.Conn, kind websocket.MessageType, message io.Reader, buffer []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, err := to.Writer(ctx, kind)
	if err != nil {
		return err
	}
	write := func(f func() error) error {
		stalled := time.AfterFunc(d.limits.stall, func() { cancel(errStalled) })
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
			if werr := write(func() error { _, err := w.Write(buffer[:n]); return err }); werr != nil {
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
