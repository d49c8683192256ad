// Package page is the web dashboard for people: a live list of sessions that need attention,
// terminals to watch and take over, and replays of records. The daemon renders terminals, as for
// people over SSH. The package decides no access: it calls the hub as the person whose token the
// request has.
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

// Root is the path of all files and routes of the dashboard except its start page. Requests below
// it may send their token in two halves; see Secret.
const Root = "/page/"

// files are the HTML, style sheets and modules of the page. No build step changes them.
// scripts/page-vendor copies third-party files to vendor.
//
//go:embed static
var files embed.FS

// policy allows only what this server serves: no inline scripts or styles, no frames around the
// page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for " +
	"'script'; trusted-types 'none'"

// Options configure a Handler.
type Options struct {
	Hub    *gateway.Hub
	Tokens *token.Registry
	Prefix byte // prefix key of terminals, as view.Keys has it
	Log    *slog.Logger
}

// Handler serves the dashboard.
type Handler struct {
	Options
	Ports *Ports // answers requests that Covers reports; the caller closes it

	mu      sync.Mutex
	sockets map[string]int // guarded by mu; number of open sockets, by principal
	open    int            // guarded by mu; number of all open sockets
}

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{Options: o, Ports: newPorts(o), sockets: make(map[string]int)}
}

// Open reports whether path needs no token: the page, its static files and its login.
func Open(path string) bool {
	return path == "/" || path == Root+"login" || strings.HasPrefix(path, Root+"static/")
}

// Mount adds the routes of the dashboard to mux.
func (h *Handler) Mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", index)
	mux.HandleFunc("GET "+Root+"static/{name...}",
		func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, r.PathValue("name")) })
	mux.HandleFunc("POST "+Root+"login", h.login)
	mux.HandleFunc("POST "+Root+"logout", h.logout)
	mux.HandleFunc("GET "+Root+"records/{sandbox}", h.records)
	mux.HandleFunc("GET "+Root+"live", h.live)
	mux.HandleFunc("GET "+Root+"screens", h.screens)
	mux.HandleFunc("POST "+Root+"answer/{sandbox}/{session}", h.answer)
	mux.HandleFunc("GET "+Root+"files/{sandbox}", h.listFiles)
	mux.HandleFunc("GET "+Root+"changes/{sandbox}", h.changes)
	mux.HandleFunc("GET "+Root+"file/{sandbox}", h.getFile)
	mux.HandleFunc("PUT "+Root+"file/{sandbox}", h.putFile)
	mux.HandleFunc("GET "+Root+"ports/{sandbox}", h.listPorts)
	mux.HandleFunc("POST "+Root+"ports/{sandbox}/{port}", h.Ports.open)
	mux.HandleFunc("POST "+Root+"sandboxes", h.create)
	mux.HandleFunc("POST "+Root+"sandboxes/{sandbox}/fork", h.fork)
	mux.HandleFunc("POST "+Root+"sandboxes/{sandbox}/start", h.start)
	mux.HandleFunc("POST "+Root+"sandboxes/{sandbox}/stop", h.stop)
	mux.HandleFunc("POST "+Root+"sandboxes/{sandbox}/link", h.link)
	mux.HandleFunc("DELETE "+Root+"sandboxes/{sandbox}", h.remove)
	mux.HandleFunc("GET "+Root+"terminal/{sandbox}/{session}", h.terminal)
	mux.HandleFunc("GET "+StreamRoot+"{sandbox}/{session}", h.stream)
	mux.HandleFunc("GET "+Root+"find/{sandbox}/{session}", h.find)
	mux.HandleFunc("GET "+Root+"replay/{sandbox}/{session}", h.replay)
}

var kinds = map[string]string{".html": "text/html; charset=utf-8",
	".css": "text/css; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml"}

// elsewhere marks the page for a visitor who followed a link from another site. The page then asks
// before it uses the link's code. Otherwise an attacker could log visitors in as the attacker, and
// see what they type.
var elsewhere = []byte(`<html lang="en" data-from="elsewhere">`)

// index serves the page. Sec-Fetch-Site says where the visitor came from. It is "none" for a typed
// address or a link from a terminal.
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

// again matches the extra path elements with which boot.mjs retries a file that did not load.
var again = regexp.MustCompile(`^(~[0-9]{1,9}/)+`)

func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	name = again.ReplaceAllString(name, "")
	text, err := fs.ReadFile(files, path.Join("static", path.Clean("/"+name)))
	kind := kinds[path.Ext(name)]
	if err != nil || kind == "" || kind == kinds[".html"] {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeNotFound, Message: "no such file"})
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
	// The browser revalidates each time; the ETag mostly avoids a new download.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
