package sshd

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// received returns everything that a client receives for a request: each answer, byte and request,
// in order.
func received(t *testing.T, c *ssh.Client, kind string, extra []byte, requests []ssh.Request,
	input []byte) string {
	t.Helper()
	var mu sync.Mutex
	var heard []string
	hear := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, fmt.Sprintf(format, args...))
	}
	ch, reqs, err := c.OpenChannel(kind, extra)
	if err != nil {
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		return fmt.Sprintf("refused %d %q", refused.Reason, refused.Message)
	}
	defer ch.Close()
	var out, errs []byte
	var streams sync.WaitGroup
	streams.Go(func() { out, _ = io.ReadAll(ch) })
	streams.Go(func() { errs, _ = io.ReadAll(ch.Stderr()) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for r := range reqs {
			hear("request %s %x", r.Type, r.Payload)
			if r.WantReply {
				_ = r.Reply(false, nil)
			}
		}
	}()
	var answers []string
	for _, r := range requests {
		ok, err := ch.SendRequest(r.Type, true, r.Payload)
		answers = append(answers, fmt.Sprint(r.Type, " ", ok, " ", err))
		if err != nil {
			break
		}
	}
	_, _ = ch.Write(input) // a channel that was refused takes none
	_ = ch.CloseWrite()
	streams.Wait()
	<-ended
	mu.Lock()
	defer mu.Unlock()
	return fmt.Sprintf("answers %q\nstdout %q\nstderr %q\n%s", answers, out, errs,
		strings.Join(heard, "\n"))
}

// A foreign sandbox answers exactly like a missing one, whatever the request and whether it runs.
func TestForeignIsUnknown(t *testing.T) {
	t.Parallel()
	// No login creates a sandbox.
	w := newWorld(t, worldOptions{hub: func(o *gateway.Options) {
		o.Principals = func() int { return 2 }
	}})
	w.sandboxOf("bob", "bobs")
	pty := ssh.Request{Type: wire.RequestPty,
		Payload: wire.Marshal(wire.PtyReq{Term: "xterm", Cols: 80, Rows: 24})}
	shell := ssh.Request{Type: wire.RequestShell}
	exec := ssh.Request{Type: wire.RequestExec, Payload: wire.Marshal(wire.Exec{Command: "true"})}
	sftp := ssh.Request{Type: wire.RequestSubsystem,
		Payload: wire.Marshal(wire.Subsystem{Name: wire.SubsystemSFTP})}
	stream := ssh.Request{Type: wire.RequestSubsystem,
		Payload: wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem})}
	env := ssh.Request{Type: wire.RequestEnv,
		Payload: wire.Marshal(wire.Env{Name: "LANG", Value: "C"})}
	agent := ssh.Request{Type: wire.RequestAgent}
	var attach []byte
	for _, f := range []wire.Frame{{Type: wire.FrameHello, Data: []byte(`{"versions":[1]}`)},
		{Type: wire.FrameAttach, Data: []byte(`{"session":"main"}`)}} {
		var err error
		if attach, err = wire.AppendFrame(attach, f); err != nil {
			t.Fatal(err)
		}
	}
	asks := []struct {
		name, kind string
		extra      []byte
		requests   []ssh.Request
		input      []byte
	}{
		{"exec", wire.ChannelSession, nil, []ssh.Request{exec}, nil},
		{"shell", wire.ChannelSession, nil, []ssh.Request{shell}, nil},
		{"terminal", wire.ChannelSession, nil, []ssh.Request{pty, shell}, nil},
		{"terminal and command", wire.ChannelSession, nil, []ssh.Request{pty, exec}, nil},
		{"all at once", wire.ChannelSession, nil, []ssh.Request{env, agent, pty, exec}, nil},
		{"sftp", wire.ChannelSession, nil, []ssh.Request{sftp}, nil},
		{"session stream", wire.ChannelSession, nil, []ssh.Request{stream}, attach},
		{"port", wire.ChannelDirectTCP, wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 22}), nil, nil},
		{"socket", wire.ChannelDirectUnix, wire.Marshal(wire.DirectUnix{Path: "/run/x"}), nil, nil},
		{"an unknown channel type", "tun@openssh.com", nil, nil, nil},
	}
	for _, key := range []string{"alice", "agent", "watch"} {
		for _, session := range []string{"", "~main", "~new", "~build"} {
			none, bobs := w.dial(key, "none"+session), w.dial(key, "bobs"+session)
			for _, a := range asks {
				unknown := received(t, none, a.kind, a.extra, a.requests, a.input)
				foreign := received(t, bobs, a.kind, a.extra, a.requests, a.input)
				if want := strings.ReplaceAll(unknown, "none", "bobs"); foreign != want {
					t.Errorf("%s, %s%s: foreign\n%s\nunknown\n%s", key, a.name, session, foreign,
						want)
				}
			}
		}
		var heard []string
		for _, name := range []string{"none", "bobs"} {
			c := w.dial(key, name)
			ok, payload, err := c.SendRequest(wire.GlobalTCPForward, true,
				wire.Marshal(wire.TCPForward{Host: "127.0.0.1"}))
			heard = append(heard, fmt.Sprintf("%v %x %v", ok, payload, err))
		}
		if heard[0] != heard[1] {
			t.Errorf("%s, forward: %q", key, heard)
		}
	}
}
