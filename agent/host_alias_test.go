package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gliderssh "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// sshConfig makes ssh read the test's own configuration, without an ssh agent.
func sshConfig(t *testing.T, config string) {
	t.Helper()
	program, err := exec.LookPath("ssh")
	if err != nil {
		openssh.Needed(t, "openssh-client")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"config": config,
		"ssh": "#!/bin/sh\nexec " + program + " -F " + dir + "/config \"$@\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("SSH_AUTH_SOCK", "")
}

// block is a block of ssh_config.
func block(t *testing.T, name, user, addr, identity string, key ssh.PublicKey) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(
		"Host %s\nHostName %s\nPort %s\nUser %s\nIdentityFile %s\nIdentitiesOnly "+
			"yes\nUserKnownHostsFile %s\nGlobalKnownHostsFile /dev/null\n",
		name,
		host,
		port,
		user,
		identity,
		known(t, addr, key),
	)
}

// An alias uses its whole ssh configuration: here a jump host and a key.
func TestHostAlias(t *testing.T) {
	first, second := openssh.Start(t, openssh.Settings{}), openssh.Start(t, openssh.Settings{})
	var config strings.Builder
	for name, s := range map[string]*openssh.Server{"first": first, "box": second} {
		config.WriteString(block(t, name, s.User, s.Addr(), s.Identity, s.Key.PublicKey()))
	}
	config.WriteString("Host box\nProxyJump first\n")
	sshConfig(t, config.String())
	c := dialHost(t, "box", agent.Options{Host: agent.HostOptions{Guest: guestOf}}, agent.TierGuest)
	res, err := attach(t, c, agent.ShellOptions{}).Run(bounded(t), "echo $HOME")
	if got := done(t, res, err, 0); got != second.Home+"\n" {
		t.Errorf("output %q", got)
	}
	if c.Sandbox() != "box" {
		t.Errorf("name %q", c.Sandbox())
	}
}

// jump is a jump host that accepts one password.
type jump struct {
	addr string
	key  ssh.Signer

	mu    sync.Mutex
	tried []string // guarded by mu; passwords
}

func newJump(t *testing.T, password string) *jump {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	j := &jump{addr: l.Addr().String(), key: openssh.KeyPair(t, filepath.Join(t.TempDir(), "host"))}
	server := &gliderssh.Server{
		PasswordHandler: func(_ gliderssh.Context, said string) bool {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.tried = append(j.tried, said)
			return said == password
		},
		LocalPortForwardingCallback: func(gliderssh.Context, string, uint32) bool { return true },
		ChannelHandlers: map[string]gliderssh.ChannelHandler{
			"direct-tcpip": gliderssh.DirectTCPIPHandler,
		},
	}
	server.AddHostKey(j.key)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-served })
	return j
}

func (j *jump) seen() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.tried)
}

// Options.Host.Password is called once for each jump host, by its own name, also for later
// connections.
func TestHostJumpPassword(t *testing.T) {
	one, two := newJump(t, "first secret"), newJump(t, "second secret")
	target := openssh.Start(t, openssh.Settings{})
	sshConfig(
		t,
		block(
			t,
			"one",
			"ann",
			one.addr,
			"none",
			one.key.PublicKey(),
		)+block(
			t,
			"two",
			"bob",
			two.addr,
			"none",
			two.key.PublicKey(),
		)+
			block(
				t,
				"box",
				target.User,
				target.Addr(),
				target.Identity,
				target.Key.PublicKey(),
			)+"ProxyJump one,two\n",
	)
	var asked []string
	said := map[string]string{"ann@" + one.addr: "first secret", "bob@" + two.addr: "wrong secret"}
	o := agent.Options{
		Host: agent.HostOptions{
			Guest: guestOf,
			Password: func(_ context.Context, user, host string) (string, error) {
				asked = append(asked, user+"@"+host)
				password, ok := said[user+"@"+host]
				if !ok {
					return "", errors.New("nobody knows")
				}
				return password, nil
			},
		},
	}
	both := []string{"ann@" + one.addr, "bob@" + two.addr}

	c, err := agent.Dial(bounded(t), "box", o)
	if err == nil {
		c.Close()
		t.Fatal("in with a wrong password")
	}
	if !errors.Is(err, deniedError) || !errors.Is(err, connect.ErrLogin) ||
		!strings.Contains(err.Error(), "jump host two") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong password: %v", err)
	}
	if got := two.seen(); !slices.Equal(got, []string{"wrong secret"}) ||
		!slices.Equal(asked, both) {
		t.Errorf("a wrong password: tried %q, asked for %q; want once", got, asked)
	}

	said["bob@"+two.addr], asked = "second secret", nil
	c = dialHost(t, "box", o, agent.TierGuest)
	res, err := attach(t, c, agent.ShellOptions{}).Run(bounded(t), "echo $HOME")
	if got := done(t, res, err, 0); got != target.Home+"\n" {
		t.Errorf("output %q", got)
	}
	if exit, err := c.Exec(bounded(t), agent.Cmd{Command: "exit 5"}); err != nil ||
		exit.Code != 5 { // on a connection of its own
		t.Errorf("exec: %+v, %v", exit, err)
	}
	if !slices.Equal(asked, both) {
		t.Errorf("asked for %q, want each once", asked)
	}

	delete(said, "ann@"+one.addr)
	asked = nil
	if c, err := agent.Dial(bounded(t), "box", o); err == nil {
		c.Close()
		t.Error("in without a password")
	} else if !strings.Contains(err.Error(), "nobody knows") || len(asked) != 1 {
		t.Errorf("nobody to ask: %v, asked for %q", err, asked)
	}
	o.Host.Password = nil
	before := len(one.seen())
	if c, err := agent.Dial(bounded(t), "box", o); err == nil ||
		!errors.Is(err, connect.ErrLogin) ||
		len(one.seen()) != before {
		if c != nil {
			c.Close()
		}
		t.Errorf("no password: %v, tried %q", err, one.seen())
	}
}

// DialTimeout does not run while a person types the password of a jump host.
func TestHostJumpPatience(t *testing.T) {
	j := newJump(t, "secret")
	target := openssh.Start(t, openssh.Settings{})
	sshConfig(t, block(t, "one", "ann", j.addr, "none", j.key.PublicKey())+
		block(
			t,
			"box",
			target.User,
			target.Addr(),
			target.Identity,
			target.Key.PublicKey(),
		)+"ProxyJump one\n")
	const limit = 3 * time.Second
	asking := make(chan struct{})
	o := agent.Options{
		DialTimeout: limit,
		Host: agent.HostOptions{
			Guest: guestOf,
			Password: func(ctx context.Context, _, _ string) (string, error) {
				close(asking)
				select {
				case <-time.After(limit + limit/2):
					return "secret", nil
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			},
		},
	}
	dialHost(t, "box", o, agent.TierGuest)
	<-asking
}
