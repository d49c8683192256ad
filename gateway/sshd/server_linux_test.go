package sshd

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// whoami asks the control host who the client is.
func whoami(t testing.TB, c *ssh.Client) string {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.Output("who")
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(string(out), ":")
	return name
}

func TestLogin(t *testing.T) {
	ca, user := newSigner(t), newSigner(t)
	w := newWorld(t, worldOptions{keys: []string{keyLine("cert-authority", ca.PublicKey()),
		keyLine(`principal="far",from="192.0.2.1"`, user.PublicKey())}})
	for key, want := range map[string]string{"alice": "alice", "bob": "bob", "agent": "alice",
		"watch": "alice"} {
		if got := whoami(t, w.dial(key, "sandboxd")); got != want {
			t.Errorf("key %s: got %s, want %s", key, got, want)
		}
	}
	cert := &ssh.Certificate{Key: user.PublicKey(), CertType: ssh.UserCert,
		ValidPrincipals: []string{"carol"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(cert, user)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(user string, auth ...ssh.AuthMethod) (*ssh.Client, error) {
		return ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: user, Auth: auth,
			HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
	}
	c, err := dial("sandboxd", ssh.PublicKeys(signer))
	if err != nil {
		t.Fatal(err)
	}
	if got := whoami(t, c); got != "carol" {
		t.Errorf("certificate: got %s, want carol", got)
	}
	c.Close()
	for name, auth := range map[string][]ssh.AuthMethod{
		"nothing":               nil,
		"a password":            {ssh.Password("")},
		"questions":             {ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })},
		"an unknown key":        {ssh.PublicKeys(w.signer("no"))},
		"a key from elsewhere":  {ssh.PublicKeys(user)},
		"the authority itself":  {ssh.PublicKeys(ca)},
		"the gateway's own key": {ssh.PublicKeys(w.host)},
	} {
		for _, user := range []string{"sandboxd", "demo", "root", "alice", ""} {
			if c, err := dial(user, auth...); err == nil {
				c.Close()
				t.Errorf("%q is let in with %s", user, name)
			}
		}
	}
}

const switchUser = `
import paramiko, sys, threading
port, alice, bob, no = sys.argv[1:]
def attack(first, then):
    t = paramiko.Transport(("127.0.0.1", int(port)))
    t.start_client()
    for user, path in first:
        try:
            t.auth_publickey(user, paramiko.Ed25519Key(filename=path))
            print("let in", user)
        except paramiko.AuthenticationException:
            pass
    # The library would begin the login anew, which is no attack.
    h = t.auth_handler = paramiko.auth_handler.AuthHandler(t)
    event = h.auth_event = threading.Event()
    h.auth_method, (h.username, h.private_key) = "publickey", then
    m = paramiko.Message()
    m.add_string("ssh-userauth")
    m.rewind()
    h._parse_service_accept(m)
    h.wait_for_response(event)
    c = t.open_session()
    c.exec_command("who")
    out = c.makefile().read().decode()
    t.close()
    return out
key = paramiko.Ed25519Key(filename=bob)
print(attack([("alice", no)], ("sandboxd", key)), end="")
`

// The user-switch attack: alice fails, bob succeeds on the same connection, and the client is bob.
func TestUserSwitch(t *testing.T) {
	w := newWorld(t, worldOptions{})
	got := mustRun(t, w, python, "-c", switchUser, w.port, w.key("alice"), w.key("bob"),
		w.key("no"))
	if want := "bob: [\"who\"]\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Alice's public key is offered and accepted, and bob's signs.
func TestOfferedKeyIsNotIdentity(t *testing.T) {
	w := newWorld(t, worldOptions{})
	if err := os.Rename(w.key("alice"), w.key("alice")+".away"); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-v", "-i", w.key("alice") + ".pub", "-i", w.key("bob")},
		w.sshOptions("bob")...)
	c := w.command("ssh", append(replace(args, "LogLevel=ERROR", "LogLevel=DEBUG1"),
		"sandboxd@127.0.0.1", "who")...)
	got := outcome(t, c, "")
	if got.stdout != "bob: [\"who\"]\n" {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(got.stderr, "Server accepts key: "+w.key("alice")) {
		t.Errorf("alice's key was not offered:\n%s", got.stderr)
	}
}

// The number of attempts on one connection is limited.
func TestTries(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{Tries: 3}})
	var many []ssh.Signer
	for range 10 {
		many = append(many, newSigner(t))
	}
	asked := 0
	_, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: "demo",
		HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey()),
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(append(many, w.signer("alice"))...)},
		BannerCallback:  func(string) error { asked++; return nil }})
	if err == nil {
		t.Error("let in by the eleventh key")
	}
	if asked != 0 {
		t.Error("a banner was sent")
	}
}

// garbage sends b and waits until the gateway closes the connection, sooner than the login timeout
// of 30 s.
func garbage(t testing.TB, addr string, b []byte) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(25 * time.Second))
	go c.Write(b)
	if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
		t.Fatalf("%.40q: not closed", b)
	}
}

// Data that is not SSH is rejected at once.
func TestGarbage(t *testing.T) {
	w := newWorld(t, worldOptions{})
	version := "SSH-2.0-x\r\n"
	packet := func(length uint32, rest ...byte) string {
		return version + string(binary.BigEndian.AppendUint32(nil, length)) + string(rest)
	}
	random := make([]byte, 4096)
	rand.Read(random)
	random[0] = 'x'
	for name, in := range map[string]string{
		"HTTP":               "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"SSH-1":              "SSH-1.5-OpenSSH_1\n",
		"megabyte":           "SSH-2.0-" + strings.Repeat("x", 1<<20),
		"lines in front":     strings.Repeat("hello\r\n", 2000) + version,
		"NUL":                "SSH-2.0-\x00\r\n",
		"escapes":            "SSH-2.0-\x1b[2J\x1b]0;x\x07\r\n",
		"random":             string(random),
		"packet length 0":    packet(0, make([]byte, 64)...),
		"packet length 1":    packet(1, make([]byte, 64)...),
		"packet length max":  packet(0xffffffff, make([]byte, 64)...),
		"packet too long":    packet(256<<10+1, make([]byte, 64)...),
		"padding 0":          packet(12, append([]byte{0, 20}, make([]byte, 64)...)...),
		"padding 255":        packet(12, append([]byte{255, 20}, make([]byte, 64)...)...),
		"incomplete KEXINIT": packet(12, append([]byte{4, 20}, make([]byte, 64)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			garbage(t, w.addr, []byte(in))
		})
	}
	for line := range strings.SplitSeq(w.log.String(), "\n") {
		if len(line) > 600 || strings.ContainsRune(line, 0x1b) ||
			strings.Contains(line, "level=INFO") && !strings.Contains(line, "of=hub") {
			t.Errorf("a stranger wrote into the log: %.700q", line)
		}
	}
	if got := whoami(t, w.dial("alice", "sandboxd")); got != "alice" {
		t.Errorf("afterwards: %q", got)
	}
}

// A client that does not log in within the grace period is disconnected, silent or slow.
func TestGrace(t *testing.T) {
	t.Parallel()
	const grace = time.Second
	w := newWorld(t, worldOptions{limits: Limits{Grace: grace}})
	for name, feed := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"dripping": func(c net.Conn) {
			drip := time.NewTicker(20 * time.Millisecond)
			defer drip.Stop()
			for _, b := range []byte("SSH-2.0-" + strings.Repeat("x", 200)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				<-drip.C
			}
		},
		"stalled in the key exchange": func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now() // before the server can accept: the grace period starts there
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go feed(c)
			_ = c.SetReadDeadline(began.Add(time.Minute))
			if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
				t.Fatal("not closed")
			}
			if took := time.Since(began); took < grace {
				t.Errorf("closed after %v, before its time", took)
			}
		})
	}
	// A logged-in client may be silent for longer.
	var c *ssh.Client
	eventually(t, "a login within the grace", func() (ok bool) {
		var err error
		c, err = w.tryDial("alice", "sandboxd")
		return err == nil
	})
	defer c.Close()
	<-time.After(2 * grace)
	if got := whoami(t, c); got != "alice" {
		t.Errorf("after the grace: %q", got)
	}
}

// Half-open connections of one source and of many leave room for logins.
func TestHalfOpen(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{PerSource: 8, Grace: time.Hour}})
	for i := range 600 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+i%100), 1)},
			Timeout: time.Minute}
		c, err := d.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	// Soon: none of them ends by itself within an hour.
	eventually(t, "a login", func() bool {
		c, err := w.tryDial("alice", "sandboxd")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if n := runtime.NumGoroutine(); n > 1000 {
		t.Errorf("%d goroutines", n)
	}
}

func TestPenaltyByNetwork(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{PerSource: 8}})
	for range 4 {
		if c, err := w.tryDial("no", "demo"); err == nil {
			c.Close()
			t.Fatal("let in")
		}
	}
	eventually(t, "the source is shut out", func() bool {
		c, err := w.tryDial("alice", "sandboxd")
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// The offered algorithms, and no others.
func TestAlgorithms(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "SSH-2.0-x\r\n")
	r := bufio.NewReader(c)
	version, err := r.ReadString('\n')
	if err != nil || version != "SSH-2.0-sandboxd\r\n" {
		t.Fatalf("version %q, %v", version, err)
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(head)-1)
	if _, err := io.ReadFull(r, body); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mlkem768x25519-sha256", "curve25519-sha256",
		"kex-strict-s-v00@openssh.com", "ssh-ed25519",
		"aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes256-ctr",
		"hmac-sha2-256-etm@openssh.com"} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s is not offered", want)
		}
	}
	for _, bad := range []string{"sha1", "cbc", "nistp", "arcfour", "ssh-rsa,", "ssh-dss", "md5",
		"3des"} {
		if bytes.Contains(body, []byte(bad)) {
			t.Errorf("%s is offered: %q", bad, body)
		}
	}
}

// An RSA host key beside the ed25519 one, for clients without that.
func TestHostKeys(t *testing.T) {
	old, err := KeyPair(t.TempDir()+"/rsa", RSA, "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, worldOptions{hostKeys: []ssh.Signer{newSigner(t), old}})
	for _, algorithm := range []string{"ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"} {
		got := outcome(t, w.ssh("alice", "-o", "HostKeyAlgorithms="+algorithm, "sandboxd@127.0.0.1",
			"who"), "")
		if got.exit != 0 {
			t.Errorf("%s: got %+v", algorithm, got)
		}
	}
	got := outcome(t, w.ssh("alice", "-o", "HostKeyAlgorithms=ssh-rsa", "sandboxd@127.0.0.1",
		"who"), "")
	if got.exit != 255 {
		t.Errorf("SHA-1: got %+v", got)
	}
}

// A client's user name reaches only one parser.
func TestUserNames(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for _, user := range []string{"../../x", "-oProxyCommand=x", "a b", "a\x00b",
		strings.Repeat("x", 10<<10), "$(id)", "a;b", "a\nb",
		"\u202egnp", "😀", "dеmo", "Demo", "demo~", "~demo", "demo~a~b", "demo~../x", "sandboxd~x",
		""} {
		c, err := w.tryDial("alice", user)
		if err != nil {
			t.Errorf("%.20q: login: %v", user, err)
			continue
		}
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		s.Stderr = &errs
		err = s.Run("echo x")
		var exit *ssh.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() != 255 ||
			strings.Count(errs.String(), "\n") != 1 || len(errs.String()) > 600 ||
			strings.ContainsAny(errs.String(), "\x00\x1b\u202e") {
			t.Errorf("%.20q: %v, %q", user, err, errs.String())
		}
		if _, err := c.Dial("tcp", "127.0.0.1:1"); err == nil {
			t.Errorf("%.20q: forwards", user)
		}
		c.Close()
	}
}
