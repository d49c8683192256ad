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

// Caller is who sent a request.
type Caller struct {
	ID      string          // tells callers apart: a session is its caller's own
	Live    context.Context //nolint:containedctx // ends when the caller may no longer call; their sessions end with it. nil never does
	Options Options         // of a session that begins with the request
}

const (
	maxHTTPSessions = 16               // of one caller
	httpIdle        = 30 * time.Minute // of a session without a request; what runs in sandboxes goes on
	maxBody         = 1 << 20          // bytes of a request
)

// Handler serves MCP over streamable HTTP: POST, GET and DELETE of one path. Sessions are state of this process, and of whoever began
// them: with another's session nothing is done. It must be behind a door that lets nobody in without a bearer token, nor from pages of
// others; it refuses names that are not the loopback's on a loopback address all the same.
type Handler struct {
	caller func(*http.Request) (Caller, error)
	http   http.Handler

	mu       sync.Mutex
	closed   bool              // guarded by mu
	sessions map[*session]bool // guarded by mu
	running  sync.WaitGroup    // what ends sessions; Add is guarded by mu
}

// session is one client's stay.
type session struct {
	server *Server
	caller string
	began  sync.Once
}

// NewHandler returns a Handler. caller says who sent a request that the door let in; its error refuses the request. The caller closes
// the Handler.
func NewHandler(caller func(*http.Request) (Caller, error)) *Handler {
	h := &Handler{caller: caller, sessions: make(map[*session]bool)}
	streamable := sdk.NewStreamableHTTPHandler(h.begin, &sdk.StreamableHTTPOptions{SessionTimeout: httpIdle, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true})
	h.http = auth.RequireBearerToken(func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		c, err := caller(r)
		if err != nil || c.ID == "" {
			return nil, fmt.Errorf("%w: nobody's", auth.ErrInvalidToken)
		}
		return &auth.TokenInfo{UserID: c.ID, Expiration: time.Now().Add(time.Hour)}, nil // the door asks for each request
	}, nil)(streamable)
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.http.ServeHTTP(w, r) }

// begin makes the Server of a session that a request begins; nil refuses it.
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
	// The first message tells that the session is there to be waited for; one that never comes leaves nothing open.
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

// enter has s closed when its session ends, and its session ended with live, which may be nil, or the Handler.
func (h *Handler) enter(live context.Context, s *session, there *sdk.ServerSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		go there.Close() // it waits for the request that this is
		return
	}
	h.sessions[s] = true
	if live == nil {
		live = context.Background()
	}
	stop := context.AfterFunc(live, func() {
		s.server.end(errGone)
		_ = there.Close() // it has ended, one way or the other
	})
	h.running.Go(func() {
		_ = there.Wait() // why is of no use to anybody
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
			_ = there.Close() // the same
		}
	}
	h.running.Wait()
}
