package docker

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// apart is a directory that the engine does not see: its path means something else in another
// process.
func apart(t *testing.T) string {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const unused = 900 // in the engine's process
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, unused)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

// remoteBackend is a testBackend that shares no files with the engine.
func remoteBackend(t *testing.T) *Backend {
	t.Helper()
	b := testBackend(t, func(o *Options) { o.Dir = apart(t) + "/instances" })
	if f := factsFor(t, b); !f.remote {
		if f.compatible {
			t.Skip("whether an engine other than Docker's is remote is not tried with files")
		}
		t.Fatal("the engine is not remote")
	}
	return b
}

func TestRemoteContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return remoteBackend(t) },
		Spec:    sandbox.Spec{Image: busybox, Isolation: testIsolation},
		NoImage: "registry.invalid/none:latest", Remote: true,
	})
}

// An engine on this machine is not remote, and asking leaves no container or file.
func TestNotRemote(t *testing.T) {
	b := testBackend(t)
	if factsFor(t, b).remote {
		t.Error("this machine's engine counts as remote")
	}
	if left, err := os.ReadDir(b.opts.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What an engine without this machine's files cannot do is an error that says so.
func TestRemoteRefuses(t *testing.T) {
	b := remoteBackend(t)
	for _, spec := range []sandbox.Spec{
		{Network: sandbox.NetworkFiltered, Via: sandbox.ViaTUN},
		{Mounts: []sandbox.Mount{{Path: t.TempDir(), Target: "/work"}}},
	} {
		spec.ID, spec.Image = newID(), busybox
		_, err := b.Boot(t.Context(), spec)
		var failed *sandbox.BootError
		if !errors.As(err, &failed) || failed.Hint == "" {
			t.Errorf("%+v: got error %v without a hint", spec, err)
		}
	}
}

// The guest cannot be changed from a sandbox, and is the same file for all.
func TestRemoteGuestIsReadOnly(t *testing.T) {
	b := remoteBackend(t)
	c := login(t, b, boot(t, b, sandbox.Spec{Sudo: true}))
	for _, command := range []string{"echo x >>" + remoteGuest, "rm " + remoteGuest,
		"mv /dev/.sandboxd /dev/other", "mkdir /dev/.sandboxd/x"} {
		if out, err := sh(t, c, command); err == nil {
			t.Errorf("%s: worked: %s", command, out)
		}
	}
	if out := mustSh(t, c, "ls /dev/.sandboxd"); out != "guest" {
		t.Errorf("the volume has %q", out)
	}
}

// A connection to a sandbox that does not run says so; a started one answers again.
func TestRemoteDial(t *testing.T) {
	b := remoteBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	c := login(t, b, inst)
	mustSh(t, c, "true")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := b.Stop(ctx, inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Dial(ctx, inst); !errors.Is(err, sandbox.ErrStopped) {
		t.Errorf("stopped: got %v, want %v", err, sandbox.ErrStopped)
	}
	if _, err := b.Start(ctx, inst); err != nil {
		t.Fatal(err)
	}
	mustSh(t, login(t, b, inst), "true")
	if err := b.Destroy(ctx, inst); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Dial(ctx, inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("removed: got %v, want %v", err, sandbox.ErrGone)
	}
}

// A rescue ends all programs of a sandbox, but not what carries its answer; connections stay. A
// stop does not wait for what carries its order.
func TestRemoteRescue(t *testing.T) {
	b := remoteBackend(t)
	inst := boot(t, b, sandbox.Spec{Image: sandbox.DefaultImage})
	orders, c := control(t, b, inst), login(t, b, inst)
	// The second one starts others faster than they end. The third one's jobs, in process groups of
	// their own, continue when it has ended, and start others. The fourth one's first thread ends.
	mustSh(t, c, `(setsid sleep 1000 >/dev/null 2>&1 &)
		(setsid bash -c 'while :; do sleep .05 & done' >/dev/null 2>&1 &)
		(setsid bash -mc 'trap "" HUP; for i in $(seq 20); do
			(while :; do sleep .2; done) & done; wait' >/dev/null 2>&1 &)
		(setsid python3 -c 'import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)' >/dev/null 2>&1 &)
		for i in $(seq 600); do [ $(ps -e | wc -l) -lt 30 ] || exit 0; sleep .1; done; ps -ef; exit 1`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reply, err := orders.Do(ctx, wire.Control{Do: "rescue"})
	if err != nil || reply.Killed < 20 {
		t.Fatalf("got %+v, %v; want twenty or more killed", reply, err)
	}
	for _, name := range strings.Fields(mustSh(t, c, "ps -e -o comm=")) {
		if !slices.Contains([]string{"guest", "bash", "ps"}, name) {
			t.Errorf("%s is left", name)
		}
	}
	began := time.Now()
	const grace = 40 * time.Second
	if err := b.Stop(ctx, inst, grace); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= grace {
		t.Errorf("stop of a sandbox without programs took %v", took)
	}
}

// Certificate authorities reach programs of a sandbox, also those set while it was stopped.
func TestRemoteTrust(t *testing.T) {
	b := remoteBackend(t)
	inst := boot(t, b, sandbox.Spec{Trust: sandbox.TrustHost, Authorities: []byte("# first\n")})
	text := func() string {
		t.Helper()
		return mustSh(t, login(t, b, inst), "tail -n 2 $SSL_CERT_FILE")
	}
	if got := text(); !strings.HasSuffix(got, "\n# first") {
		t.Errorf("after boot: %q", got)
	}
	if err := b.Trust(t.Context(), inst, []byte("# second\n")); err != nil {
		t.Fatal(err)
	}
	if got := text(); !strings.HasSuffix(got, "\n# second") {
		t.Errorf("after a change: %q", got)
	}
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := b.Trust(t.Context(), inst, []byte("# third\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := text(); !strings.HasSuffix(got, "\n# third") {
		t.Errorf("after a start: %q", got)
	}
}

// An engine that is reached by the user's ssh, as docker reaches it.
func TestRemoteBySSH(t *testing.T) {
	needEngine(t)
	server := openssh.Start(t, openssh.Settings{Env: "DOCKER_HOST=" + testEngine})
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		openssh.Needed(t, "openssh-client")
	}
	bin := t.TempDir()
	script := "#!/bin/sh\nexec " + ssh + " -F none -i " + server.Identity +
		" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := testBackend(t, func(o *Options) {
		o.Host, o.Dir = "ssh://"+server.User+"@127.0.0.1:"+server.Port, apart(t)+"/instances"
	})
	inst := boot(t, b, sandbox.Spec{})
	if !b.state.listens(inst.ID) {
		t.Fatal("the engine is not remote")
	}
	mustSh(t, login(t, b, inst), "echo kept >/kept")
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, login(t, b, inst), "cat /kept"); got != "kept" {
		t.Errorf("got %q after a stop and a start, want kept", got)
	}
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
}

// Root in a sandbox that makes the engine wait for a program costs the engine a bounded number of
// threads. Connections that are open stay.
func TestRemoteSilence(t *testing.T) {
	b := remoteBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	c := login(t, b, inst)
	mustSh(t, c, "cp /etc/passwd /tmp/ && rm /etc/passwd && mkfifo /etc/passwd")
	asked := 0
	for range 3 * maxSilent {
		if peer, err := b.Dial(t.Context(), inst); err == nil {
			asked++
			peer.Conn.Close()
		}
	}
	if asked == 0 || asked > maxSilent {
		t.Errorf("the engine was asked %d times to start a program, want 1 to %d", asked, maxSilent)
	}
	// Opening the FIFO, which does not wait with this mode, ends the waits of the engine, and
	// closing it ends its reads. By then the file is back: what the engine starts next reads it,
	// too, and would wait until the end of the container.
	mustSh(t, c, "exec 3<>/etc/passwd; mv /tmp/passwd /etc/passwd; exec 3>&-")
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	mustSh(t, login(t, b, inst), "true")
}

// A connection through the engine is what the program wrote; what else arrives is its error.
func TestRelayed(t *testing.T) {
	frame := func(kind byte, text string) string {
		return string([]byte{kind, 0, 0, 0, 0, 0, 0, byte(len(text))}) + text
	}
	for _, tt := range []struct{ name, sent, want, err string }{
		{"whole", frame(1, "SSH-2.0-x\r\n") + frame(1, "more"), "SSH-2.0-x\r\nmore", "EOF"},
		{"empty frames", frame(1, "") + frame(1, "SSH-2.0") + frame(1, ""), "SSH-2.0", "EOF"},
		{"cut in a header", frame(1, "SSH-") + "\x01\x00", "SSH-", "unexpected EOF"},
		{"cut in a frame", frame(1, "SSH-2.0")[:12], "SSH-", "EOF"},
		{"cut at once", "", "", "EOF"},
		{"error of the relay", frame(2, "sandboxd: relay: refused\n"), "", "relay: sandboxd: relay: refused"},
		{"error in between", frame(1, "SSH-") + frame(2, "reset"), "SSH-", "relay: reset"},
		{"error of the engine", frame(1, "OCI runtime exec failed: no\x1b[2J\r\n"), "", "relay: OCI runtime exec failed: no"},
		{"what follows is text", frame(1, "SSH-") + frame(1, "OCI"), "SSH-OCI", "EOF"},
		{"short", frame(1, "S") + frame(1, "SH-2.0"), "SSH-2.0", "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			go func() { // ends with near
				_, _ = io.WriteString(far, tt.sent)
				far.Close()
			}()
			c := &relayed{Conn: near, frames: bufio.NewReader(near), silence: new(silence)}
			got, err := io.ReadAll(iotest.OneByteReader(c))
			if err == nil {
				err = io.EOF
			}
			if string(got) != tt.want || !strings.HasPrefix(err.Error(), tt.err) ||
				strings.Contains(err.Error(), "\x1b") {
				t.Errorf("got %q, %v; want %q, %s", got, err, tt.want, tt.err)
			}
			if _, again := c.Read(make([]byte, 1)); again == nil {
				t.Error("a read after the end gives something")
			}
		})
	}
	near, far := net.Pipe()
	defer far.Close()
	c := &relayed{Conn: near, frames: bufio.NewReader(near), silence: new(silence)}
	c.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a read after the deadline gives something")
	}
}

// An engine that is reached by TLS: the server's certificate counts, and the client shows its own.
func TestRemoteByTLS(t *testing.T) {
	needEngine(t)
	dir := t.TempDir()
	pair := func(name string, sign *tls.Certificate) tls.Certificate {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1),
			NotAfter: time.Now().Add(time.Hour),
			Subject:  pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
			IsCA: sign == nil, BasicConstraintsValid: true,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		parent, signer := template, any(key)
		if sign != nil {
			parent, signer = sign.Leaf, sign.PrivateKey
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
		files := map[string][]byte{"cert.pem": certText, "key.pem": keyText}
		if sign == nil {
			files = map[string][]byte{"ca.pem": certText}
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		made, err := tls.X509KeyPair(certText, keyText)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	ca := pair("ca", nil)
	known := x509.NewCertPool()
	known.AddCert(ca.Leaf)
	server := pair("server", &ca)
	pair("client", &ca) // its files stay
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{server},
		ClientCAs: known, ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer in.Close()
				out, err := net.Dial("unix", strings.TrimPrefix(testEngine, "unix://"))
				if err != nil {
					return
				}
				defer out.Close()
				var both sync.WaitGroup
				both.Go(func() {
					_, _ = io.Copy(out, in)
					_ = out.(*net.UnixConn).CloseWrite()
				})
				_, _ = io.Copy(in, out)
				_ = in.(*tls.Conn).CloseWrite()
				out.Close() // what it does not read any more
				both.Wait()
			})
		}
	})
	host := "tcp://localhost:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	t.Setenv("DOCKER_CERT_PATH", dir)
	b := testBackend(t, func(o *Options) { o.Host = host })
	mustSh(t, login(t, b, boot(t, b, sandbox.Spec{})), "true")

	pair("other", nil) // another authority
	other, err := New(Options{Host: host, Dir: t.TempDir(), GuestDir: t.TempDir(),
		DaemonID: newID(), Guest: b.opts.Guest})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.engine.facts(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server that another authority has signed: got error %v", err)
	}
}

// A daemon that is killed while it asks an engine for a file leaves that behind: the next one
// removes it.
func TestForgetSeen(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, ".seen-1")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{Dir: dir, GuestDir: t.TempDir(), DaemonID: "d",
		Guest: func(string) (string, error) { return "", errors.New("not used") }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}
