package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// The value of the secret in these tests, and a credential of the sandbox's own.
const realKey, foreignKey = "sk-real-4f1c9a7e2b", "sk-foreign-77d0"

// The hosts of these tests: one with a certificate of the trusted authority, one without.
const apiHost, untrustedHost = "api.sandboxd.test", "untrusted.sandboxd.test"

// upstream is a TLS server on an address of this machine.
type upstream struct {
	address string
	ca      []byte // in PEM

	mu   sync.Mutex
	seen []string // guarded by mu; method, path and credential of each request
	next chan bool
}

// certificate returns a certificate of host, made by an authority of its own, in PEM.
func certificate(t *testing.T, host string) (tls.Certificate, []byte) {
	t.Helper()
	made := func(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour),
			time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	authority, server := key(), key()
	root := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		Subject: pkix.Name{CommonName: "authority of " + host}, KeyUsage: x509.KeyUsageCertSign}
	ca := made(root, root, authority, authority)
	leaf := made(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{host}}, root,
		server, authority)
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: server},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca})
}

// newUpstream starts the server.
func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{next: make(chan bool)}
	u.address, u.ca = serveTLS(t, apiHost, u)
	return u
}

// serveTLS serves host on port 443 of an address of this machine, which it returns with the
// authority of its certificate. Other hosts get a certificate of another authority.
func serveTLS(t *testing.T, host string, handler http.Handler) (address string, ca []byte) {
	t.Helper()
	needRoot(t, "an interface of the test's own")
	n := os.Getpid()*4 + int(interfaces.Add(1))
	name := fmt.Sprintf("sbxt%d", n%1000000)
	address = fmt.Sprintf("10.231.%d.%d", n/64%256, n%64*4+1)
	for _, args := range [][]string{{"link", "add", name, "type", "bridge"},
		{"addr", "add", address + "/30", "dev", name}, {"link", "set", name, "up"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	trusted, ca := certificate(t, host)
	untrusted, _ := certificate(t, untrustedHost)
	l, err := net.Listen("tcp", address+":443")
	if err != nil {
		t.Fatal(err)
	}
	// #nosec G112 -- for the time of a test
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if hello.ServerName == host {
					return &trusted, nil
				}
				return &untrusted, nil
			}}}
	go func() { _ = server.ServeTLS(l, "", "") }() // ends with Close
	t.Cleanup(func() { server.Close() })
	return address, ca
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.seen = append(u.seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+
		r.Header.Get("X-Api-Key"))
	u.mu.Unlock()
	switch r.URL.Path {
	case "/v1/events":
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			if i == 0 {
				<-u.next
			}
		}
	case "/v1/next":
		u.next <- true
	case "/v1/size":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	case "/v1/socket":
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		if kind, b, err := c.Read(r.Context()); err == nil {
			_ = c.Write(r.Context(), kind, append([]byte("echo "), b...))
		}
	default:
		fmt.Fprintf(w, "served %s over %s", r.URL.Path, r.Proto)
	}
}

// take returns what the server has seen since the last call.
func (u *upstream) take() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen := strings.Join(u.seen, "\n")
	u.seen = nil
	return seen
}

// newSecretMachine returns a machine whose daemon knows the names of the test, and trusts the
// server's authority.
func newSecretMachine(t *testing.T, u *upstream, env ...string) *machine {
	t.Helper()
	return newUpstreamMachine(t, u.address, u.ca, []string{apiHost, untrustedHost,
		"other.sandboxd.test"}, env...)
}

// newUpstreamMachine returns a machine whose daemon finds hosts at address, and trusts their
// authority.
func newUpstreamMachine(t *testing.T, address string, ca []byte, hosts []string,
	env ...string) *machine {
	t.Helper()
	m := newMachine(t)
	write := func(name, text string) string {
		path := filepath.Join(m.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	m.hosts = write("hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", address,
		strings.Join(hosts, " ")))
	m.env = append(env, "SANDBOXD_CA_BUNDLE="+write("ca.pem", string(ca)),
		"SANDBOXD_ALLOW="+address, "API_KEY="+realKey)
	m.start()
	return m
}

// cli runs a command of the command line tool, with its input, and returns its output.
func (m *machine) cli(input string, want int, args ...string) string {
	m.t.Helper()
	cmd := m.command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
		m.t.Fatalf("sandboxd %v: %v, want exit code %d: %s", args, err, want, out)
	}
	return string(out)
}

// Requests of a sandbox have the real credential at the server, and nothing else of the sandbox or
// of the daemon has it.
func TestSecrets(t *testing.T) {
	u := newUpstream(t)
	m := newSecretMachine(t, u)
	const url = "https://" + apiHost
	m.control("new --network allowlist demo")
	set := []string{"secret", "set", "api", "--host", apiHost, "--path", "/v1", "--header",
		"Authorization: Bearer {}", "--from-env", "API_KEY"}
	if out := m.cli("", 0, set...); !strings.Contains(out, "used by demo") {
		t.Errorf("secret set: %s", out)
	}
	curl := func(rest string) string {
		t.Helper()
		return m.shell("demo", "curl -sS -m 20 "+rest)
	}
	wants := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}

	// The credential is replaced, with both versions of HTTP.
	for _, version := range []string{"--http1.1", "--http2"} {
		wants(version, curl(version+" -H 'Authorization: Bearer "+foreignKey+"' -H 'X-Api-Key: "+
			foreignKey+"' "+url+"/v1/a"), "served /v1/a over HTTP/2.0")
		wants(version, u.take(), "GET /v1/a Bearer "+realKey)
	}
	wants("version", curl("-o /dev/null -w '%{http_version}' "+url+"/v1/a"), "2")
	wants("python", m.shell("demo", `python3 -c 'import urllib.request as r; `+
		`print(r.urlopen("`+url+`/v1/a").read().decode())'`), "served /v1/a over HTTP/2.0\n")
	wants("a body", curl("-T /bin/bash "+url+"/v1/size"), m.shell("demo",
		"printf %s $(stat -L -c %s /bin/bash)"))
	wants("events", m.shell("demo", "curl -sSN -m 20 "+url+"/v1/events | (read a; "+
		"curl -sS -m 20 "+url+"/v1/next; read b; read c; echo $a $c)"), "data: 0 data: 1\n")
	wants("wss", m.shell("demo", "python3 -c '"+socketScript+"' "+apiHost), "echo hello\n")
	u.take()

	// Other paths, and other ways to the server.
	for _, path := range []string{"/v2", "/v1/../v2", "/v1/%2e%2e/v2", "//v1"} {
		out := curl("--path-as-is -w ' %{http_code}' " + url + path)
		if !strings.Contains(out, `"code":"denied"`) || !strings.HasSuffix(out, " 403") ||
			!strings.Contains(out, `"secret":"api"`) {
			t.Errorf("%s: %s", path, out)
		}
	}
	out := m.cli("", 0, "run", "--json", "-n", "demo", "--", "curl -sS "+url+"/v2; true")
	if !strings.Contains(out, `"denied":[{"host":"`+apiHost+`","port":443,`+
		`"why":"GET request: path /v2 is not bound; secret api"}]`) {
		t.Errorf("run: %s", out)
	}
	if out := m.control("ls"); !strings.Contains(out, "denied") {
		t.Errorf("ls: %s", out)
	}
	wants("the server", u.take(), "")

	// A server whose certificate is not trusted.
	m.cli(realKey, 0, "secret", "set", "untrusted", "--host", untrustedHost, "--header",
		"X-Api-Key: {}", "--for", "demo")
	if out := curl("https://" + untrustedHost + "/"); !strings.Contains(out,
		"the server's certificate is not trusted: x509: certificate signed by unknown authority") {
		t.Errorf("untrusted: %s", out)
	}
	wants("the untrusted server", u.take(), "")

	// A program that has read the bundle trusts a new daemon, which has no secrets for the session.
	m.shell("demo", "cp $SSL_CERT_FILE /tmp/earlier.crt")
	m.cli(realKey+"\n", 0, "secret", "set", "short", "--host", "other.sandboxd.test", "--header",
		"X-Api-Key: {}", "--session-only")
	m.kill()
	m.start()
	m.eventually("the secrets are applied", func() bool {
		return strings.HasPrefix(m.shell("demo", "curl -sS -m 20 "+url+"/v1/a || true"), "served")
	})
	wants("the earlier bundle", m.shell("demo", "curl -sS -m 20 --cacert /tmp/earlier.crt "+url+
		"/v1/a"), "served /v1/a over HTTP/2.0")
	if out := m.control("secret ls"); strings.Contains(out, "short") ||
		!strings.Contains(out, "/v1") || !strings.Contains(out, "env API_KEY") {
		t.Errorf("secret ls: %s", out)
	}
	u.take()

	m.hasNowhere(realKey, "demo")

	// The daemon runs a command for the value.
	file := filepath.Join(m.dir, "token")
	if err := os.WriteFile(file, []byte("{\"value\":\"from-a-command\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.cli("", 0, "secret", "set", "api", "--host", apiHost, "--header", "X-Api-Key: {}",
		"--from-cmd", "cat "+file)
	wants("any path", curl("-H 'Authorization: Bearer "+foreignKey+"' "+url+"/v3"),
		"served /v3 over HTTP/2.0")
	wants("a command", u.take(), "GET /v3 from-a-command")
	if out := m.control("secret ls"); !strings.Contains(out, "cmd cat "+file[:20]) {
		t.Errorf("secret ls: %s", out)
	}
	m.cli("", 0, set...)

	// A removed secret closes the host; a new sandbox has the secrets from its start.
	m.control("secret rm untrusted")
	m.control("new fresh")
	wants("a new sandbox", m.shell("fresh", "curl -sS -m 20 "+url+"/v1/b"),
		"served /v1/b over HTTP/2.0")
	wants("a new sandbox", u.take(), "GET /v1/b Bearer "+realKey)
	m.control("new --network allowlist=proxy proxied")
	wants("a proxy", m.shell("proxied", "curl -sS -m 20 --retry 5 --retry-connrefused "+url+
		"/v1/c"), "served /v1/c over HTTP/2.0")
	wants("a proxy", u.take(), "GET /v1/c Bearer "+realKey)
	m.control("stop fresh")
	wants("started again", m.shell("fresh", "curl -sS -m 20 "+url+"/v1/b"),
		"served /v1/b over HTTP/2.0")
	m.control("secret rm api")
	wants("after rm", m.shell("demo", "curl -sS -m 20 "+url+"/v1/a 2>/dev/null || echo blocked"),
		"blocked\n")
	if _, err := os.Stat(filepath.Join(m.state, "secrets.json")); err == nil {
		t.Error("the file remains without secrets")
	}
}

// A pooled sandbox has the secrets of its owner from the claim on, and none before.
func TestSecretsOfPooled(t *testing.T) {
	u := newUpstream(t)
	m := newSecretMachine(t, u, "SANDBOXD_POOL_SIZE=1")
	m.cli("", 0, "secret", "set", "api", "--host", apiHost, "--header",
		"Authorization: Bearer {}", "--from-env", "API_KEY", "--for", "demo")
	ready := func() bool { return strings.Contains(m.control("pool --json"), `"ready":1`) }
	m.eventually("a sandbox is pooled", ready)
	m.control("new other")
	m.eventually("a sandbox is pooled again", ready)
	m.control("new demo")
	defer m.control("pool --drain") // rm --all leaves pooled sandboxes
	for name, want := range map[string]string{"demo": "GET /x Bearer " + realKey,
		"other": "GET /x Bearer " + foreignKey} {
		if out := m.shell(name, "curl -sS -m 20 -H 'Authorization: Bearer "+foreignKey+
			"' https://"+apiHost+"/x"); out != "served /x over HTTP/2.0" {
			t.Errorf("%s: %s", name, out)
		}
		if got := u.take(); got != want {
			t.Errorf("%s: the server got %q, want %q", name, got, want)
		}
	}
}

// socketScript sends hello over a WebSocket, and prints the answer.
const socketScript = `
import os, socket, ssl, struct, sys
host = sys.argv[1]
s = ssl.create_default_context().wrap_socket(socket.create_connection((host, 443)),
    server_hostname=host)
s.sendall(("GET /v1/socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    % host).encode())
head = b""
while not head.endswith(b"\r\n\r\n"): head += s.recv(1)
assert b" 101 " in head.split(b"\r\n")[0], head
s.sendall(bytes([0x81, 0x80 | 5, 0, 0, 0, 0]) + b"hello")
kind, size = s.recv(1), s.recv(1)[0]
print(s.recv(size).decode())
`

// memoryScript searches the memory of all processes but its own for a regular expression. It prints
// how many have it, and how many it could read. Runtimes map much more than they use: it skips
// blocks of memory without a page.
const memoryScript = `
import os, re, sys
pattern = re.compile(sys.argv[1].encode())
page, block = os.sysconf("SC_PAGE_SIZE"), 1 << 21
hits = seen = 0
def has(pid):
    with open("/proc/%s/maps" % pid) as maps, open("/proc/%s/mem" % pid, "rb", 0) as memory, \
            open("/proc/%s/pagemap" % pid, "rb", 0) as pages:
        for line in maps:
            part, mode = line.split()[:2]
            if mode[0] != "r" or line.rstrip().endswith(("[vvar]", "[vsyscall]")): continue
            at, end = (int(x, 16) for x in part.split("-"))
            before = b""
            while at < end:
                size = min(block << 8, end - at)
                pages.seek(at // page * 8)
                if not pages.read(size // page * 8).strip(b"\0"):
                    at, before = at + size, b""
                    continue
                size = min(block, size)
                pages.seek(at // page * 8)
                text = b""
                if pages.read(size // page * 8).strip(b"\0"):
                    memory.seek(at)
                    try: text = memory.read(size)
                    except OSError: pass
                if pattern.search(before + text): return True
                at, before = at + size, text[-64:]
    return False
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    try: hits += has(pid)
    except OSError: continue
    seen += 1
print(hits, seen)
`

// hasNowhere fails the test if text is in a sandbox's files, processes or their memory, in what the
// engine knows of it, in answers of the daemon, in the log of the session target, or in the state
// directory outside the secrets.
func (m *machine) hasNowhere(text, target string) {
	m.t.Helper()
	name, _, _ := strings.Cut(target, "~")
	id := m.list()[name].ID
	pattern := text[:4] + "[" + text[4:5] + "]" + text[5:] // the store has this command
	if found := m.shell(name, `env | grep -c '`+pattern+`'; cat /proc/[0-9]*/environ `+
		`2>/dev/null | grep -ac '`+pattern+`'; grep -rlas --exclude-dir=proc --exclude-dir=sys `+
		`--exclude-dir=dev '`+pattern+`' / | wc -l`); strings.Join(strings.Fields(found),
		" ") != "0 0 0" {
		m.t.Errorf("in the sandbox: %s", found)
	}
	var hits, seen int
	found := m.shell(name, "python3 -c '"+memoryScript+"' '"+pattern+"'")
	if _, err := fmt.Sscan(found, &hits, &seen); err != nil || hits > 0 || seen == 0 {
		m.t.Errorf("in memory: %v: %s, want 0 of some processes", err, found)
	}
	for what, out := range map[string]string{
		"describe": m.control("describe --json " + name), "ls": m.control("ls --json"),
		"log": m.control("log " + target), "secret ls": m.control("secret ls --json"),
		"docker inspect": strings.Join(m.engine("inspect", "sandboxd-"+id), " "),
	} {
		if strings.Contains(out, text) {
			m.t.Errorf("%s has it: %s", what, out)
		}
	}
	err := filepath.WalkDir(m.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "secrets.json" {
			return err
		}
		b, err := os.ReadFile(path)
		if at := bytes.Index(b, []byte(text)); at >= 0 {
			m.t.Errorf("%s has it: %q", path, b[max(0, at-100):min(len(b), at+100)])
		}
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
	file := filepath.Join(m.state, "secrets.json")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		m.t.Errorf("%s: %v, %v", file, info, err)
	}
}
