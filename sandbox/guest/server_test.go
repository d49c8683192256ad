//go:build linux

package guest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Only the one key logs in, by proof of possession.
func TestLogin(t *testing.T) {
	s := newSandbox(t)
	stranger := newKeys(t)
	for _, tt := range []struct {
		name string
		auth []ssh.AuthMethod
		want bool
	}{
		{"the key", []ssh.AuthMethod{ssh.PublicKeys(s.client)}, true},
		{"the key after another", []ssh.AuthMethod{ssh.PublicKeys(stranger.client, s.client)}, true},
		{"another key", []ssh.AuthMethod{ssh.PublicKeys(stranger.client)}, false},
		{"the host key", []ssh.AuthMethod{ssh.PublicKeys(hostSigner(t, s))}, false},
		{"the key without its private half", []ssh.AuthMethod{ssh.PublicKeys(forged{s.client.PublicKey(), stranger.client})}, false},
		{"nothing", nil, false},
		{"a password", []ssh.AuthMethod{ssh.Password("")}, false},
		{"answers", []ssh.AuthMethod{ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := s.clientConfig()
			config.Auth = tt.auth
			client, err := ssh.Dial("tcp", s.listener.Addr().String(), config)
			if err == nil {
				client.Close()
			}
			if (err == nil) != tt.want {
				t.Errorf("got %v, want logged in %v", err, tt.want)
			}
		})
	}
	t.Run("too many tries", func(t *testing.T) {
		var many []ssh.Signer
		for range 6 {
			many = append(many, newKeys(t).client)
		}
		config := s.clientConfig()
		config.Auth = []ssh.AuthMethod{ssh.PublicKeys(append(many, s.client)...)}
		if client, err := ssh.Dial("tcp", s.listener.Addr().String(), config); err == nil {
			client.Close()
			t.Error("the seventh try counted")
		}
	})
}

func hostSigner(t *testing.T, s *sandbox) ssh.Signer {
	t.Helper()
	signer, err := ssh.ParsePrivateKey([]byte(s.hostPEM))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// forged offers one key and signs with another.
type forged struct {
	public ssh.PublicKey
	signer ssh.Signer
}

func (f forged) PublicKey() ssh.PublicKey { return f.public }
func (f forged) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	return f.signer.Sign(r, data)
}

// A connection that is not SSH ends immediately, and affects no other.
func TestGarbage(t *testing.T) {
	s := newSandbox(t)
	for _, tt := range []struct{ name, send string }{
		{"http", "GET / HTTP/1.1\r\n\r\n"},
		{"ssh 1", "SSH-1.5-old\r\n"},
		{"long line", "SSH-2.0-" + strings.Repeat("x", 1<<16)},
		{"packet of 4 GiB", "SSH-2.0-x\r\n\xff\xff\xff\xff\x00"},
		{"empty packet", "SSH-2.0-x\r\n\x00\x00\x00\x00\x00"},
		{"random", "SSH-2.0-x\r\n" + strings.Repeat("\x07\x11\x90", 2000)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far, err := loopback(t)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.ServeConn(t.Context(), far) }()
			if _, err := io.WriteString(near, tt.send); err != nil {
				t.Logf("send: %v", err) // already cut off
			}
			near.(*net.TCPConn).CloseWrite()
			if err := <-served; err == nil {
				t.Error("no error")
			}
		})
	}
	if got := execute(t, s.dial(t), "echo fine", ""); got.Out != "fine\n" {
		t.Errorf("afterwards: %+v", got)
	}
}

// loopback returns two ends of a TCP connection.
func loopback(t testing.TB) (near, far net.Conn, err error) {
	t.Helper()
	l := listenLocal(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { near.Close() })
	far, err = l.Accept()
	return near, far, err
}

// A hundred concurrent channels on one connection each get their own answer, and a flood of
// requests delays nothing.
func TestManyChannels(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	stalled, err := client.NewSession() // its output is never read
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	if _, err := stalled.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := stalled.Start("yes"); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, _, err := client.SendRequest("unknown@example.com", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	results := make(chan string)
	for i := range 100 {
		go func() { results <- execute(t, client, "echo "+string(rune('a'+i%26)), "").Out }()
	}
	counts := make(map[string]int)
	for range 100 {
		counts[<-results]++
	}
	if counts["a\n"] != 4 || counts["z\n"] != 3 || len(counts) != 26 {
		t.Errorf("answers: %v", counts)
	}
	if ok, _, err := client.SendRequest(wire.GlobalKeepalive, true, nil); !ok || err != nil {
		t.Errorf("keepalive: %v, %v", ok, err)
	}
	if ok, _, err := client.SendRequest(wire.GlobalHostKeysProve, true, nil); ok || err != nil {
		t.Errorf("unknown request: %v, %v", ok, err)
	}
}

func TestControl(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	if r := order(t, client, wire.Control{Do: "health"}); r.Error == nil ||
		r.Error.Code != wire.CodeDenied {
		t.Errorf("before hello: %+v, want denied", r)
	}
	if r := order(t, client, wire.Control{Do: "hello"}); r.Version != wire.Version ||
		r.Software != Software || r.Error != nil {
		t.Errorf("hello: %+v", r)
	}
	if r := order(t, client, wire.Control{Do: "health"}); r.Health != "ok" {
		t.Errorf("health: %+v, want ok", r)
	}
	if r := order(t, client, wire.Control{Do: "dance"}); r.Error == nil ||
		r.Error.Code != wire.CodeUnavailable {
		t.Errorf("unknown order: %+v", r)
	}
	if r := order(t, client, wire.Control{Do: "trust", Authorities: "x"}); r.Error == nil ||
		r.Error.Code != wire.CodeDenied {
		t.Errorf("authorities for a sandbox that trusts those of its image: %+v", r)
	}
	if ok, _, err := client.SendRequest(wire.ControlRequest, true, []byte("{")); ok || err != nil {
		t.Errorf("malformed order: %v, %v", ok, err)
	}
	// Another connection has to say hello itself.
	if r := order(t, s.dial(t), wire.Control{Do: "rescue"}); r.Error == nil {
		t.Errorf("another connection's order: %+v", r)
	}
}

// Only the daemon can name a sandbox that was booted without a name, and only once.
func TestNamedOnce(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	denied := func(what string, r wire.ControlReply) {
		t.Helper()
		if r.Error == nil || r.Error.Code != wire.CodeDenied {
			t.Errorf("%s: %+v, want denied", what, r)
		}
	}
	denied("before hello", order(t, client, wire.Control{Do: "name", Name: "demo"}))
	if r := order(t, client, wire.Control{Do: "hello"}); r.Error != nil {
		t.Fatalf("hello: %+v", r)
	}
	for _, bad := range []string{"", "a b", "$(id)", "sandboxd", strings.Repeat("x", 64)} {
		denied("name "+bad, order(t, client, wire.Control{Do: "name", Name: bad}))
	}
	for range 2 { // the daemon repeats it after each restart
		if r := order(t, client, wire.Control{Do: "name", Name: "demo"}); r.Error != nil {
			t.Errorf("name: %+v", r)
		}
	}
	denied("another name", order(t, client, wire.Control{Do: "name", Name: "other"}))
	if got := s.sessions.SetName("demo"); !got {
		t.Error("it is not called demo")
	}
}

func TestHealthOfABrokenSandbox(t *testing.T) {
	s := newSandbox(t)
	shell := writeFile(t, s.home, "shell", "#!/bin/sh\nexit 3\n")
	s.account.Shell = shell
	if got := s.health(t.Context()); got != "ok" { // not executable: another shell is used
		t.Errorf("got %q, want ok by the other shell", got)
	}
	if err := os.Chmod(shell, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := s.health(t.Context()); !strings.HasPrefix(got, "broken: ") ||
		!strings.Contains(got, shell+" ended") {
		t.Errorf("got %q, want broken and which shell", got)
	}
	writeFile(t, s.home, "shell", "#!/no/such/interpreter\n")
	if got := s.health(t.Context()); !strings.HasPrefix(got, "broken: ") ||
		!strings.Contains(got, "no such file") {
		t.Errorf("got %q, want broken and why", got)
	}
}

func TestRescue(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	c := openSession(t, client, wire.Attach{Session: "main", Create: true, Party: alice},
		wire.Handler{})
	if got := execute(t, client, "for i in 1 2 3; do setsid sleep 1000 & done; echo started",
		""); got.Out != "started\n" {
		t.Fatalf("%+v", got)
	}
	sess, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.Start("sleep 1000"); err != nil {
		t.Fatal(err)
	}
	await(t, "the command runs", func() bool { return len(s.other()) >= 3 })
	if r := order(t, client, wire.Control{Do: "rescue"}); r.Killed < 3 || r.Error != nil {
		t.Errorf("rescue: %+v, want the keeper, its shell and the command at least", r)
	}
	if got := exitSignal(sess.Wait()); got != "KILL" {
		t.Errorf("the command: signal %q, want KILL", got)
	}
	var reply wire.Reply
	await(t, "the session is dead", func() bool {
		reply, err = c.Request(t.Context(), wire.Request{Verb: wire.VerbList})
		return err != nil || len(reply.Sessions) == 1 &&
			reply.Sessions[0].State.Phase == wire.PhaseDead
	})
	if err != nil || reply.Sessions[0].State.Reason != "rescued" {
		t.Errorf("session: %+v, %v; want dead, rescued", reply.Sessions, err)
	}
	if got := execute(t, client, "echo again", ""); got.Out != "again\n" {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestStopWithoutReader stops a guest whose daemon takes no answer.
func TestStopWithoutReader(t *testing.T) {
	s := newSandbox(t)
	s.Begin(t.Context())
	read := make(chan struct{})
	defer close(read)
	s.Control(t.Context(), wire.Control{Do: "stop"}, func(wire.ControlReply) {
		select {
		case <-s.Stopped():
			t.Error("it stopped before it answered")
		default:
		}
		<-read
	})
	<-s.Stopped()
}

func TestStop(t *testing.T) {
	s := newSandbox(t, func(c *wire.GuestConfig) {
		c.Entrypoint = []string{"sh", "-c",
			"trap 'echo bye >bye; exit 0' USR1; echo up >up; while :; do sleep 0.01; done"}
		c.StopSignal = "SIGUSR1"
	})
	s.Begin(t.Context())
	await(t, "the entrypoint is up", func() bool { return executeOK(t, s, "test -s up") })
	client := s.dial(t)
	sess, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.Start(
		"trap '' HUP TERM; echo up >ignores; while :; do sleep 1; done"); err != nil {
		t.Fatal(err)
	}
	await(t, "the program ignores the signals",
		func() bool { return executeOK(t, s, "test -s ignores") })
	began := time.Now()
	if r := order(t, client, wire.Control{Do: "hello"}); r.Error != nil {
		t.Fatalf("hello: %+v", r)
	}
	if r := order(t, client, wire.Control{Do: "stop", GraceMS: 300}); r.Error != nil {
		t.Fatalf("stop: %+v", r)
	}
	<-s.Stopped()
	if took := time.Since(began); took < 300*time.Millisecond || took > defaultGrace {
		t.Errorf("took %v, want the grace of 300 ms for a program that does not obey", took)
	}
	if got := exitSignal(sess.Wait()); got != "KILL" {
		t.Errorf("that program: signal %q, want KILL", got)
	}
	if !executeOK(t, s, "test -s bye") {
		t.Error("the entrypoint did not get the image's stop signal")
	}
}

func executeOK(t testing.TB, s *sandbox, command string) bool {
	t.Helper()
	return execute(t, s.dial(t), command, "").Status == 0
}

func TestConfigRefused(t *testing.T) {
	k := newKeys(t)
	good := wire.GuestConfig{Version: wire.Version, HostKey: k.hostPEM, ClientKey: k.authorized,
		Socket: "/s"}
	for _, tt := range []struct {
		name   string
		change func(*wire.GuestConfig)
		want   string
	}{
		{"version", func(c *wire.GuestConfig) { c.Version = 0 }, "version"},
		{"host key", func(c *wire.GuestConfig) { c.HostKey = "x" }, "host key"},
		{"client key", func(c *wire.GuestConfig) { c.ClientKey = "x" }, "client key"},
		{"user", func(c *wire.GuestConfig) { c.User = "no-such-user" }, "no-such-user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			if _, err := New(c, Options{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error about the %s", err, tt.want)
			}
		})
	}
	line := func(c wire.GuestConfig) string {
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	silent, w := io.Pipe()
	defer w.Close()
	const short, patience = 50 * time.Millisecond, time.Minute
	for _, tt := range []struct {
		name    string
		in      io.Reader
		timeout time.Duration
		want    string
	}{
		{"good", strings.NewReader(line(good) + "\n"), patience, ""},
		{"without newline", strings.NewReader(line(good)), patience, ""},
		{"nothing", strings.NewReader(""), patience, "EOF"},
		{"silence", silent, short, "no configuration on standard input"},
		{"not JSON", strings.NewReader("secret\n"), patience, "is not one line of JSON"},
		{"no socket", strings.NewReader("{}\n"), patience, "names no socket"},
		{"two ways", strings.NewReader(`{"socket":"/s","listen":["unix:@s"]}` + "\n"), patience,
			"names no socket, or one besides"},
		{"endless", neverEnding{}, patience, "is not one line of JSON"},
		{"late and after others", strings.NewReader("\n{\n{}\n" + line(good) + "\n"), 0, ""},
		{"only others", strings.NewReader("\n{\n{}\n"), 0, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readConfig(tt.in, tt.timeout)
			if tt.want == "" && err != nil || tt.want != "" &&
				(err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v repeats the input", err)
			}
		})
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestCloseEndsConnections(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(); err == nil {
		t.Error("the connection ended without an error")
	}
	if _, err := ssh.Dial("tcp", s.listener.Addr().String(), s.clientConfig()); err == nil {
		t.Error("a closed guest accepts a login")
	}
}
