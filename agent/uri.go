package agent

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// target is where a URI leads.
type target struct {
	user, host, port string
	path             string
	identities       []string // of ssh_config
	knownHosts       []string // of ssh_config
}

func (t target) addr() string { return net.JoinHostPort(t.host, t.port) }

// uri is the target as package host reads it.
func (t target) uri() string {
	u := url.URL{Scheme: "ssh", Host: t.host}
	if strings.Contains(t.host, ":") {
		u.Host = "[" + t.host + "]"
	}
	if t.port != "" {
		u.Host = t.addr()
	}
	if t.user != "" {
		u.User = url.User(t.user)
	}
	return u.String()
}

// parseURI reads ssh://user@host:port/dir, user@host:port and user@alias. A gateway has no use for the directory.
func parseURI(s string) (target, error) {
	shown := s
	bad := func(why string) (target, error) {
		return target{}, &Error{Code: wire.CodeUsage, Message: fmt.Sprintf("ssh URI %q: %s", shown, why), Hint: "write ssh://NAME@HOST:PORT for a sandbox, ssh://USER@HOST for a host"}
	}
	raw := s
	if !strings.Contains(raw, "://") {
		raw = "ssh://" + raw
	}
	u, err := url.Parse(raw)
	if at := strings.LastIndexByte(s, '@'); at >= 0 && strings.Contains(strings.TrimPrefix(s[:at], "ssh://"), ":") {
		shown = "…" + s[at:] // who has put a password there does not want to read it in a log
	}
	switch {
	case err != nil:
		return bad("it does not parse")
	case u.Scheme != "ssh":
		return bad("the scheme is not ssh")
	case u.Hostname() == "":
		return bad("it names no host")
	case strings.HasPrefix(u.Hostname(), "-"):
		return bad("a host name does not begin with a hyphen")
	}
	if _, set := u.User.Password(); set {
		return bad("a password does not belong into a URI")
	}
	return target{user: u.User.Username(), host: u.Hostname(), port: u.Port(), path: strings.Trim(u.Path, "/")}, nil
}

// resolve asks OpenSSH what a name without a port means: it may be an alias.
func (t *target) resolve(ctx context.Context) error {
	if t.port != "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, "ssh", "-G", "--", t.host).Output()
	if err != nil { // no OpenSSH here: the name is a name
		t.port = "22"
		return nil
	}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "hostname":
			t.host = value
		case "port":
			t.port = value
		case "identityfile":
			t.identities = append(t.identities, expandHome(value))
		case "userknownhostsfile":
			for f := range strings.FieldsSeq(value) {
				t.knownHosts = append(t.knownHosts, expandHome(f))
			}
		case "proxycommand", "proxyjump":
			if value != "none" {
				return &Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("%s is reached through a %s, which this library does not use yet", t.host, key)}
			}
		}
	}
	return nil
}

func expandHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}
