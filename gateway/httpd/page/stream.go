package page

import (
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// StreamRoot begins the path of the terminal socket, an API for viewers of others. Its contract is
// docs/reference/terminal-socket.md.
const StreamRoot = "/v1/terminal/"

const (
	streamProtocol = "sandboxd.terminal"
	// Subprotocol with the token: scripts of browsers cannot set other headers.
	tokenProtocol = "token."
)

// Stream reports whether r opens a terminal socket. Browsers add no token to it by themselves, so
// scripts of any origin may open one.
func Stream(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, StreamRoot) &&
		strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// StreamSecret returns the token that the client of a terminal socket names as a subprotocol, or
// "".
func StreamSecret(r *http.Request) string {
	for _, p := range protocols(r) {
		if secret, ok := strings.CutPrefix(p, tokenProtocol); ok {
			return secret
		}
	}
	return ""
}

// protocols returns the subprotocols that a client of a socket offers.
func protocols(r *http.Request) []string {
	return strings.FieldsFunc(r.Header.Get("Sec-WebSocket-Protocol"),
		func(c rune) bool { return c == ',' || c == ' ' })
}

// stream is terminal for viewers of others: with start=yes it starts a session, as the page does.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	if !Stream(r) {
		rest.Fail(w, r, nil, rest.WithStatus(http.StatusUpgradeRequired,
			&wire.Error{Code: wire.CodeUsage, Message: "this path is a WebSocket",
				Hint: "docs/reference/terminal-socket.md has an example"}))
		return
	}
	h.serveAs(w, r, &websocket.AcceptOptions{Subprotocols: []string{streamProtocol},
		CompressionMode:    websocket.CompressionDisabled,
		InsecureSkipVerify: true, // of the origin: see Stream
	}, h.person(r, r.FormValue("start") == "yes"))
}
