package mcp

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Caller is the sender of a request.
type Caller struct {
	ID      string  // identifies the caller: a session belongs to one caller
	Options Options // of a session that begins with the request

	// Live ends the caller's sessions when it ends, such as when a token is revoked. nil never
	// ends.
	Live context.Context //nolint:containedctx // see above
}

const (
	maxHTTPSessions = 16               // of one caller
	httpIdle        = 30 * time.Minute // ends a session without a request; programs continue
	maxBody         = 1 << 20          // bytes of a request
)

// Handler serves MCP over streamable HTTP: POST, GET and DELETE of one path. Sessions are stored in
// this process and belong to the caller that began them; requests of other callers to them are
// rejected. The server in front of the Handler must authenticate bearer tokens and reject requests
// of foreign web pages. On a loopback address, the Handler itself rejects other host names.
type Handler struct {
	caller func(*http.Request) (Caller, error)
	http   http.Handler

	mu       sync.Mutex
	closed   bool              // guarded by mu
	sessions map[*session]bool // guarded by mu
	running  sync.WaitGroup    // what ends sessions; Add is guarded by mu
}

// session is the session of one client.
type session struct {
	server *Server
	caller string
	began  sync.Once
}

// NewHandler returns a Handler. caller returns the sender of an authenticated request; its error
// rejects the request. Close the Handler after use.
func NewHandler(caller func(*http.Request) (Caller, error)) *Handler {
	h := &Handler{caller: caller, sessions: make(map[*session]bool)}
	streamable := sdk.NewStreamableHTTPHandler(
		h.begin,
		&sdk.StreamableHTTPOptions{
			SessionTimeout:               httpIdle,
			MaxRequestBodyBytes:          maxBody,
			PropagateRequestCancellation: true,
		},
	)
	h.http = auth.RequireBearerToken(
		func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
			c, err := caller(r)
			if err != nil || c.ID == "" {
				return nil, fmt.Errorf("%w: it has no caller", auth.ErrInvalidToken)
			}
			// The server in front checks the token of each request.
			return &auth.TokenInfo{UserID: c.ID, Expiration: time.Now().Add(time.Hour)}, nil
		},
		nil,
	)(
		streamable,
	)
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.http.ServeHTTP(w, r) }

// begin returns the Server of a new session, or nil to reject the request.
func (h *Handler) begin(r *http.Request) *sdk.Server {
	c, err := h.caller(r)
	if err != nil {
		return nil
	}
	s := &session{server: New(c.Options), caller: c.ID}
	h.mu.Lock()
	defer h.mu.Unlock()
	others := 0
	for other := range h.sessions {
		if other.caller == c.ID {
			others++
		}
	}
	if h.closed || others >= maxHTTPSessions {
		s.server.Close()
		return nil
	}
	// The first message shows that the session exists. Without one, there is nothing to close.
	s.server.server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			s.began.Do(func() {
				if there, ok := r.GetSession().(*sdk.ServerSession); ok {
					h.enter(c.Live, s, there)
				}
			})
			return next(ctx, method, r)
		}
	})
	return s.server.server
}

// enter closes s when its session ends, and ends the session with live or the Handler. live may be
// nil.
func (h *Handler) enter(live context.Context, s *session, there *sdk.ServerSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		go there.Close() // Close waits for the current request
		return
	}
	h.sessions[s] = true
	if live == nil {
		live = context.Background()
	}
	stop := context.AfterFunc(live, func() {
		s.server.end(errGone)
		_ = there.Close() // the session has ended in any case
	})
	h.running.Go(func() {
		_ = there.Wait() // the reason does not matter
		stop()
		s.server.Close()
		h.mu.Lock()
		delete(h.sessions, s)
		h.mu.Unlock()
	})
}

// Close ends all sessions and waits for them.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	var all []*session
	for s := range h.sessions {
		all = append(all, s)
	}
	h.mu.Unlock()
	for _, s := range all {
		s.server.end(errGone)
		for there := range s.server.server.Sessions() {
			_ = there.Close() // likewise
		}
	}
	h.running.Wait()
}
