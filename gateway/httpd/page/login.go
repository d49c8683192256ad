package page

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A browser sends its token in two halves, each of which reveals nothing about it. One is a cookie
// that scripts cannot read, the other a key that the page stores and sends with each request. A
// cookie alone would not do: browsers send it to every port of this machine, also to a forwarded
// port of a sandbox.
const (
	keyHeader = "X-Sandboxd-Key"
	protocol  = "sandboxd.page"
	// Prefix of the key among the protocols of a WebSocket, which cannot have its own header.
	keyProtocol = "key."
	cookieTime  = 30 * 24 * time.Hour
)

// Secret returns the token of a request of the page, or "". A request that changes something or
// opens a socket needs an Origin header. The guard has already compared it with the host.
func Secret(r *http.Request) string {
	socket := strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	if r.Header.Get("Origin") == "" && (socket || r.Method != http.MethodGet) {
		return ""
	}
	key := r.Header.Get(keyHeader)
	if socket {
		for _, p := range protocols(r) {
			if k, ok := strings.CutPrefix(p, keyProtocol); ok {
				key = k
			}
		}
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	a, errA := hex.DecodeString(key)
	b, errB := hex.DecodeString(cookie.Value)
	if errA != nil || errB != nil || len(a) == 0 || len(a) != len(b) {
		return ""
	}
	subtle.XORBytes(a, a, b)
	return token.Prefix + hex.EncodeToString(a)
}

// cookieName includes the port, because all ports of a host share cookies.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "sandboxd_" + port
	}
	return "sandboxd"
}

// login exchanges a one-time code, or a token, for the two halves of a token.
func (h *Handler) login(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") == "" {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeDenied,
			Message: "requests without Origin cannot log in here"})
		return
	}
	var asked struct {
		Code  string `json:"code"`
		Token string `json:"token"`
	}
	err := rest.Decode(w, r, &asked)
	var secret string
	var t token.Token
	switch {
	case err != nil:
	case asked.Code != "":
		secret, t, err = h.Tokens.Redeem(r.Context(), asked.Code)
	default:
		secret = strings.TrimSpace(asked.Token)
		switch t, _, err = h.Tokens.Verify(secret); {
		case errors.Is(err, token.ErrUnbacked):
		case err != nil:
			err = &wire.Error{Code: wire.CodeDenied,
				Message: "unknown token: expired, revoked, or incomplete"}
		case t.Kind != wire.Person:
			err = &wire.Error{Code: wire.CodeDenied,
				Message: "token belongs to a program, not to a person",
				Hint: "get a link with sandboxd page, or a token with sandboxd token new " +
					"--person"}
		}
	}
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(secret, token.Prefix))
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	key := make([]byte, len(raw))
	rand.Read(key) // never fails (crypto/rand)
	subtle.XORBytes(raw, raw, key)
	age := cookieTime
	if t.Expires != nil {
		age = min(age, time.Until(*t.Expires))
	}
	setCookie(w, r, hex.EncodeToString(raw), int(age.Seconds())+1)
	h.Log.Info("logged in to the dashboard", "principal", t.Principal, "token", t.ID, "peer",
		r.RemoteAddr)
	rest.WriteJSON(w, http.StatusOK, map[string]any{"key": hex.EncodeToString(key),
		"made": asked.Code != ""})
}

// logout deletes the token in the browser. A token that was created for this login is revoked.
func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Revoke bool `json:"revoke"`
	}
	err := rest.Decode(w, r, &asked)
	caller := rest.Caller(r.Context())
	h.Ports.forget(caller.ID)
	if _, link := gateway.LinkOf(caller.Principal); err == nil && asked.Revoke && !link {
		w.Header().Set("Connection", "close") // the server ends the connection with the token
		err = h.Tokens.Revoke(r.Context(), caller.Principal, caller.ID)
	}
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	setCookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: strings.HasPrefix(r.Header.Get("Origin"), "https://")}) // a TLS proxy is in front
}
