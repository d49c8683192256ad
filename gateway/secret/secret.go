// Package secret holds credentials that the programs of sandboxes use and never have. A Store keeps
// the secrets of all owners. A Broker, one for each sandbox, ends the TLS of connections to their
// hosts, sets the credential in each request, and sends it on.
//
// The package knows names of owners and sandboxes, but no sandbox, network policy or client. Its
// caller authorises, connects and reports.
package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Secret is a credential and what it is for, without its value.
type Secret struct {
	Owner    string    `json:"-"`    // principal
	Name     string    `json:"name"` // a label, unique for the owner
	Bindings []Binding `json:"hosts"`
	// Names of sandboxes, existing or not. Empty: all of the owner's.
	Sandboxes []string `json:"sandboxes"`
	Source    Source   `json:"source"`
	// The value is only in memory: the secret ends with the daemon.
	SessionOnly bool      `json:"session_only"`
	Created     time.Time `json:"created"`
}

// Source says where a value comes from.
type Source struct {
	Kind Kind `json:"kind"`
	// The variable, the file or the command line; empty for KindValue.
	From string `json:"from,omitempty"`
}

// Kind is a kind of Source.
type Kind string

// The kinds of sources. Variables and files are read once, by the client that sets the secret. The
// daemon runs commands, when a value is needed.
const (
	KindValue Kind = "value"
	KindEnv   Kind = "env"
	KindFile  Kind = "file"
	KindCmd   Kind = "cmd"
)

// Limits of secrets.
const (
	maxSecrets  = 100 // of an owner
	maxBindings = 20
	maxRules    = 200      // of a host
	maxNames    = 200      // sandboxes of a secret
	MaxValue    = 16 << 10 // bytes of a value
	maxText     = 1 << 10  // bytes of a header template, a path or a source
)

// Value is the text of a credential. Formatting, logging and encoding it give redacted. The zero
// Value is empty.
type Value struct{ text func() string } // a function, so that reflection does not reach the text

const redacted = "[redacted]"

// ParseValue returns the value in text, without a final line end. An error does not contain it.
func ParseValue(text []byte) (Value, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case strings.TrimSpace(s) == "":
		return Value{}, usage("secret: the value is empty", "")
	case len(s) > MaxValue:
		return Value{}, usage(fmt.Sprintf("secret: the value is longer than %d bytes", MaxValue),
			"")
	case !httpguts.ValidHeaderFieldValue(s):
		return Value{}, usage("secret: the value is more than one line, or has control characters",
			"pass the value alone, in one line")
	}
	return Value{func() string { return s }}, nil
}

// IsZero reports whether v is empty.
func (v Value) IsZero() bool { return v.text == nil }

// reveal returns the text.
func (v Value) reveal() string {
	if v.text == nil {
		return ""
	}
	return v.text()
}

// String returns a placeholder.
func (Value) String() string { return redacted }

// Format writes a placeholder for every verb.
func (Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue returns a placeholder.
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder.
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Binding is a host to which requests get the credential. The port is 443.
type Binding struct {
	Host string `json:"host"`
	// NAME: TEXT, in which {} stands for the value, and {basic:USER} for USER and the value in
	// base64 (RFC 7617).
	Header string `json:"header"`
	Rules  []Rule `json:"allow"` // what requests may be; empty: any
	// Query parameters that carry credentials: removed from requests.
	Params []string `json:"params,omitempty"`
}

var validHost = regexp.MustCompile(
	`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])$`)

// check returns s in canonical form, or the first error.
func (s Secret) check() (Secret, error) {
	if _, err := wire.ParseLabel("secret name", s.Name); err != nil {
		return s, err
	}
	if len(s.Bindings) == 0 {
		return s, usage("secret "+s.Name+": missing host", "name it: --host api.example.com")
	}
	if len(s.Bindings) > maxBindings || len(s.Sandboxes) > maxNames {
		return s, usage(fmt.Sprintf("secret %s: more than %d hosts or %d sandboxes", s.Name,
			maxBindings, maxNames), "")
	}
	for _, name := range s.Sandboxes {
		if _, err := wire.ParseSandbox(name); err != nil {
			return s, err
		}
	}
	s.Sandboxes = sorted(s.Sandboxes)
	s.Bindings = slices.Clone(s.Bindings)
	seen := make(map[string]bool)
	for i, b := range s.Bindings {
		var err error
		if s.Bindings[i], err = b.check(); err != nil {
			return s, err
		}
		if host := s.Bindings[i].Host; seen[host] {
			return s, usage("secret "+s.Name+": host "+host+" is bound twice", "name it once")
		} else {
			seen[host] = true
		}
	}
	return s, s.Source.check()
}

func (s Source) check() error {
	switch {
	case !slices.Contains([]Kind{KindValue, KindEnv, KindFile, KindCmd}, s.Kind):
		return usage(fmt.Sprintf("secret: source %q: must be value, env, file or cmd", s.Kind), "")
	case len(s.From) > maxText:
		return usage(fmt.Sprintf("secret: the source is longer than %d bytes", maxText), "")
	}
	return nil
}

func (b Binding) check() (Binding, error) {
	if strings.Contains(b.Host, "*") {
		return b, usage(fmt.Sprintf("host %q: wildcards cannot be bound", b.Host),
			"name each host: a credential is for known servers only")
	}
	b.Host = strings.ToLower(strings.TrimSuffix(b.Host, "."))
	if !validHost.MatchString(b.Host) || len(b.Host) > 253 {
		return b, usage(fmt.Sprintf("host %.80q: must be a host name such as api.example.com, "+
			"without scheme, port or path", b.Host), "")
	}
	if len(b.Rules) > maxRules {
		return b, usage(fmt.Sprintf("host %s: more than %d paths and methods", b.Host, maxRules),
			"")
	}
	if _, _, err := parseHeader(b.Header); err != nil {
		return b, err
	}
	b.Rules = slices.Clone(b.Rules)
	for i, r := range b.Rules {
		var err error
		if b.Rules[i], err = r.check(); err != nil {
			return b, err
		}
	}
	return b, nil
}

// placeholder is where a header template has the value.
var placeholder = regexp.MustCompile(`\{(?:basic:([^{}:]*))?\}`)

// notCredentials are headers that HTTP itself uses.
var notCredentials = []string{"host", "connection", "content-length", "content-type",
	"transfer-encoding", "trailer", "te", "upgrade", "expect", "keep-alive", "proxy-connection"}

// parseHeader splits a template. Errors contain no more of it than the name: it may have the value
// by mistake.
func parseHeader(template string) (name, text string, err error) {
	const form = "write --header 'Authorization: Bearer {}'"
	name, text, ok := strings.Cut(template, ":")
	text = strings.TrimSpace(text)
	switch {
	case template == "":
		return "", "", usage("secret: missing header", form)
	case !ok || !httpguts.ValidHeaderFieldName(name) || len(template) > maxText:
		return "", "", usage("header: must be NAME: TEXT", form)
	case !httpguts.ValidHeaderFieldValue(text):
		return "", "", usage("header "+name+": must be one line without control characters", form)
	case slices.Contains(notCredentials, strings.ToLower(name)):
		return "", "", usage("header "+name+": HTTP uses it; it cannot carry a credential", form)
	case len(placeholder.FindAllString(text, -1)) != 1:
		return "", "", usage("header "+name+": must contain {} or {basic:USER} once, where the "+
			"value goes", form)
	}
	return name, text, nil
}

// applies reports whether s is for the sandbox called name.
func (s Secret) applies(name string) bool {
	return len(s.Sandboxes) == 0 || slices.Contains(s.Sandboxes, name)
}

// clash returns a host that s and other bind for the same sandbox, or "".
func (s Secret) clash(other Secret) string {
	both := len(s.Sandboxes) == 0 || len(other.Sandboxes) == 0 ||
		slices.ContainsFunc(s.Sandboxes, other.applies)
	if !both {
		return ""
	}
	for _, b := range s.Bindings {
		if slices.ContainsFunc(other.Bindings, func(o Binding) bool { return o.Host == b.Host }) {
			return b.Host
		}
	}
	return ""
}

// Hosts returns the names of the hosts of s.
func (s Secret) Hosts() []string {
	hosts := make([]string, len(s.Bindings))
	for i, b := range s.Bindings {
		hosts[i] = b.Host
	}
	return hosts
}

// sorted returns a sorted copy of list without duplicates. It is never nil.
func sorted(list []string) []string {
	out := append([]string{}, list...)
	slices.Sort(out)
	return slices.Compact(out)
}

func usage(message, hint string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: message, Hint: hint}
}

// errNoValue means that a command printed no value.
var errNoValue = errors.New("it printed no value")
