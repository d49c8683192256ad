package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// account makes an account on the machine for the test, with a shell and a password, and returns
// its name and home.
func account(t *testing.T, shell, password string) (name, home string) {
	t.Helper()
	needRoot(t, "making an account")
	name = fmt.Sprintf("sbx%x", time.Now().UnixNano()&0xffffffff)
	home = shortDir(t)
	must := func(cmd *exec.Cmd) {
		t.Helper()
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, text)
		}
	}
	must(exec.Command("useradd", "-M", "-d", home, "-s", shell, name))
	t.Cleanup(func() {
		_ = exec.Command("pkill", "-KILL", "-u", name).Run() // the account may have no processes
		until(t, "the account is gone", func() bool {
			return exec.Command("userdel", name).Run() == nil
		})
	})
	set := exec.Command("chpasswd")
	set.Stdin = strings.NewReader(name + ":" + password + "\n")
	must(set)
	must(exec.Command("chown", name+":", home))
	return name, home
}

// A host that accepts only a password, and an account whose shell is dash.
func TestPasswordOnly(t *testing.T) {
	name, home := account(t, "/bin/dash", "right horse")
	p := openSSH(t, settings{home: home,
		lines: []string{"PubkeyAuthentication no", "PasswordAuthentication yes"}})
	file := filepath.Join(t.TempDir(), "password")
	put(t, file, "right horse\n")
	spec := p.spec(t)
	spec.Host.URI, spec.Host.Identity, spec.Host.PasswordFile = "ssh://"+name+"@127.0.0.1:"+p.port,
		"", file
	b := newBackend(t)
	inst := boot(t, b, spec)
	if text := fmt.Sprintf("%+v", inst); strings.Contains(text, "right horse") {
		t.Error("the instance holds the password")
	}
	client := attach(t, dialSessions(t, b, inst, TierGuest), "main", wire.Start{})
	if res := run(t, client, "echo $0; id -un; (exit 3)"); !strings.HasSuffix(
		res.Output, "dash\n"+name+"\n") || exitCode(res) != "3" {
		t.Errorf("got %q, %s; want dash, %s, 3", res.Output, exitCode(res), name)
	}
	put(t, file, "wrong\n")
	if _, err := b.Boot(timeout(t), sandbox.Spec{ID: "other", Host: spec.Host}); stage(
		err) != "login" {
		t.Errorf("a wrong password: got %v, want an error of the login", err)
	}
	put(t, file, "right horse\n") // Destroy at the end of the test needs it
}

// dropbear starts Debian's dropbear for an account of the test.
func dropbear(t *testing.T, shell string) *peer {
	t.Helper()
	const program = "/usr/sbin/dropbear"
	if _, err := os.Stat(program); err != nil {
		needed(t, "dropbear-bin")
	}
	name, home := account(t, shell, "unused")
	dir := t.TempDir()
	p := &peer{dir: dir, home: home, user: name, identity: filepath.Join(dir, "id"),
		port: freePort(t), log: filepath.Join(dir, "log")}
	login := keyPair(t, p.identity)
	p.host = keyPair(t, filepath.Join(dir, "host"))
	if err := os.Mkdir(home+"/.ssh", 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, home+"/.ssh/authorized_keys", string(ssh.MarshalAuthorizedKey(login.PublicKey())))
	for _, cmd := range []*exec.Cmd{
		exec.Command("chown", "-R", name+":", home),
		exec.Command("dropbearconvert", "openssh", "dropbear", filepath.Join(dir, "host"),
			filepath.Join(dir, "dropbear")),
	} {
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, text)
		}
	}
	cmd := exec.Command(program, "-F", "-E", "-m", "-r", filepath.Join(dir, "dropbear"), "-p",
		"127.0.0.1:"+p.port, "-P", filepath.Join(dir, "pid"))
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	p.start(t, cmd)
	return p
}

// Dropbear forwards to no socket; it has OpenSSH's SFTP server if that is installed.
func TestDropbear(t *testing.T) {
	p := dropbear(t, "/bin/bash")
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	c, err := b.DialSessions(timeout(t), inst)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tier, why := c.Tier()
	t.Logf("tier %s: %s", tier, why)
	if tier == TierScreen {
		t.Fatalf("tier %s (%s), want guest, or marks where there is no SFTP", tier, why)
	}
	for _, session := range []string{"one", "two", "three"} {
		client := attach(t, c, session, wire.Start{})
		if res := run(t, client, "echo hello; (exit 7)"); res.Output != "hello\n" ||
			exitCode(res) != "7" || !slices.Contains(res.Basis, wire.BasisMark) {
			t.Errorf("got %q, %s, basis %v", res.Output, exitCode(res), res.Basis)
		}
	}
}
