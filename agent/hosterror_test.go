package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// Errors have a hint, and no login is tried twice.
func TestHostErrors(t *testing.T) {
	server := openssh.Start(
		t,
		openssh.Settings{
			Lines: []string{
				"PasswordAuthentication yes",
				"KbdInteractiveAuthentication yes",
				"LogLevel DEBUG1",
			},
		},
	)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			conn, err := web.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n") // the test says if not
			conn.Close()
		}
	})
	defer answering.Wait()
	defer web.Close()
	closed := openssh.FreePort(t)
	other := openssh.KeyPair(t, filepath.Join(t.TempDir(), "other"))
	stranger := filepath.Join(t.TempDir(), "stranger")
	openssh.KeyPair(t, stranger)
	print := ssh.FingerprintSHA256(server.Key.PublicKey())
	line := knownhosts.Line([]string{server.Addr()}, server.Key.PublicKey())
	wrong := func(context.Context, string, string) (string, error) { return "wrong", nil }
	errAsk := errors.New("nobody is here to ask")
	for _, tt := range []struct {
		name, uri string
		change    func(*agent.Options)
		is        error
		says      []string
	}{
		{"unknown host key", server.URI(), func(o *agent.Options) { o.KnownHosts = []string{} },
			deniedError, []string{print, "echo '" + line + "' >>~/.ssh/known_hosts"}},
		{"another fingerprint accepted", server.URI(), func(o *agent.Options) {
			o.KnownHosts = []string{}
			o.Host.Accept = ssh.FingerprintSHA256(other.PublicKey())
		}, deniedError, []string{print}},
		{"changed host key", server.URI(), func(o *agent.Options) {
			o.KnownHosts = []string{known(t, server.Addr(), other.PublicKey())}
		}, deniedError,
			[]string{"CHANGED", "known_hosts:1", "ssh-keygen -f '",
				"-R '[127.0.0.1]:" + server.Port + "'"}},
		{"changed, accepted", server.URI(), func(o *agent.Options) {
			o.KnownHosts, o.Host.Accept = []string{known(t, server.Addr(), other.PublicKey())},
				print
		}, connect.ErrIdentity, []string{"CHANGED"}},
		{"missing known_hosts", server.URI(),
			func(o *agent.Options) { o.KnownHosts = []string{"/no/known_hosts"} }, os.ErrNotExist,
			[]string{"/no/known_hosts"}},
		{"wrong key", server.URI(), func(o *agent.Options) { o.Identity = stranger },
			connect.ErrLogin, []string{server.User, stranger, "ssh-copy-id"}},
		{"wrong password", server.URI(), func(o *agent.Options) {
			o.Identity, o.Host.Password = stranger, wrong
		}, connect.ErrLogin,
			[]string{"Options.Host.Password"}},
		{"password that is not had", server.URI(), func(o *agent.Options) {
			o.Identity = stranger
			o.Host.Password = func(context.Context, string, string) (string, error) {
				return "", errAsk
			}
		}, errAsk, []string{"password of " + server.User}},
		{"missing key", server.URI(), func(o *agent.Options) { o.Identity = "/no/key" },
			os.ErrNotExist, []string{"/no/key"}},
		{"closed port", "ssh://127.0.0.1:" + closed, nil, unavailableError,
			[]string{"127.0.0.1:" + closed, "refused", "is the host up"}},
		{"no such host", "ssh://no-such-host.invalid", nil, unavailableError,
			[]string{"no-such-host.invalid", "is the host up"}},
		{"not SSH", "ssh://" + web.Addr().String(), nil, unavailableError,
			[]string{web.Addr().String(), "HTTP/1.1 400"}},
		{"path", server.URI() + "/dir", nil, usageError, []string{"path"}},
		{"scheme", "http://" + server.Addr(), nil, usageError, []string{"scheme"}},
		{"password in it", "ssh://me:secret@" + server.Addr(), nil, usageError,
			[]string{"password"}},
		{"option", "ssh://-oProxyCommand=x", nil, usageError, nil},
		{"tier", server.URI(), func(o *agent.Options) { o.Host.Tier = "best" }, usageError,
			[]string{"guest, marks or screen"}},
		{"prompt", server.URI(), func(o *agent.Options) { o.Host.Prompt = "(" }, usageError,
			[]string{"prompt"}},
		{"fingerprint", server.URI(), func(o *agent.Options) { o.Host.Accept = "MD5:00" },
			usageError, []string{"SHA256:"}},
		{"kind", server.URI(), func(o *agent.Options) { o.Kind = "daemon" }, usageError,
			[]string{"gateway or host"}},
		{"no guest", server.URI(), func(o *agent.Options) {
			o.Host.Tier,
				o.Host.Guest = agent.TierGuest, noGuest
		}, unavailableError, []string{"no guest for"}},
		{"a gateway was meant", server.URI(), func(o *agent.Options) { o.Kind = agent.KindGateway },
			unavailableError, []string{"no gateway answers", "OpenSSH"}},
		{"to be created", server.URI(), func(o *agent.Options) { o.Create = true },
			unavailableError, []string{"no gateway answers"}},
		{"the control host", "ssh://sandboxd@" + server.Addr(), nil, unavailableError,
			[]string{"no gateway answers"}},
		{"a host was meant", world.uri("demo"), func(o *agent.Options) { o.Kind = agent.KindHost },
			usageError, []string{"is a gateway"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := hostOptions(t, server)
			if tt.change != nil {
				tt.change(&o)
			}
			c, err := agent.Dial(bounded(t), tt.uri, o)
			if err == nil {
				c.Close()
				t.Fatal("no error")
			}
			if !errors.Is(err, tt.is) {
				t.Errorf("got %v (%T), want %v", err, err, tt.is)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "wrong") {
				t.Errorf("%q has the password in it", err)
			}
		})
	}
	text, err := os.ReadFile(server.Log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "Failed password") +
		strings.Count(string(text), "Failed keyboard-interactive"); n != 1 {
		t.Errorf("%d passwords were tried, want one", n)
	}
}

var unavailableError = &agent.Error{Code: "unavailable"}

// A fingerprint in Options.Host.Accept is enough.
func TestHostAccept(t *testing.T) {
	server := openssh.Start(t, openssh.Settings{})
	o := agent.Options{Identity: server.Identity, KnownHosts: []string{},
		Host: agent.HostOptions{
			Guest:  guestOf,
			Accept: ssh.FingerprintSHA256(server.Key.PublicKey()),
		}}
	c := dialHost(t, server.URI(), o, agent.TierGuest)
	res, err := attach(t, c, agent.ShellOptions{}).Run(bounded(t), "echo in")
	if got := done(t, res, err, 0); got != "in\n" {
		t.Errorf("output %q", got)
	}
}
