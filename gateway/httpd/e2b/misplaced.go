package e2b

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// portsDomain is the domain of sandboxes' ports (get_host) for the SDKs, which they also use
// without E2B_SANDBOX_URL. The name never has an address (RFC 6761, section 6.4). Without it the
// SDKs take e2b.app, and would send a sandbox's access token there.
const portsDomain = "not-served-here.set-e2b-sandbox-url.invalid"

// misplacedPaths are the SDKs' paths if their addresses lack Prefix.
var misplacedPaths = append([]string{"/sandboxes", "/v2/sandboxes", "/v3/templates", "/snapshots", "/volumes", "/execute", "/contexts"}, envdPaths[1:4]...)

// Misplaced reports whether a request comes from an SDK to a path without Prefix, or with one
// slash too many. The SDKs understand only E2B's errors there.
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

// NoPlace denies every request and says which address the SDK should use.
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
