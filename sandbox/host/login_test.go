package host

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// sshConfig makes the ssh that resolves names read the test's configuration: OpenSSH finds a home
// directory by the user database, not by $HOME.
func sshConfig(t *testing.T, lines ...string) {
	t.Helper()
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		needed(t, "openssh-client")
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "config"), strings.Join(lines, "\n")+"\n")
	put(t, filepath.Join(dir, "ssh"), "#!/bin/sh\nexec "+ssh+" -F "+dir+"/config \"$@\"\n")
	if err := os.Chmod(filepath.Join(dir, "ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// knownHosts writes a known_hosts file for p, with a key or with an authority's key.
func (p *peer) knownHosts(t *testing.T, marker string, key ssh.PublicKey) string {
	t.Helper()
	// Its own file: Destroy needs the earlier ones.
	file := filepath.Join(t.TempDir(), "known_hosts")
	put(t, file, strings.TrimSpace(marker+" [127.0.0.1]:"+p.port+" "+
		string(ssh.MarshalAuthorizedKey(key)))+"\n")
	return file
}

// block returns a block of ssh_config for p.
func (p *peer) block(name, known string, more ...string) []string {
	return append([]string{"Host " + name, "HostName 127.0.0.1", "Port " + p.port, "User " + p.user,
		"IdentityFile " + p.identity,
		"IdentitiesOnly yes", "UserKnownHostsFile " + known, "GlobalKnownHostsFile /dev/null"},
		more...)
}

// echoes checks that a sandbox at uri answers.
func echoes(t *testing.T, b *Backend, h sandbox.Host) {
	t.Helper()
	inst := boot(t, b, sandbox.Spec{ID: "t" + strings.ToLower(rand.Text()[:10]), Host: h})
	c, err := b.DialSessions(timeout(t), inst)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if res := run(t, attach(t, c, "main", wire.Start{}), "echo hello"); res.Output != "hello\n" {
		t.Errorf("got %q, want hello", res.Output)
	}
}

// An alias of ssh_config uses all settings of its block.
func TestAlias(t *testing.T) {
	p := openSSH(t, settings{})
	sshConfig(t, p.block("gpu-box", p.knownHosts(t, "", p.host.PublicKey()))...)
	echoes(t, newBackend(t), sandbox.Host{URI: "gpu-box"})
}

// Neither a Match exec that hangs nor a process that it started delays a login indefinitely.
func TestMatchExecHangs(t *testing.T) {
	p := openSSH(t, settings{})
	known := p.knownHosts(t, "", p.host.PublicKey())
	sshConfig(t, append([]string{`Match exec "sleep 1000 & echo $! >` + known + `.pid"`},
		p.block("box", known)...)...)
	e, err := resolve(timeout(t), "box")
	if err != nil || e.port != p.port {
		t.Errorf("with a child that goes on: got %+v, %v", e, err)
	}
	if pid, err := os.ReadFile(known + ".pid"); err != nil ||
		exec.Command("kill", strings.TrimSpace(string(pid))).Run() != nil {
		t.Errorf("the child: %v", err)
	}
	sshConfig(t, `Match exec "exec sleep 1000"`)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := resolve(ctx, "box"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

// Two jump hosts, each with its own key, and the target behind them.
func TestJump(t *testing.T) {
	a, b, c := openSSH(t, settings{}), openSSH(t, settings{}), openSSH(t, settings{})
	var config []string
	config = append(config, a.block("first", a.knownHosts(t, "", a.host.PublicKey()))...)
	config = append(config, b.block("second", b.knownHosts(t, "", b.host.PublicKey()))...)
	config = append(config, c.block("target", c.knownHosts(t, "", c.host.PublicKey()),
		"ProxyJump first,second")...)
	config = append(config, c.block("nested", c.knownHosts(t, "", c.host.PublicKey()),
		"ProxyJump through")...)
	config = append(config, b.block("through", b.knownHosts(t, "", b.host.PublicKey()),
		"ProxyJump first")...)
	config = append(config, a.block("loop", a.knownHosts(t, "", a.host.PublicKey()),
		"ProxyJump loop")...)
	sshConfig(t, config...)
	be := newBackend(t)
	echoes(t, be, sandbox.Host{URI: "target"})
	echoes(t, be, sandbox.Host{URI: "nested"})
	_, err := be.Boot(timeout(t), sandbox.Spec{ID: "loop", Host: sandbox.Host{URI: "loop"}})
	if err == nil || !strings.Contains(err.Error(), "jump hosts") {
		t.Errorf("a loop: got %v", err)
	}
}

func TestProxyCommand(t *testing.T) {
	if _, err := exec.LookPath("perl"); err != nil {
		needed(t, "perl")
	}
	p := openSSH(t, settings{})
	// Does the same as nc, in Perl, which all machines with these tests have.
	relay := filepath.Join(p.dir, "relay.pl")
	put(t, relay, `use IO::Socket::INET; use IO::Select;
my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die;
my $sel = IO::Select->new($s, \*STDIN);
while (1) { for my $h ($sel->can_read) { my $n = sysread($h, my $b, 65536); exit unless $n;
	my $o = $h == $s ? \*STDOUT : $s; my $at = 0; while ($at < $n) { $at += syswrite($o, $b, $n - $at, $at) } } }
`)
	sshConfig(t, p.block("box", p.knownHosts(t, "", p.host.PublicKey()), "ProxyCommand perl "+relay+
		" %h %p")...)
	echoes(t, newBackend(t), sandbox.Host{URI: "box"})
}

// certify signs key for a host or a user.
func certify(t *testing.T, ca ssh.Signer, key ssh.PublicKey, kind uint32,
	principal string) *ssh.Certificate {
	t.Helper()
	return certifyUntil(t, ca, key, kind, principal, time.Now().Add(time.Hour))
}

func certifyUntil(t *testing.T, ca ssh.Signer, key ssh.PublicKey, kind uint32, principal string,
	end time.Time) *ssh.Certificate {
	t.Helper()
	cert := &ssh.Certificate{Key: key, CertType: kind, KeyId: "test",
		ValidPrincipals: []string{principal},
		ValidAfter:      uint64(end.Add(-2 * time.Hour).Unix()), ValidBefore: uint64(end.Unix()), //nolint:gosec // positive
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": "",
			"permit-port-forwarding": ""}}}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	return cert
}

// Certificates of a host authority and of a user authority.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := keyPair(t, filepath.Join(dir, "ca"))
	p := openSSH(t, settings{lines: []string{"TrustedUserCAKeys " + filepath.Join(dir, "ca.pub"),
		"AuthorizedKeysFile none",
		"HostCertificate " + filepath.Join(dir, "host-cert.pub")}})
	user, err := readKey(p.identity)
	if err != nil {
		t.Fatal(err)
	}
	put(t, p.identity+"-cert.pub", string(
		ssh.MarshalAuthorizedKey(certify(t, ca, user[0].PublicKey(), ssh.UserCert, p.user))))
	put(t, filepath.Join(dir, "host-cert.pub"),
		string(ssh.MarshalAuthorizedKey(
			certify(t, ca, p.host.PublicKey(), ssh.HostCert, "127.0.0.1"))))
	restart(t, p)
	sshConfig(t, p.block("box", p.knownHosts(t, "@cert-authority", ca.PublicKey()))...)
	b := newBackend(t)
	echoes(t, b, sandbox.Host{URI: "box"})

	stranger := keyPair(t, filepath.Join(dir, "stranger"))
	sshConfig(t, p.block("box", p.knownHosts(t, "@cert-authority", stranger.PublicKey()))...)
	if _, err := b.Boot(timeout(t), sandbox.Spec{ID: "box",
		Host: sandbox.Host{URI: "box"}}); !errors.Is(err, connect.ErrIdentity) &&
		stage(err) != "host key" {
		t.Errorf("another authority: got %v, want an error of the host key", err)
	}
}

// Expired certificates are reported: a user's, which the machine denies, and a host's, whose key
// then counts as unknown.
func TestCertificatesExpired(t *testing.T) {
	dir := t.TempDir()
	ca := keyPair(t, filepath.Join(dir, "ca"))
	p := openSSH(t, settings{lines: []string{"TrustedUserCAKeys " + filepath.Join(dir, "ca.pub"),
		"AuthorizedKeysFile none",
		"HostCertificate " + filepath.Join(dir, "host-cert.pub")}})
	user, err := readKey(p.identity)
	if err != nil {
		t.Fatal(err)
	}
	sshConfig(t, p.block("box", p.knownHosts(t, "@cert-authority", ca.PublicKey()))...)
	b := newBackend(t)
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	use := func(ofUser, ofHost time.Time) {
		put(t, p.identity+"-cert.pub", string(
			ssh.MarshalAuthorizedKey(certifyUntil(t, ca, user[0].PublicKey(), ssh.UserCert, p.user,
				ofUser))))
		put(t, filepath.Join(dir, "host-cert.pub"),
			string(ssh.MarshalAuthorizedKey(
				certifyUntil(t, ca, p.host.PublicKey(), ssh.HostCert, "127.0.0.1", ofHost))))
		restart(t, p)
	}
	use(past, future)
	for _, h := range []sandbox.Host{{URI: "box"}, {URI: "box", Identity: p.identity}} {
		_, err := b.Boot(timeout(t), sandbox.Spec{ID: "box", Host: h})
		if stage(err) != "login" || !strings.Contains(
			err.Error(), "certificate expired on "+past.UTC().Format("2006-01-02T15")) {
			t.Errorf("the user's: got %v, want an error of the login that says so", err)
		}
	}
	use(future, past)
	if _, err := b.Boot(timeout(t), sandbox.Spec{ID: "box", Host: sandbox.Host{URI: "box"}}); stage(
		err) != "host key" || !strings.Contains(err.Error(), "expired") {
		t.Errorf("the host's: got %v, want an error of the host key that says so", err)
	}
}

// restart makes a server read its files again.
func restart(t *testing.T, p *peer) {
	t.Helper()
	proc, err := os.FindProcess(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = proc.Wait()
	p.start(t, exec.Command("/usr/sbin/sshd", "-D", "-f", filepath.Join(p.dir, "sshd_config"), "-E",
		p.log))
}

func stage(err error) sandbox.Stage {
	var boot *sandbox.BootError
	if errors.As(err, &boot) {
		return boot.Stage
	}
	return ""
}

// Each error names the host, the failed step and what to do.
func TestErrors(t *testing.T) {
	p := openSSH(t, settings{lines: []string{"PasswordAuthentication yes"}})
	b := newBackend(t)
	dir := t.TempDir()
	keyPair(t, filepath.Join(dir, "other"))
	put(t, filepath.Join(dir, "password"), "wrong\n")
	other := keyPair(t, filepath.Join(dir, "hostkey"))
	closed := freePort(t)
	good := ssh.FingerprintSHA256(p.host.PublicKey())
	var config []string
	config = append(config, p.block("changed", p.knownHosts(t, "", other.PublicKey()))...)
	sshConfig(t, config...)
	for _, tt := range []struct {
		name  string
		host  sandbox.Host
		stage sandbox.Stage
		says  []string // parts of the text and the hint
	}{
		{"scheme", sandbox.Host{URI: "http://box"}, "validate", []string{`"http://box"`, "scheme", "ssh://[user@]host"}},
		{"no host", sandbox.Host{URI: "ssh://"}, "validate", []string{"the host is missing"}},
		{"option", sandbox.Host{URI: "ssh://-oProxyCommand=x"}, "validate", []string{"hyphen"}},
		{"password in it", sandbox.Host{URI: "ssh://me:secret@box"}, "validate", []string{"password"}},
		{"path", sandbox.Host{URI: "ssh://box/dir"}, "validate", []string{"path"}},
		{"alias", sandbox.Host{URI: "no-such-box.invalid"}, "connect", []string{"no-such-box.invalid", "check that the host is up"}},
		{"closed port", sandbox.Host{URI: "ssh://127.0.0.1:" + closed}, "connect", []string{"127.0.0.1:" + closed, "refused"}},
		{"unknown host key", sandbox.Host{URI: p.uri(), Identity: p.identity}, "host key", []string{"127.0.0.1:" + p.port, good, "--accept " + good}},
		{"wrong fingerprint", sandbox.Host{URI: p.uri(), Identity: p.identity, Accept: ssh.FingerprintSHA256(other.PublicKey())}, "host key", []string{good}},
		{"changed host key", sandbox.Host{URI: "changed"}, "host key", []string{"CHANGED", "known_hosts:1", "ssh-keygen -R"}},
		{"changed, accepted", sandbox.Host{URI: "changed", Accept: good}, "host key", []string{"CHANGED"}},
		{"key file", sandbox.Host{URI: p.uri(), Identity: dir + "/none", Accept: good}, "login", []string{dir + "/none"}},
		{"wrong key", sandbox.Host{URI: p.uri(), Identity: dir + "/other", Accept: good}, "login", []string{p.uri(), dir + "/other", "--identity"}},
		{"password file", sandbox.Host{URI: p.uri(), Identity: p.identity, PasswordFile: dir + "/none", Accept: good}, "login", []string{dir + "/none"}},
		{"wrong password", sandbox.Host{URI: p.uri(), Identity: dir + "/other", PasswordFile: dir + "/password", Accept: good}, "login", []string{dir + "/password"}},
		{"tier", sandbox.Host{URI: p.uri(), Tier: "best"}, "validate", []string{"guest, marks or screen"}},
		{"prompt", sandbox.Host{URI: p.uri(), Prompt: "("}, "validate", []string{"prompt"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inst, err := b.Boot(timeout(t), sandbox.Spec{ID: "box", Host: tt.host})
			var failed *sandbox.BootError
			if !errors.As(err, &failed) {
				_ = b.Destroy(timeout(t), inst)
				t.Fatalf("got error %v, want a BootError", err)
			}
			if failed.Stage != tt.stage {
				t.Errorf("got stage %s, want %s (%v)", failed.Stage, tt.stage, err)
			}
			for _, want := range tt.says {
				if text := failed.Err.Error() + "; " + failed.Hint; !strings.Contains(text, want) {
					t.Errorf("%q does not say %q", text, want)
				}
			}
		})
	}
}

// Settings that a host cannot have are rejected by name, before any connection.
func TestRefusals(t *testing.T) {
	b := newBackend(t)
	for _, spec := range []sandbox.Spec{
		{Image: "debian"}, {Network: sandbox.NetworkNone}, {Network: sandbox.NetworkBridge}, {Limits: sandbox.Limits{Memory: 1}}, {User: "me"}, {Sudo: true},
		{Env: []string{"A=b"}}, {Entrypoint: sandbox.EntrypointOff}, {Trust: sandbox.TrustHost}, {Isolation: "runsc"},
	} {
		spec.ID, spec.Host.URI = "box", "ssh://box.invalid"
		if _, err := b.Boot(t.Context(), spec); !errors.Is(err, sandbox.ErrUnsupported) ||
			stage(err) != "validate" {
			t.Errorf("%+v: got %v, want ErrUnsupported", spec, err)
		}
	}
	for _, id := range []string{"", "../../x", "-o", "UPPER", "a b", strings.Repeat("a", 64)} {
		if _, err := b.Boot(t.Context(),
			sandbox.Spec{ID: id, Host: sandbox.Host{URI: "box.invalid"}}); stage(
			err) != "validate" {
			t.Errorf("id %q: got %v, want it refused", id, err)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"ssh://me@box:22", "me@box", "box", "ssh://[::1]:22", "ssh://-x",
		"ssh://a@b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURI(s)
		if err != nil {
			return
		}
		if u.Host == "" || strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User, "-") ||
			strings.ContainsAny(u.Host+u.User+u.Port, " \n\x00") {
			t.Errorf("%q: got %+v", s, u)
		}
	})
}

func FuzzParseProbe(f *testing.F) {
	f.Add("Linux\nx86_64\n0\n/root\n\n/bin/bash\nproc\n\nsandboxd-end\n")
	f.Fuzz(func(t *testing.T, s string) {
		facts, err := parseProbe(s)
		if err == nil && strings.Contains(facts.system+facts.machine+facts.home+facts.shell, "\n") {
			t.Errorf("%q: a line in %+v", s, facts)
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte("echo \\ \x00.\nü"))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines := strings.Split(string(encode(text)), "\n")
		for i, line := range lines {
			if len(line) > 1024 || line == "." != (i == len(lines)-2) {
				t.Errorf("line %d of %q: %q", i, text, line)
			}
		}
	})
}
