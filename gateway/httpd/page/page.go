// Package page is the page for people: who needs them, live; any session to watch, with its keyboard to take and to give back; records to
// play. What a terminal shows there is drawn by the daemon, as it is for who comes by SSH. It says who may see what in no way of its own: it
// asks the hub as the person whose token came.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Root is where everything of the page but itself is served; a request there may show its token as the page does, see Secret.
const Root = "/page/"

// files is the page: modules as a browser takes them, without a build. What is below vendor is of others, see scripts/page-vendor.
//
//go:embed static
var files embed.FS

// policy lets the page load what this server serves, and nothing else: no script or style in its text, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Options are what a Door needs.
type Options struct {
	Hub    *gateway.Hub
	Tokens *token.Registry
	Prefix byte // of people in a session, as view.Keys has it
	Log    *slog.Logger
}

// Door serves the page.
type Door struct {
	Options

	mu      sync.Mutex
	sockets map[string]int // guarded by mu; open ones, by principal
	open    int            // guarded by mu; of all tokens
}

// New makes a Door.
func New(o Options) *Door { return &Door{Options: o, sockets: make(map[string]int)} }

// Open reports whether path is served to anybody: the page itself, which knows nothing, and the way to log in.
func Open(path string) bool {
	return path == "/" || path == Root+"login" || strings.HasPrefix(path, Root+"static/")
}

// Mount adds the routes of the page to mux.
func (d *Door) Mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", index)
	mux.HandleFunc("GET "+Root+"static/{name...}", func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, r.PathValue("name")) })
	mux.HandleFunc("POST "+Root+"login", d.login)
	mux.HandleFunc("POST "+Root+"logout", d.logout)
	mux.HandleFunc("GET "+Root+"records/{sandbox}", d.records)
	mux.HandleFunc("GET "+Root+"live", d.live)
	mux.HandleFunc("GET "+Root+"terminal/{sandbox}/{session}", d.terminal)
	mux.HandleFunc("GET "+Root+"replay/{sandbox}/{session}", d.replay)
}

var kinds = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml"}

// elsewhere is how the page begins for who came by a link of another page: it asks them before it uses the code of that link. Otherwise
// whoever has a code of their own could have others log in as them, and see what they type.
var elsewhere = []byte(`<html lang="en" data-from="elsewhere">`)

// index serves the page itself. A browser says where somebody came from; from nowhere is by hand, or from a terminal.
func index(w http.ResponseWriter, r *http.Request) {
	text, err := files.ReadFile("static/index.html")
	if err != nil {
		panic(err) // it is embedded
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		text = bytes.Replace(text, []byte(`<html lang="en">`), elsewhere, 1)
	}
	w.Header().Set("Vary", "Sec-Fetch-Site")
	serveText(w, r, kinds[".html"], text)
}

// again begins names by which a file is asked for that could not be loaded by its own, see boot.mjs.
var again = regexp.MustCompile(`^(~[0-9]{1,9}/)+`)

func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	name = again.ReplaceAllString(name, "")
	text, err := fs.ReadFile(files, path.Join("static", path.Clean("/"+name)))
	kind := kinds[path.Ext(name)]
	if err != nil || kind == "" || kind == kinds[".html"] {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeNotFound, Message: "nothing is served here"})
		return
	}
	serveText(w, r, kind, text)
}

func serveText(w http.ResponseWriter, r *http.Request, kind string, text []byte) {
	sum := sha256.Sum256(text)
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // asked for again each time, and mostly not sent again
	h.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
