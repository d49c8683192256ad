package e2b

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// portsDomain is the domain of sandboxes' ports (get_host) for the SDKs. Without E2B_SANDBOX_URL
// they also send requests there. The name never resolves (RFC 6761, section 6.4). Without it, the
// SDKs would send a sandbox's access token to e2b.app.
const portsDomain = "not-served-here.set-e2b-sandbox-url.invalid"

// misplacedPaths are the paths of SDKs whose address lacks Prefix.
var misplacedPaths = append([]string{"/sandboxes", "/v2/sandboxes", "/v3/templates", "/snapshots",
	"/volumes", "/execute", "/contexts"}, envdPaths[1:4]...)

// Misplaced reports whether a request comes from an SDK whose address lacks Prefix or has an extra
// slash. The SDKs can parse only E2B's error format.
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

// NoPlace rejects every request, and says which address the SDK should use.
func NoPlace(r *http.Request) (token.Token, context.Context, error) {
	if r.URL.Query().Has("signature") {
		return token.Token{}, nil, errSigned
	}
	return token.Token{}, nil, &apiError{http.StatusNotFound, "E2B's routes are below " + Prefix +
		": E2B_API_URL and E2B_SANDBOX_URL must end with it, without a slash"}
}

var errSigned error = &apiError{http.StatusNotImplemented,
	"signed URLs are not supported: with E2B_SANDBOX_URL they do not name the sandbox; use " +
		"files.read and files.write"}

// below reports whether path is p or below it.
func below(path, p string) bool {
	p = strings.TrimSuffix(p, "/")
	return path == p || strings.HasPrefix(path, p+"/")
}
