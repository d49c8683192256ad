package secret

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
)

// requestOf returns a request as a server parses it.
func requestOf(method, target string) (*http.Request, error) {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, err
	}
	return &http.Request{Method: method, URL: u, RequestURI: target, Host: "api.example.com",
		Header: make(http.Header)}, nil
}

func TestMayPass(t *testing.T) {
	narrow := []Rule{{Path: "/v1/messages"}, {Methods: []string{"GET"}, Path: "/v1/models"},
		{Methods: []string{"POST"}, Path: "/*/*/git-upload-pack"}}
	for _, tt := range []struct {
		name, method, target string
		want                 string // the rule that refuses; empty: allowed
	}{
		{"the path", "POST", "/v1/messages", ""},
		{"below it", "POST", "/v1/messages/batches/1?x=/../", ""},
		{"with a slash", "POST", "/v1/messages/", ""},
		{"encoded letter", "GET", "/v1/message%73", ""},
		{"begins alike", "POST", "/v1/messagesx", "path"},
		{"above it", "GET", "/v1", "path"},
		{"another", "GET", "/v1/files", "path"},
		{"other case", "GET", "/V1/messages", "path"},
		{"method", "GET", "/v1/models", ""},
		{"HEAD is a GET", "HEAD", "/v1/models/x", ""},
		{"other method", "DELETE", "/v1/models", "method"},
		{"method in lower case", "get", "/v1/models", "method"},
		{"wildcard", "POST", "/owner/repo.git/git-upload-pack", ""},
		{"wildcard is one segment", "POST", "/a/b/c/git-upload-pack", "path"},
		{"wildcard is no encoded slash", "POST", "/a%2fb/c/git-upload-pack", "path"},
		{"TRACE", "TRACE", "/v1/messages", "method"},
		{"TRACE in lower case", "trace", "/v1/messages", "method"},
		{"TRACK", "Track", "/v1/messages", "method"},
		{"dots behind an invalid encoding", "POST", "/v1/messages/%25zz%252f..%252f..%252fadmin",
			"target"},
		{"backslash behind an invalid encoding", "POST", "/v1/messages/%25zz%255cx", "target"},
		{"encoded empty segments", "POST", "/v1/messages/%2f%2fx", "target"},
		{"wildcard is no slash that is encoded twice", "POST", "/a%252fb/c/git-upload-pack", "path"},
		{"wildcard is no query", "POST", "/a%3fb/c/git-upload-pack", "path"},
		{"_method", "POST", "/v1/messages?a=b&_method=DELETE", "override"},
		{"$httpMethod", "POST", "/v1/messages?%24httpMethod=DELETE", "override"},
		{"encoded slash below", "POST", "/v1/messages/a%2Fb", ""},
		{"encoded slash in the prefix", "POST", "/v1%2Fmessages", "path"},
		{"literal percent", "POST", "/v1/messages/100%25", ""},
		{"dots in a name", "POST", "/v1/messages/a..b", ""},
		{"dots", "POST", "/v1/messages/../files", "target"},
		{"dot", "POST", "/v1/./messages", "target"},
		{"dots at the end", "POST", "/v1/messages/..", "target"},
		{"encoded dots", "POST", "/v1/messages/%2e%2e/files", "target"},
		{"half encoded dots", "POST", "/v1/messages/.%2E/files", "target"},
		{"encoded twice", "POST", "/v1/messages/%252e%252e/files", "target"},
		{"encoded three times", "POST", "/v1/messages/%25252e%25252e/files", "target"},
		{"encoded often", "POST", "/v1/messages/%2525252525252e", "target"},
		{"encoded slash and dots", "POST", "/v1/messages/..%2ffiles", "target"},
		{"encoded slash before dots", "POST", "/v1/messages/x%2f..%2f..%2ffiles", "target"},
		{"parameters after dots", "POST", "/v1/messages/..;a=b/files", "target"},
		{"backslash", "POST", `/v1/messages/..%5cfiles`, "target"},
		{"plain backslash", "POST", `/v1/messages\files`, "target"},
		{"empty segment", "POST", "/v1//messages", "target"},
		{"empty segment first", "POST", "//v1/messages", "target"},
		{"control character", "POST", "/v1/messages/%00", "target"},
		{"encoded line end", "POST", "/v1/messages/%0d%0aHost:%20x", "target"},
		{"invalid UTF-8", "POST", "/v1/messages/%c0%ae%c0%ae", "target"},
		{"not encoded", "POST", "/v1/messages/\"", "target"},
		{"absolute form", "POST", "https://api.example.com/v1/messages", "target"},
		{"asterisk", "OPTIONS", "*", "target"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := requestOf(tt.method, tt.target)
			if err != nil {
				t.Fatal(err)
			}
			b := Binding{Host: "api.example.com", Rules: narrow}
			err = b.mayPass(r)
			got := ""
			if refusal, ok := errors.AsType[*Refusal](err); ok {
				got = refusal.Rule
			}
			if got != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("got %v by %q, want %q", err, got, tt.want)
			}
			b.Rules = nil // what servers read in more than one way is refused all the same
			if err := b.mayPass(r); (err == nil) != (tt.want == "" || tt.want == "path" ||
				tt.want == "override" || tt.want == "method" && !isUnsafe(tt.method)) {
				t.Errorf("without rules: got %v", err)
			}
		})
	}
}

func TestMayPassHost(t *testing.T) {
	for host, want := range map[string]bool{"api.example.com": true, "api.example.com:443": true,
		"API.example.com": true, "api.example.com:8443": false, "example.com": false,
		"api.example.com.": false, "": false, "api.example.com@evil.test": false} {
		r, err := requestOf("GET", "/")
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if err := (Binding{Host: "api.example.com"}).mayPass(r); (err == nil) != want {
			t.Errorf("Host %q: got %v, want allowed %v", host, err, want)
		}
	}
}

func TestMayPassHeaders(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		rules       bool
		want        bool
	}{
		{"X-Http-Method-Override", "DELETE", true, false},
		{"X_HTTP_Method_Override", "DELETE", true, false},
		{"X-Original-Url", "/admin", true, false},
		{"X-Original-Url", "/admin", false, true},
		{"X-Http-Method-Override", "TRACE", false, false},
		{"X-Forwarded-Method", "DELETE", true, false},
		{"Upgrade", "websocket", true, true},
		{"Upgrade", "h2c", false, false},
	} {
		r, err := requestOf("GET", "/v1")
		if err != nil {
			t.Fatal(err)
		}
		r.Header[tt.name] = []string{tt.value}
		b := Binding{Host: "api.example.com"}
		if tt.rules {
			b.Rules = []Rule{{Path: "/v1"}}
		}
		if err := b.mayPass(r); (err == nil) != tt.want {
			t.Errorf("%s: %s: got %v, want allowed %v", tt.name, tt.value, err, tt.want)
		}
	}
}

// What is sent by a WebSocket is seen by no rule: one that allows only reading allows none.
func TestMayPassWebSocket(t *testing.T) {
	for _, tt := range []struct {
		methods []string
		want    bool
	}{{nil, true}, {[]string{"GET"}, false}, {[]string{"GET", "POST"}, true}} {
		r, err := requestOf("GET", "/v1")
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Upgrade", "websocket")
		b := Binding{Host: "api.example.com", Rules: []Rule{{Methods: tt.methods, Path: "/v1"}}}
		if err := b.mayPass(r); (err == nil) != tt.want {
			t.Errorf("%v: %v", tt.methods, err)
		}
	}
}

func TestParseRule(t *testing.T) {
	for text, want := range map[string]string{
		"/v1/messages":                  "/v1/messages",
		"/v1/":                          "/v1",
		"/":                             "/",
		"post /v1":                      "POST /v1",
		"GET,POST /a/*/c":               "GET,POST /a/*/c",
		"v1/messages":                   `path "v1/messages": must begin with /`,
		"":                              "path: must not be empty",
		"/v1/../x":                      `path "/v1/../x": dot segments`,
		"//v1":                          `path "//v1": empty segments`,
		"/v1?x=1":                       `path "/v1?x=1": must be a plain path`,
		"/v%31":                         `path "/v%31": must be a plain path`,
		"/v1*":                          `path "/v1*": * must be a whole segment`,
		"TRACE /v1":                     "method TRACE: cannot be bound",
		"CONNECT /v1":                   "method CONNECT: cannot be bound",
		"G(T /v1":                       `method "G(T": must be one such as GET`,
		"GET https://x.test/v1":         "must begin with /",
		"/" + strings.Repeat("x", 2000): "is too long",
	} {
		r, err := ParseRule(text)
		got := r.String()
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%.40q: got %q, want %q", text, got, want)
		}
	}
}

// What passes a rule stays below its path, however often a server decodes and cleans it.
func FuzzRule(f *testing.F) {
	for _, seed := range []string{"/v1/messages", "/v1/messages/../files", "/v1/messages/%2e%2e",
		"/v1/messages/%252e%252e%252f", "//v1", "/v1/messages/..;/x", `/v1\..\x`,
		"/v1/messages%2f..%2f..", "/v1/messages?x", "/v1/messages/%c0%ae", "/v1/messages/;/../x"} {
		f.Add(seed)
	}
	b := Binding{Host: "api.example.com", Rules: []Rule{{Path: "/v1/messages"}}}
	f.Fuzz(func(t *testing.T, target string) {
		r, err := requestOf("GET", target)
		if err != nil || b.mayPass(r) != nil {
			return
		}
		for p := r.URL.EscapedPath(); ; {
			clean := path.Clean(strings.ReplaceAll(p, `\`, "/"))
			if clean != "/v1/messages" && !strings.HasPrefix(clean, "/v1/messages/") {
				// Only the rule's own segments may still be encoded.
				if decoded, err := url.PathUnescape(clean); err != nil ||
					decoded != "/v1/messages" && !strings.HasPrefix(decoded, "/v1/messages/") {
					t.Fatalf("%q passes, and a server reads %q", target, clean)
				}
			}
			next, err := url.PathUnescape(p)
			if err != nil || next == p {
				return
			}
			p = next
		}
	})
}
