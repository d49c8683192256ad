package wire

import (
	"fmt"
	"strings"
)

// Names with a meaning of their own.
const (
	DefaultSession = "main"     // session of a target that names none
	NewSession     = "new"      // reserved: starts a new session with a generated name
	ControlHost    = "sandboxd" // reserved user name of the control host, which runs commands
)

// MaxLabel is the maximal length of a DNS label (RFC 1035, section 2.3.4).
const MaxLabel = 63

var reserved = map[string]bool{
	ControlHost: true,
	"root":      true,
	"admin":     true,
	"git":       true,
	NewSession:  true,
}

// Reserved reports whether name is reserved and cannot name a sandbox.
func Reserved(name string) bool { return reserved[name] }

// ParseLabel checks a sandbox or session name: a DNS label, [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?.
// Every name that becomes a path, label, mount or argument must pass it. what describes the name in
// the error.
func ParseLabel(what, s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", &Error{
			Code:    CodeUsage,
			Message: fmt.Sprintf("%s %s: %s", what, quoteShort(s), why),
			Hint:    "use a-z, 0-9 and inner hyphens, at most 63 characters",
		}
	}
	switch {
	case s == "":
		return bad("is empty")
	case len(s) > MaxLabel:
		return bad("is too long")
	case s[0] == '-' || s[len(s)-1] == '-':
		return bad("begins or ends with a hyphen")
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return bad("is not a name")
		}
	}
	return s, nil
}

// ParseSandbox checks the name of a sandbox: a label that is not reserved.
func ParseSandbox(s string) (string, error) {
	name, err := ParseLabel("sandbox name", s)
	if err != nil {
		return "", err
	}
	if Reserved(name) {
		return "", &Error{
			Code:    CodeUsage,
			Message: "sandbox name " + quoteShort(name) + " is reserved",
			Hint:    "choose another name",
		}
	}
	return name, nil
}

// Target is a session in a sandbox, written NAME or NAME~SESSION.
type Target struct {
	Sandbox string
	Session string // never empty after ParseTarget
}

// ParseTarget parses NAME or NAME~SESSION. It accepts the user name of the control host,
// which the caller routes.
func ParseTarget(s string) (Target, error) {
	name, session, found := strings.Cut(s, "~")
	t := Target{Session: DefaultSession}
	var err error
	if t.Sandbox, err = ParseLabel("sandbox name", name); err != nil {
		return Target{}, err
	}
	if found {
		if t.Session, err = ParseLabel("session name", session); err != nil {
			return Target{}, err
		}
	}
	return t, nil
}

// String is the inverse of ParseTarget. It omits the default session.
func (t Target) String() string {
	if t.Session == "" || t.Session == DefaultSession {
		return t.Sandbox
	}
	return t.Sandbox + "~" + t.Session
}

// quoteShort quotes an untrusted string for an error, at most 64 bytes of it.
func quoteShort(s string) string {
	if len(s) > 64 {
		return fmt.Sprintf("%+q…", s[:64])
	}
	return fmt.Sprintf("%+q", s)
}
