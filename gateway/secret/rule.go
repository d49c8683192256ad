package secret

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// Rule is a set of requests: those with one of the methods, whose path is Path or below it.
type Rule struct {
	Methods []string `json:"methods,omitempty"` // in upper case; empty: any; GET includes HEAD
	// Begins with "/". It is compared segment by segment, and "*" matches one segment. Empty: any.
	Path string `json:"path,omitempty"`
}

// ParseRule parses [METHOD,…] PATH, such as /v1/messages, or POST /v1/messages.
func ParseRule(text string) (Rule, error) {
	methods, path, ok := strings.Cut(strings.TrimSpace(text), " ")
	if !ok {
		methods, path = "", methods
	}
	r := Rule{Path: strings.TrimSpace(path)}
	if methods != "" {
		r.Methods = strings.Split(methods, ",")
	}
	if r.Path == "" {
		return r, usage("path: must not be empty", "write --path /v1/messages")
	}
	return r.check()
}

// String returns r in the form of ParseRule.
func (r Rule) String() string {
	path := r.Path
	if path == "" {
		path = "/"
	}
	if len(r.Methods) == 0 {
		return path
	}
	return strings.Join(r.Methods, ",") + " " + path
}

func (r Rule) check() (Rule, error) {
	methods := make([]string, len(r.Methods))
	for i, m := range r.Methods {
		methods[i] = strings.ToUpper(m)
		switch {
		case !httpguts.ValidHeaderFieldName(m): // both are tokens (RFC 9110, section 5.6.2)
			return r, usage(fmt.Sprintf("method %.40q: must be one such as GET or POST", m), "")
		case isUnsafe(methods[i]):
			return r, usage("method "+methods[i]+": cannot be bound", "")
		}
	}
	r.Methods = methods
	if r.Path == "" {
		return r, nil
	}
	bad := func(why string) (Rule, error) {
		return r, usage(fmt.Sprintf("path %.80q: %s", r.Path, why), "write --path /v1/messages")
	}
	switch {
	case !strings.HasPrefix(r.Path, "/"):
		return bad("must begin with /")
	case strings.ContainsAny(r.Path, "?#%"):
		return bad("must be a plain path, without ?, # and %")
	case len(r.Path) > maxText:
		return bad("is too long")
	}
	segments, err := splitPath(r.Path)
	if err != nil {
		return bad(err.Error())
	}
	for _, s := range segments {
		if strings.Contains(s, "*") && s != "*" {
			return bad("* must be a whole segment")
		}
	}
	r.Path = strings.TrimSuffix(r.Path, "/") // "/" becomes any
	return r, nil
}

// isUnsafe reports whether a method may never reach a server: the answer to TRACE contains the
// credential, and CONNECT asks for a tunnel.
func isUnsafe(method string) bool {
	// TRACK is what old servers of Microsoft call TRACE. Some servers ignore case.
	return slices.Contains([]string{http.MethodTrace, "TRACK", http.MethodConnect},
		strings.ToUpper(strings.TrimSpace(method)))
}

// matchesPath reports whether segments, of splitPath, are Path or below it.
func (r Rule) matchesPath(segments []string) bool {
	if r.Path == "" {
		return true
	}
	want := strings.Split(r.Path[1:], "/")
	if len(segments) < len(want) {
		return false
	}
	for i, w := range want {
		if s := segments[i]; w != s && (w != "*" || s == "" || splits(s)) {
			return false
		}
	}
	return true
}

// splits reports whether a server that decodes a segment again, or puts it into another URL, could
// read more than one segment.
func splits(s string) bool {
	for range maxDecodings {
		if strings.ContainsAny(s, "/?#;") {
			return true
		}
		s = decode(s)
	}
	return false
}

func (r Rule) matchesMethod(method string) bool {
	return len(r.Methods) == 0 || slices.Contains(r.Methods, method) ||
		method == http.MethodHead && slices.Contains(r.Methods, http.MethodGet)
}

// Refusal is why a request is not sent on.
type Refusal struct {
	Rule string // host, target, method, path, override, upgrade or binding
	Why  string
}

func (r *Refusal) Error() string { return r.Why }

func refuse(rule, format string, args ...any) error {
	return &Refusal{rule, fmt.Sprintf(format, args...)}
}

// overrides are headers with which some servers replace the method or the path of a request.
var overrides = []string{"x-http-method-override", "x-http-method", "x-method-override",
	"x-original-url", "x-rewrite-url", "x-original-uri", "x-rewrite-uri", "x-original-method",
	"x-forwarded-method", "x-forwarded-uri", "x-forwarded-prefix", "x-envoy-original-path",
	"x-host", "x-original-host", "x-http-host-override"}

// overrideParams are parameters of the query that do so.
var overrideParams = []string{"_method", "$httpmethod", "$httpheaders"}

// mayPass returns a *Refusal unless b allows the request. What servers could read in more than one
// way is refused, with any rules.
func (b Binding) mayPass(r *http.Request) error {
	host := strings.ToLower(r.Host)
	if host != b.Host && host != b.Host+":443" {
		return refuse("host", "Host %.80q is not %s", r.Host, b.Host)
	}
	target, _, _ := strings.Cut(r.RequestURI, "?")
	if isUnsafe(r.Method) {
		return refuse("method", "method %s is never allowed", r.Method)
	}
	if !strings.HasPrefix(target, "/") {
		return refuse("target", "the request target must be a path, not %.80q", target)
	}
	if target != r.URL.EscapedPath() {
		return refuse("target", "path %.200q has characters that must be percent-encoded", target)
	}
	segments, err := splitPath(target)
	if err != nil {
		return refuse("target", "path %.200q: %v", target, err)
	}
	if kind := r.Header.Get("Upgrade"); kind != "" && !strings.EqualFold(kind, "websocket") {
		return refuse("upgrade", "an upgrade to %.40q is not allowed", kind) // no rule sees it
	}
	for name, values := range r.Header {
		if slices.Contains(overrides, plainName(name)) &&
			(len(b.Rules) > 0 || slices.ContainsFunc(values, isUnsafe)) {
			return refuse("override", "header %s replaces the method or path", name)
		}
	}
	for name := range r.URL.Query() {
		if len(b.Rules) > 0 && slices.Contains(overrideParams, strings.ToLower(name)) {
			return refuse("override", "parameter %.40q replaces the method", name)
		}
	}
	if len(b.Rules) == 0 {
		return nil
	}
	onPath := false
	for _, rule := range b.Rules {
		if rule.matchesPath(segments) {
			// What is sent by a WebSocket, which begins with a GET, is seen by no rule.
			onPath = true
			if rule.matchesMethod(r.Method) &&
				(r.Header.Get("Upgrade") == "" || rule.matchesMethod(http.MethodPost)) {
				return nil
			}
		}
	}
	if onPath {
		return refuse("method", "method %.40s is not bound for path %.200s", r.Method, target)
	}
	return refuse("path", "path %.200s is not bound", target)
}

// plainName returns the form of a header's name that servers with underscores read.
func plainName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// splitPath returns the decoded segments of a path in percent-encoding. It returns an error for a
// path that servers could resolve to another one: with empty or dot segments, in any encoding, with
// backslashes or control characters.
func splitPath(escaped string) ([]string, error) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return nil, errors.New("must begin with /")
	}
	segments := strings.Split(rest, "/")
	for i, segment := range segments {
		if segment == "" && i < len(segments)-1 {
			return nil, errors.New("empty segments (//) are not allowed")
		}
		decoded, err := url.PathUnescape(segment)
		if err != nil {
			return nil, errors.New("invalid percent-encoding")
		}
		if err := checkSegment(decoded); err != nil {
			return nil, err
		}
		segments[i] = decoded
	}
	return segments, nil
}

// maxDecodings is how often a segment may be percent-encoded.
const maxDecodings = 4

// checkSegment checks a decoded segment, and what it becomes when a server decodes it again.
func checkSegment(s string) error {
	for range maxDecodings {
		if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) ||
			strings.Contains(s, `\`) {
			return errors.New("backslashes, control characters and invalid UTF-8 are not allowed")
		}
		for part := range strings.SplitSeq(s, "/") {
			if part == "" && s != "" {
				return errors.New("empty segments (//) are not allowed")
			}
			name, _, _ := strings.Cut(part, ";") // parameters of a segment (RFC 3986, section 3.3)
			if name != "" && strings.Trim(name, ". ") == "" {
				return errors.New("dot segments (..) are not allowed")
			}
		}
		next := decode(s)
		if next == s {
			return nil
		}
		s = next
	}
	return errors.New("encoded too often")
}

var escapes = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// decode decodes the valid percent-encodings of a text. Other % stay, as with lenient servers.
func decode(s string) string {
	return escapes.ReplaceAllStringFunc(s, func(e string) string {
		b, _ := strconv.ParseUint(e[1:], 16, 8) // two digits
		return string([]byte{byte(b)})
	})
}
