package host

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	gliderssh "github.com/gliderlabs/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// asked returns a context whose questions get answer, and records the questions.
func asked(t *testing.T, answer string, err error) (context.Context, *[]string) {
	questions := new([]string)
	return sandbox.WithAsk(timeout(t), func(_ context.Context, question string) (string, error) {
		*questions = append(*questions, question)
		return answer, err
	}), questions
}

// A password is asked for once, if the server accepts one and no file has it, and is kept only in
// memory.
func TestPasswordAsked(t *testing.T) {
	name, home := account(t, "/bin/bash", "right horse")
	p := openSSH(t, settings{home: home, lines: []string{"PubkeyAuthentication no",
		"PasswordAuthentication yes", "KbdInteractiveAuthentication yes"}})
	spec := p.spec(t)
	spec.Host.URI, spec.Host.Identity = "ssh://"+name+"@127.0.0.1:"+p.port, ""
	failures := func() int {
		log, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "Failed password") +
			strings.Count(string(log), "Failed keyboard-interactive")
	}
	b := newBackend(t)
	ctx, questions := asked(t, "wrong", nil)
	if _, err := b.Boot(ctx, spec); stage(err) != "login" {
		t.Errorf("a wrong one: got %v, want an error of the login", err)
	}
	until(t, "the refusal is in the server's log", func() bool { return failures() > 0 })
	if n := failures(); len(*questions) != 1 || n != 1 {
		t.Errorf("a wrong one: asked %d times, tried %d times; want once", len(*questions), n)
	}
	ctx, questions = asked(t, "", errors.New("nobody is there"))
	if _, err := b.Boot(ctx, spec); err == nil ||
		!strings.Contains(err.Error(), "nobody is there") || len(*questions) != 1 {
		t.Errorf("no answer: asked %d times, got %v", len(*questions), err)
	}
	if _, err := b.Boot(timeout(t), spec); stage(err) != "login" {
		t.Errorf("no person to ask: got %v, want an error of the login", err)
	}
	ctx, questions = asked(t, "right horse", nil)
	inst, err := b.Boot(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(*questions) != 1 || (*questions)[0] != "password of "+name+"@127.0.0.1:"+p.port+": " {
		t.Errorf("asked %q, want one question that names the account", *questions)
	}
	// From here on the daemon that has it does not ask; another daemon does not have it.
	client := attach(t, dialSessions(t, b, inst, TierGuest), "main", wire.Start{})
	if res := run(t, client, "id -un"); res.Output != name+"\n" {
		t.Errorf("got %q, want %s", res.Output, name)
	}
	if _, err := newBackend(t).DialSessions(timeout(t), inst); !errors.Is(err, connect.ErrLogin) {
		t.Errorf("another daemon: got %v, want a refused login", err)
	}
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Error(err)
	}
	if left := leftIn(t, home); len(left) > 1 {
		t.Errorf("left: %v", left)
	}
}

// The person who adds a machine is asked for the password of its jump host; later logins use the
// one in memory.
func TestJumpPassword(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tried atomic.Int64
	server := &gliderssh.Server{
		PasswordHandler: func(_ gliderssh.Context,
			said string) bool {
			tried.Add(1)
			return said == "right horse"
		},
		LocalPortForwardingCallback: func(gliderssh.Context, string, uint32) bool { return true },
		ChannelHandlers: map[string]gliderssh.ChannelHandler{
			"direct-tcpip": gliderssh.DirectTCPIPHandler},
	}
	first := &peer{user: "ann", identity: "none",
		host: keyPair(t, filepath.Join(t.TempDir(), "host"))}
	_, first.port, _ = net.SplitHostPort(l.Addr().String())
	server.AddHostKey(first.host)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-served })
	p := openSSH(t, settings{})
	sshConfig(t, append(first.block("first", first.knownHosts(t, "", first.host.PublicKey())),
		p.block("box", p.knownHosts(t, "", p.host.PublicKey()), "ProxyJump first")...)...)
	spec := sandbox.Spec{ID: "box", Host: sandbox.Host{URI: "box"}}

	b := newBackend(t)
	ctx, questions := asked(t, "wrong", nil)
	if _, err := b.Boot(ctx, spec); stage(err) != "login" || !strings.Contains(
		err.Error(), "jump host first") || len(*questions) != 1 || tried.Load() != 1 {
		t.Errorf(
			"a wrong one: got %v, asked %d times, tried %d times; want an error of the login, once",
			err, len(*questions), tried.Load())
	}
	if _, err := b.Boot(timeout(t), spec); stage(err) != "login" || tried.Load() != 1 {
		t.Errorf(
			"no person to ask: got %v, tried %d times; want an error of the login, and the wrong "+
				"one forgotten", err, tried.Load())
	}
	ctx, questions = asked(t, "right horse", nil)
	inst, err := b.Boot(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	if len(*questions) != 1 || (*questions)[0] != "password of ann@127.0.0.1:"+first.port+": " {
		t.Errorf("asked %q, want one question that names the jump host's account", *questions)
	}
	if res := run(t, attach(t, dialSessions(t, b, inst, TierGuest), "main", wire.Start{}),
		"echo in"); res.Output != "in\n" {
		t.Errorf("got %q", res.Output)
	}
	if _, err := newBackend(t).DialSessions(timeout(t), inst); !errors.Is(err, connect.ErrLogin) {
		t.Errorf("another daemon: got %v, want a refused login", err)
	}
}
