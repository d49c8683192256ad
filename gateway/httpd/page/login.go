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

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A browser shows its token in two halves, neither of which says anything of it: a cookie that no script reads, and a key that the page
// keeps to itself and sends with each request. A cookie alone would not do: browsers send it to every port of this machine, where what
// answers may be a sandbox's own server that somebody forwarded.
const (
	keyHeader   = "X-Sandboxd-Key"
	protocol    = "sandboxd.page"
	keyProtocol = "key." // begins the key of a WebSocket, which can have no header of its own, among its protocols
	cookieTime  = 30 * 24 * time.Hour
)

// Secret is the token of a request of the page, or empty. A request that changes something, or that opens a socket, has to say which page
// it comes from: the door has compared that with itself already.
func Secret(r *http.Request) string {
	socket := strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	if r.Header.Get("Origin") == "" && (socket || r.Method != http.MethodGet) {
		return ""
	}
	key := r.Header.Get(keyHeader)
	if socket {
		for _, p := range strings.FieldsFunc(r.Header.Get("Sec-WebSocket-Protocol"), func(c rune) bool { return c == ',' || c == ' ' }) {
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

// cookieName has the port in it: daemons on one machine share its cookies.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "sandboxd_" + port
	}
	return "sandboxd"
}

// login exchanges a one-time code, or a token that somebody has, for the two halves of a token.
func (d *Door) login(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") == "" {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeDenied, Message: "only the page logs in here"})
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
		secret, t, err = d.Tokens.Redeem(r.Context(), asked.Code)
	default:
		secret = strings.TrimSpace(asked.Token)
		switch t, _, err = d.Tokens.Verify(secret); {
		case errors.Is(err, token.ErrUnbacked):
		case err != nil:
			err = &wire.Error{Code: wire.CodeDenied, Message: "nobody has this token, or no longer"}
		case t.Kind != wire.Person:
			err = &wire.Error{Code: wire.CodeDenied, Message: "this token is a program's, not a person's",
				Hint: "get a link with sandboxd page, or a token with sandboxd token new --person"}
		}
	}
	if err != nil {
		rest.Fail(w, r, d.Hub, err)
		return
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(secret, token.Prefix))
	if err != nil {
		rest.Fail(w, r, d.Hub, err)
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
	d.Log.Info("logged in to the page", "principal", t.Principal, "token", t.ID, "peer", r.RemoteAddr)
	rest.WriteJSON(w, http.StatusOK, map[string]any{"key": hex.EncodeToString(key), "made": asked.Code != ""})
}

// logout forgets the token in the browser; one that was made for it ends.
func (d *Door) logout(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Revoke bool `json:"revoke"`
	}
	err := rest.Decode(w, r, &asked)
	if caller := rest.Caller(r.Context()); err == nil && asked.Revoke {
		w.Header().Set("Connection", "close") // for the server it ends with the token
		err = d.Tokens.Revoke(r.Context(), caller.Principal, caller.ID)
	}
	if err != nil {
		rest.Fail(w, r, d.Hub, err)
		return
	}
	setCookie(w, r, "", -1)
	w.WriteHeader(http.StatusNoContent)
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: value, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: strings.HasPrefix(r.Header.Get("Origin"), "https://")}) // behind a proxy that has TLS
}
