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

	"github.com/sandboxd/sandboxd/sandbox/host"
)

// target is the destination of a URI.
type target struct {
	user, host, port string
	path             string
	identities       []string // IdentityFile of ssh_config
	knownHosts       []string // UserKnownHostsFile of ssh_config
}

func (t target) addr() string { return net.JoinHostPort(t.host, t.port) }

// uri returns the target as a URI for package host.
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

// parseURI parses the URI of a sandbox or a host. A gateway ignores the path.
func parseURI(s string) (target, error) {
	u, err := host.ParseURI(s)
	if err != nil {
		return target{}, &Error{
			Code:    CodeUsage,
			Message: err.Error(),
			Hint:    "write ssh://NAME@HOST:PORT for a sandbox, ssh://USER@HOST for a host",
		}
	}
	return target{user: u.User, host: u.Host, port: u.Port, path: u.Path}, nil
}

// resolve looks up a host without a port in OpenSSH's configuration: it may be an alias.
func (t *target) resolve(ctx context.Context) error {
	if t.port != "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, "ssh", "-G", "--", t.host).Output()
	if err != nil { // OpenSSH is not installed: use the host name as it is
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
				return &Error{
					Code: CodeUnavailable,
					Message: fmt.Sprintf(
						"%s: %s in the ssh configuration is not supported",
						t.host,
						key,
					),
				}
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
