package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// accessWithin is the longest time after a change of authorized_keys until access that it removes
// has ended.
const accessWithin = 2 * time.Second

// accessOwners is the number of principals of the trials: one may have 64 sockets of the page.
const accessOwners = 4

// granted is a machine on which several principals work in the sandbox demo, each with its own key.
type granted struct {
	*machine
	lines   [accessOwners]string // of authorized_keys, without options
	signers [accessOwners]ssh.Signer
	own     []byte // the rest of that file
	host    ssh.HostKeyCallback
	admin   *ssh.Client
	tokens  [accessOwners]string // one per owner
}

// trial is one channel, or another resource that a login opens.
type trial struct {
	ask   func() error  // one request, and its answer
	ended chan struct{} // closed when the connection has ended; nil without one
	at    time.Time     // when it ended; valid after ended
}

// watch records when the connection ends, which is when wait returns.
func (tr *trial) watch(wait func()) {
	tr.ended = make(chan struct{})
	go func() {
		defer close(tr.ended)
		wait()
		tr.at = time.Now()
	}()
}

func newGranted(t *testing.T) *granted {
	g := &granted{machine: newMachine(t)}
	g.start("--http", "127.0.0.1:0")
	var err error
	if g.own, err = os.ReadFile(filepath.Join(g.state, "authorized_keys")); err != nil {
		t.Fatal(err)
	}
	for i := range g.lines {
		file := filepath.Join(g.dir, fmt.Sprint("key", i))
		if g.signers[i], err = sshd.KeyPair(file, sshd.ED25519, "test"); err != nil {
			t.Fatal(err)
		}
		g.lines[i] = string(ssh.MarshalAuthorizedKey(g.signers[i].PublicKey()))
	}
	pinned, err := os.ReadFile(filepath.Join(g.state, "host_ed25519_key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(pinned)
	if err != nil {
		t.Fatal(err)
	}
	g.host = ssh.FixedHostKey(key)
	g.allow(func(int) string { return "" })
	g.control("new demo --network none --pids 8000")
	for i := range g.lines {
		g.control("share demo " + g.owner(i) + " --drive")
	}
	identity, err := os.ReadFile(g.at.Identity)
	if err != nil {
		t.Fatal(err)
	}
	self, err := ssh.ParsePrivateKey(identity)
	if err != nil {
		t.Fatal(err)
	}
	if g.admin, err = g.dial(self, "demo"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.admin.Close() })
	inside, err := g.admin.Listen("tcp", "127.0.0.1:7007")
	if err != nil {
		t.Fatal(err)
	}
	go answers(inside) // ends with the connection
	return g
}

func (g *granted) owner(i int) string { return fmt.Sprint("owner", i) }

// allow replaces authorized_keys, as an editor does. options are those of each owner's line, in
// addition to its principal; "-" omits the line.
func (g *granted) allow(options func(i int) string) {
	g.t.Helper()
	b := bytes.Clone(g.own)
	for i, line := range g.lines {
		switch o := options(i); o {
		case "-":
		case "":
			b = fmt.Appendf(b, "principal=%q %s", g.owner(i), line)
		default:
			b = fmt.Appendf(b, "principal=%q,%s %s", g.owner(i), o, line)
		}
	}
	path := filepath.Join(g.state, "authorized_keys")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		g.t.Fatal(err)
	}
}

func (g *granted) dial(key ssh.Signer, user string) (*ssh.Client, error) {
	return ssh.Dial("tcp", g.at.SSH, &ssh.ClientConfig{User: user, HostKeyCallback: g.host,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, Timeout: patience})
}

// login logs owner i in as user for a trial.
func (g *granted) login(i int, user string) (*ssh.Client, *trial) {
	g.t.Helper()
	c, err := g.dial(g.signers[i%accessOwners], user)
	if err != nil {
		g.t.Fatal(err)
	}
	tr := new(trial)
	tr.watch(func() { _ = c.Wait() })
	g.t.Cleanup(func() { c.Close(); <-tr.ended })
	return c, tr
}

// channel opens a channel for a subsystem or a command, and returns its input and output.
func (g *granted) channel(c *ssh.Client, request string, payload any) ssh.Channel {
	g.t.Helper()
	ch, reqs, err := c.OpenChannel("session", nil)
	if err != nil {
		g.t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs) // ends with the connection
	go io.Copy(io.Discard, ch.Stderr())
	if ok, err := ch.SendRequest(request, true, wire.Marshal(payload)); err != nil || !ok {
		g.t.Fatalf("%s: %v, %v", request, ok, err)
	}
	return ch
}

// echoes sends a line and waits until it comes back.
func echoes(rw io.ReadWriter) func() error {
	in := bufio.NewReader(rw)
	return func() error {
		if _, err := io.WriteString(rw, "hello\n"); err != nil {
			return err
		}
		_, err := in.ReadString('\n')
		return err
	}
}

// answers echoes what connections to l send.
func answers(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// kinds are the kinds of trials, each with a function that opens the i-th.
func (g *granted) kinds() map[string]func(i int) *trial {
	t := g.t
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string]func(int) *trial{
		"login": func(i int) *trial {
			return &trial{ask: func() error {
				c, err := g.dial(g.signers[i%accessOwners], "demo")
				if err == nil {
					c.Close()
				}
				return err
			}}
		},
		"exec, each a new channel": func(i int) *trial {
			c, tr := g.login(i, "demo")
			tr.ask = func() error {
				s, err := c.NewSession()
				if err != nil {
					return err
				}
				defer s.Close()
				return s.Run("true")
			}
			return tr
		},
		"exec that runs": func(i int) *trial {
			c, tr := g.login(i, "demo")
			tr.ask = echoes(g.channel(c, "exec", wire.Exec{Command: "cat"}))
			return tr
		},
		"session stream": func(i int) *trial {
			c, tr := g.login(i, "demo")
			ch := g.channel(c, "subsystem", wire.Subsystem{Name: wire.SessionSubsystem})
			attach := wire.Attach{Session: "main", Create: true, Quiet: true}
			stream, err := wire.Open(t.Context(), ch, attach, wire.Handler{})
			must(err)
			t.Cleanup(func() { stream.Close() })
			tr.ask = func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := stream.Request(ctx, wire.Request{Verb: wire.VerbScreen})
				return err
			}
			return tr
		},
		"joined person": func(i int) *trial {
			c, tr := g.login(i, "demo")
			s, err := c.NewSession()
			must(err)
			must(s.RequestPty("xterm-256color", 24, 80, nil))
			keys, err := s.StdinPipe()
			must(err)
			shown, err := s.StdoutPipe()
			must(err)
			must(s.Shell())
			var frames atomic.Int64
			more := make(chan struct{}, 1)
			go func() { // ends with the connection
				defer close(more)
				for buf := make([]byte, 4096); ; {
					n, err := shown.Read(buf)
					if err != nil {
						return
					}
					frames.Add(int64(n))
					select {
					case more <- struct{}{}:
					default:
					}
				}
			}()
			help := []string{"\x1d?", "x"} // a notice may appear or disappear
			tr.ask = func() error {
				before := frames.Load()
				if _, err := io.WriteString(keys, help[0]); err != nil {
					return err
				}
				help[0], help[1] = help[1], help[0]
				for frames.Load() == before {
					if _, ok := <-more; !ok {
						return io.EOF
					}
				}
				return nil
			}
			return tr
		},
		"sftp": func(i int) *trial {
			c, tr := g.login(i, "demo")
			ch := g.channel(c, "subsystem", wire.Subsystem{Name: wire.SubsystemSFTP})
			files, err := sftp.NewClientPipe(ch, ch)
			must(err)
			t.Cleanup(func() { files.Close() })
			tr.ask = func() error { _, err := files.Stat("/"); return err }
			return tr
		},
		"direct-tcpip": func(i int) *trial {
			c, tr := g.login(i, "demo")
			to, err := c.Dial("tcp", "127.0.0.1:7007")
			must(err)
			tr.ask = echoes(to)
			return tr
		},
		"direct-tcpip, each a new channel": func(i int) *trial {
			c, tr := g.login(i, "demo")
			tr.ask = func() error {
				to, err := c.Dial("tcp", "127.0.0.1:7007")
				if err != nil {
					return err
				}
				defer to.Close()
				return echoes(to)()
			}
			return tr
		},
		"remote forward": func(i int) *trial {
			c, tr := g.login(i, "demo")
			l, err := c.Listen("tcp", "127.0.0.1:0")
			must(err)
			go answers(l)
			tr.ask = func() error {
				to, err := g.admin.Dial("tcp", l.Addr().String())
				if err != nil {
					return err
				}
				defer to.Close()
				return echoes(to)()
			}
			return tr
		},
		"MCP": func(i int) *trial {
			c, tr := g.login(i, "demo")
			ch := g.channel(c, "subsystem", wire.Subsystem{Name: wire.SubsystemMCP})
			in := bufio.NewReader(ch)
			call := func(text string) error {
				if _, err := io.WriteString(ch, text+"\n"); err != nil {
					return err
				}
				_, err := in.ReadString('\n')
				return err
			}
			must(call(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
				`"protocolVersion":"2025-06-18","capabilities":{},` +
				`"clientInfo":{"name":"test","version":"1"}}}`))
			_, err := io.WriteString(ch,
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
			must(err)
			tr.ask = func() error { return call(`{"jsonrpc":"2.0","id":2,"method":"ping"}`) }
			return tr
		},
		"control host": func(i int) *trial {
			c, tr := g.login(i, "sandboxd")
			tr.ask = func() error { return runs(c, "ls --json") }
			return tr
		},
		"control host, token new": func(i int) *trial {
			c, tr := g.login(i, "sandboxd")
			tr.ask = func() error { return runs(c, "token new --expires 1h") }
			return tr
		},
		"control host, page": func(i int) *trial {
			c, tr := g.login(i, "sandboxd")
			tr.ask = func() error { return runs(c, "page") }
			return tr
		},
		"HTTP": func(i int) *trial {
			secret := g.tokens[i%accessOwners]
			return &trial{ask: func() error { return g.get("/v1/sandboxes", secret) }}
		},
		"HTTP socket": func(i int) *trial {
			tr := new(trial)
			c := g.socket(g.tokens[i%accessOwners])
			tr.watch(func() {
				for err := error(nil); err == nil; {
					_, _, err = c.Read(t.Context())
				}
			})
			t.Cleanup(func() { c.CloseNow(); <-tr.ended })
			tr.ask = func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return c.Ping(ctx)
			}
			return tr
		},
	}
}

// runs runs a command of the control host.
func runs(c *ssh.Client, command string) error {
	s, err := c.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Run(command)
}

// get requests a path with a token.
func (g *granted) get(path, token string) error {
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, *g.at.HTTP+path,
		http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

// socket logs in to the page with a token and opens the socket that updates its list.
func (g *granted) socket(token string) *websocket.Conn {
	g.t.Helper()
	body, _ := json.Marshal(map[string]string{"token": token})
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost,
		*g.at.HTTP+"/page/login", bytes.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", *g.at.HTTP)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	var half struct{ Key string }
	if err := json.NewDecoder(resp.Body).Decode(&half); err != nil || len(resp.Cookies()) != 1 {
		g.t.Fatal(resp.Status, err)
	}
	h := http.Header{"Origin": {*g.at.HTTP}, "Cookie": {resp.Cookies()[0].String()}}
	live := "ws" + strings.TrimPrefix(*g.at.HTTP, "http") + "/page/live"
	c, socket, err := websocket.Dial(g.t.Context(), live, &websocket.DialOptions{HTTPHeader: h,
		Subprotocols: []string{"sandboxd.page", "key." + half.Key}})
	if socket != nil && socket.Body != nil {
		socket.Body.Close()
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// All access of a key ends within two seconds after its line is removed or allows less, or after
// the key expires. SANDBOXD_TEST_REVOKED is the number of trials of each kind.
func TestAccessEnds(t *testing.T) {
	n := times(t, "SANDBOXD_TEST_REVOKED", 2)
	g := newGranted(t)
	for way, options := range map[string]func(after time.Time) string{
		"line removed": func(time.Time) string { return "-" },
		"role watch":   func(time.Time) string { return `role="watch"` },
		"key has expired": func(end time.Time) string {
			return end.UTC().Format(`expiry-time="20060102150405Z"`)
		},
	} {
		t.Run(way, func(t *testing.T) {
			g := &granted{machine: &machine{t: t, state: g.state, at: g.at}, lines: g.lines,
				signers: g.signers, own: g.own, host: g.host, admin: g.admin}
			g.allow(func(int) string { return "" })
			for i := range g.tokens {
				c, _ := g.login(i, "sandboxd")
				s, err := c.NewSession()
				if err != nil {
					t.Fatal(err)
				}
				out, err := s.Output("token new --person")
				if err != nil {
					t.Fatal(err)
				}
				g.tokens[i] = strings.TrimSpace(string(out))
				c.Close()
			}
			trials := make(map[string][]*trial)
			for kind, begin := range g.kinds() {
				for i := range n {
					tr := begin(i)
					if err := tr.ask(); err != nil {
						t.Fatalf("%s: %v", kind, err)
					}
					trials[kind] = append(trials[kind], tr)
				}
			}
			since := time.Now()
			if strings.Contains(way, "expired") {
				since = since.Truncate(time.Second).Add(3 * time.Second)
			}
			g.allow(func(int) string { return options(since) })
			<-time.After(time.Until(since.Add(accessWithin)))
			for kind, all := range trials {
				if way == "role watch" && kind == "login" {
					continue // it may still watch
				}
				served, last := after(since, all)
				t.Logf("%s: %s: %d trials, %d served after %v; the last connection ended after %v",
					way, kind, len(all), served, accessWithin, last.Round(time.Millisecond))
				if last == open {
					t.Errorf("%s: %s: a connection has not ended", way, kind)
				}
				if served > 0 {
					t.Errorf("%s: %s: %d of %d were served", way, kind, served, len(all))
				}
			}
			// No other owner lost access.
			own, err := os.ReadFile(*g.at.TokenFile)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.get("/v1/sandboxes", strings.TrimSpace(string(own))); err != nil {
				t.Errorf("the daemon's own user's token: %v", err)
			}
			if err := runs(g.admin, "true"); err != nil {
				t.Errorf("another key's connection: %v", err)
			}
		})
	}
}

// open means that a connection has not ended.
const open = time.Duration(math.MaxInt64)

// after uses each trial once more, and returns how many still work, and when the last connection
// ended.
func after(since time.Time, all []*trial) (served int64, last time.Duration) {
	var asked sync.WaitGroup
	var n atomic.Int64
	room := make(chan struct{}, 8) // the gateway queues no more logins than these
	for _, tr := range all {
		asked.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			if tr.ask() == nil {
				n.Add(1)
			}
		})
	}
	asked.Wait()
	for _, tr := range all {
		select {
		case <-tr.ended:
			last = max(last, tr.at.Sub(since))
		default:
			if tr.ended != nil {
				last = open
			}
		}
	}
	return n.Load(), last
}
