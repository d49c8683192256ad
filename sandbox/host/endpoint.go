package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kevinburke/ssh_config"

	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// endpoint is one SSH server, with its settings from the user's ssh configuration.
type endpoint struct {
	name       string // as the user gave it, for errors
	user       string
	host, port string
	keyAlias   string   // HostKeyAlias
	identities []string // files of private keys, in order
	only       bool     // IdentitiesOnly: use no other keys of the agent
	agent      string   // socket of the ssh agent; empty if there is none
	known      []string // known_hosts files
	algorithms []string // host key types, in order
	jumps      []string // ProxyJump, in order
	proxy      string   // ProxyCommand, with unexpanded tokens
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, e.port) }

// keyName is the server's name in known_hosts files.
func (e endpoint) keyName() string {
	if e.keyAlias != "" {
		return net.JoinHostPort(e.keyAlias, "22")
	}
	return e.addr()
}

func (e endpoint) String() string { return e.user + "@" + e.addr() }

// resolveTimeout bounds the time in which ssh applies its configuration to a name.
const resolveTimeout = 15 * time.Second

// URI is the target of a login. Parts that it lacks are empty.
type URI struct {
	User, Host, Port string
	Path             string // without leading and trailing slashes
}

// ParseURI parses ssh://[user@]host[:port][/path], [user@]host[:port], or an alias of ssh_config,
// which looks like a host (draft-ietf-secsh-scp-sftp-ssh-uri). Its parts may be arguments of ssh:
// none begins with a hyphen or contains a blank.
func ParseURI(s string) (URI, error) {
	shown := s
	bad := func(why string) (URI, error) {
		return URI{}, fmt.Errorf("ssh URI %q: %s", shown, why)
	}
	raw := s
	if !strings.Contains(raw, "://") {
		raw = "ssh://" + raw
	}
	u, err := url.Parse(raw)
	if at := strings.LastIndexByte(s, '@'); at >= 0 &&
		strings.Contains(strings.TrimPrefix(s[:at], "ssh://"), ":") {
		shown = "…" + s[at:] // keep a mistaken password out of logs
	}
	switch {
	case err != nil:
		return bad("not a valid URI")
	case u.Scheme != "ssh":
		return bad("the scheme must be ssh")
	case u.Hostname() == "":
		return bad("the host is missing")
	case u.RawQuery != "" || u.Fragment != "":
		return bad("a query or fragment is not allowed")
	case strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(u.User.Username(), "-"):
		return bad("a name must not begin with a hyphen")
	case strings.ContainsFunc(u.Hostname()+u.User.Username(),
		func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return bad("a name must not contain blanks")
	}
	if _, set := u.User.Password(); set {
		return bad("a password in a URI is not allowed")
	}
	return URI{User: u.User.Username(), Host: u.Hostname(), Port: u.Port(),
		Path: strings.Trim(u.Path, "/")}, nil
}

// resolve returns the endpoint of a URI: by OpenSSH itself if it is installed, else by its
// configuration files.
func resolve(ctx context.Context, uri string) (endpoint, error) {
	at, err := ParseURI(uri)
	if err == nil && at.Path != "" {
		err = fmt.Errorf("ssh URI %q: a path is not allowed", uri)
	}
	if err != nil {
		return endpoint{}, err
	}
	args := []string{"-G"}
	if at.User != "" {
		args = append(args, "-l", at.User)
	}
	if at.Port != "" {
		args = append(args, "-p", at.Port)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, resolveTimeout,
		fmt.Errorf("no answer within %v: check the Match exec lines of your ssh configuration",
			resolveTimeout))
	defer cancel()
	ask := exec.CommandContext(ctx, "ssh", append(args, "--", at.Host)...)
	signals.EndTogether(ask, syscall.SIGKILL) // with the programs of its Match exec
	// A program of a Match exec may hold its output.
	ask.WaitDelay = time.Second
	out, err := ask.Output()
	e := endpoint{name: uri, agent: os.Getenv("SSH_AUTH_SOCK")}
	var failed *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		e.readOpenSSH(string(out))
	case ctx.Err() != nil:
		return endpoint{}, fmt.Errorf("%s: ssh -G: %w", uri, context.Cause(ctx))
	case errors.As(err, &failed):
		return endpoint{}, fmt.Errorf("%s: ssh -G: %s", uri,
			strings.TrimSpace(string(failed.Stderr)))
	case errors.Is(err, exec.ErrNotFound):
		e.readConfig(at.Host)
	default:
		return endpoint{}, fmt.Errorf("%s: ssh -G: %w", uri, err)
	}
	for _, of := range []struct {
		field       *string
		said, other string
	}{{&e.user, at.User, localUser()}, {&e.port, at.Port, "22"}, {&e.host, "", at.Host}} {
		switch {
		case of.said != "":
			*of.field = of.said
		case *of.field == "":
			*of.field = of.other
		}
	}
	return e, nil
}

func localUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// readOpenSSH reads the output of ssh -G: on each line a keyword in lower case and its value.
func (e *endpoint) readOpenSSH(out string) {
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		e.set(key, value)
	}
}

// readConfig reads the user's and the system's configuration files, on a machine without OpenSSH.
func (e *endpoint) readConfig(host string) {
	for _, key := range []string{"HostName", "Port", "User", "IdentityFile", "IdentitiesOnly",
		"IdentityAgent", "ProxyJump", "ProxyCommand",
		"UserKnownHostsFile", "GlobalKnownHostsFile", "HostKeyAlias", "HostKeyAlgorithms"} {
		values, err := ssh_config.GetAllStrict(host, key)
		if err != nil {
			continue
		}
		for _, value := range values {
			if key == "HostName" {
				value = strings.ReplaceAll(value, "%h", host)
			}
			e.set(strings.ToLower(key), value)
		}
	}
	if len(e.identities) == 0 {
		e.identities = []string{home("~/.ssh/id_ed25519"), home("~/.ssh/id_ecdsa"),
			home("~/.ssh/id_rsa")}
	}
	if len(e.known) == 0 {
		e.known = []string{home("~/.ssh/known_hosts"), "/etc/ssh/ssh_known_hosts"}
	}
}

// set applies one setting of the configuration, and ignores those that this package does not use.
func (e *endpoint) set(key, value string) {
	if value == "" || value == "none" && key != "user" {
		if key == "identityagent" {
			e.agent = ""
		}
		return
	}
	switch key {
	case "hostname":
		e.host = value
	case "port":
		e.port = value
	case "user":
		e.user = value
	case "hostkeyalias":
		e.keyAlias = value
	case "identityfile":
		e.identities = append(e.identities, home(value))
	case "identitiesonly":
		e.only = value == "yes"
	case "identityagent":
		if value != "SSH_AUTH_SOCK" {
			e.agent = home(os.ExpandEnv(value))
		}
	case "userknownhostsfile", "globalknownhostsfile":
		for f := range strings.FieldsSeq(value) {
			e.known = append(e.known, home(f))
		}
	case "hostkeyalgorithms":
		e.algorithms = strings.Split(value, ",")
	case "proxyjump":
		e.jumps = slices.DeleteFunc(strings.Split(value, ","),
			func(s string) bool { return s == "" })
	case "proxycommand":
		e.proxy = value
	}
}

// expand replaces the tokens of a ProxyCommand (ssh_config(5), TOKENS).
func (e endpoint) expand(command string) string {
	return strings.NewReplacer("%%", "%", "%h", e.host, "%p", e.port, "%r", e.user, "%n", e.name,
		"%u", localUser()).Replace(command)
}

func home(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if dir, err := os.UserHomeDir(); err == nil {
			return filepath.Join(dir, rest)
		}
	}
	return path
}
