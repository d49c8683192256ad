package e2b

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// portsDomain is the domain that the SDKs are told for the ports of sandboxes (get_host), and that they would ask themselves without
// E2B_SANDBOX_URL. No such name ever has an address (RFC 6761, section 6.4): told none, they take e2b.app, and whoever follows get_host,
// or forgot the variable, would send the sandbox's access token there.
const portsDomain = "not-served-here.set-e2b-sandbox-url.invalid"

// misplacedPaths are where the SDKs ask if their addresses lack Prefix.
var misplacedPaths = append([]string{"/sandboxes", "/v2/sandboxes", "/v3/templates", "/snapshots", "/volumes", "/execute", "/contexts"}, envdPaths[1:4]...)

// Misplaced reports whether a request is an SDK's and comes to where none is answered: below no Prefix, or below one with a slash more.
// There the SDKs take only their own shape for an answer.
func Misplaced(r *http.Request) bool {
	if strings.HasPrefix(r.URL.Path, Prefix+"//") {
		return true
	}
	for _, p := range misplacedPaths {
		if below(r.URL.Path, p) || below(strings.TrimPrefix(r.URL.Path, "/"), p) {
			return true
		}
	}
	return false
}

// NoPlace lets no request in: it says where the SDK should have asked.
func NoPlace(r *http.Request) (token.Token, context.Context, error) {
	if r.URL.Query().Has("signature") {
		return token.Token{}, nil, errSigned
	}
	return token.Token{}, nil, &apiError{http.StatusNotFound, "E2B's routes are below " + Prefix + ": E2B_API_URL and E2B_SANDBOX_URL end with it, and with no slash"}
}

var errSigned error = &apiError{http.StatusNotImplemented, "signed URLs are not in this version: with E2B_SANDBOX_URL they do not say which sandbox is meant; use files.read and files.write"}

// below reports whether path is p or below it.
func below(path, p string) bool {
	p = strings.TrimSuffix(p, "/")
	return path == p || strings.HasPrefix(path, p+"/")
}
