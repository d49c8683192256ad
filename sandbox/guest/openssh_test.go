//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// openssh runs OpenSSH's programs, configured for a sandbox.
type openssh struct {
	t    testing.TB
	s    *sandbox
	dir  string
	args []string
}

func newOpenSSH(t testing.TB, s *sandbox) *openssh {
	t.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Fatal("the tests need OpenSSH's client")
	}
	o := &openssh{t: t, s: s, dir: shortdir.New(t)}
	identity := filepath.Join(o.dir, "identity")
	if err := os.WriteFile(identity, []byte(s.clientPEM), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := s.listener.Addr().(*net.TCPAddr)
	known := fmt.Sprintf("[127.0.0.1]:%d %s", addr.Port, ssh.MarshalAuthorizedKey(s.host))
	config := fmt.Sprintf(`Host demo
HostName 127.0.0.1
Port %d
User sandbox
IdentityFile %s
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile %s
GlobalKnownHostsFile /dev/null
BatchMode yes
ConnectTimeout 10
LogLevel ERROR
`, addr.Port, identity, writeFile(t, o.dir, "known_hosts", known))
	o.args = []string{"-F", writeFile(t, o.dir, "config", config)}
	return o
}

// run runs a program and returns its output, its errors and its exit status.
func (o *openssh) run(stdin, program string, args ...string) (string, string, int) {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), program,
		append(append([]string{}, o.args...), args...)...)
	var out, errout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(stdin), &out, &errout, o.dir
	cmd.Env = append(os.Environ(), "LC_TEST=from-client")
	err := cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		o.t.Fatalf("%s: %v", program, e)
	}
	return out.String(), errout.String(), cmd.ProcessState.ExitCode()
}

func TestOpenSSH(t *testing.T) {
	s := newSandbox(t)
	o := newOpenSSH(t, s)
	for _, tt := range []struct {
		name   string
		args   []string
		stdin  string
		out    string
		errout string
		status int
	}{
		{"command", []string{"demo", "echo out; echo err >&2; exit 3"}, "", "out\n", "err\n", 3},
		{"half close", []string{"demo", "cat; echo done"}, "x\n", "x\ndone\n", "", 0},
		{"shell without a terminal", []string{"-T", "demo"}, "echo from $0; exit 4\n", "from bash\n", "", 4},
		{"terminal", []string{"-tt", "demo", "exit 7"}, "", "", "", 7},
		{"killed", []string{"demo", "kill -9 $$"}, "", "", "", 255},
		{"background", []string{"demo", "sleep 30 & echo hi"}, "", "hi\n", "", 0},
		{"input nobody reads", []string{"demo", "exec <&-; echo fine"}, strings.Repeat("x", 4<<20), "fine\n", "", 0},
		{"environment", []string{"-o", "SendEnv=LC_TEST", "demo", "echo $LC_TEST"}, "", "from-client\n", "", 0},
		{"no such subsystem", []string{"-s", "demo", "nothing"}, "", "", "subsystem request failed on channel 0\r\n", 255},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errout, status := o.run(tt.stdin, "ssh", tt.args...)
			if out != tt.out || errout != tt.errout || status != tt.status {
				t.Errorf("got %q, %q, %d; want %q, %q, %d", out, errout, status, tt.out, tt.errout,
					tt.status)
			}
		})
	}
}

func TestOpenSSHFiles(t *testing.T) {
	s := newSandbox(t)
	o := newOpenSSH(t, s)
	data := strings.Repeat("every byte\x00\xff\r\n", 200000)
	writeFile(t, o.dir, "up", data)
	for _, tt := range []struct {
		name  string
		stdin string
		run   []string
	}{
		{"scp", "", []string{"scp", "-q", "up", "demo:copy"}},
		{"scp legacy", "", []string{"scp", "-q", "-O", "up", "demo:copy"}},
		{"sftp", "put up copy\n", []string{"sftp", "-q", "-b", "-", "demo"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if out, errout, status := o.run(tt.stdin, tt.run[0], tt.run[1:]...); status != 0 {
				t.Fatalf("status %d: %s%s", status, out, errout)
			}
			got, err := os.ReadFile(filepath.Join(s.home, "copy"))
			if err != nil || string(got) != data {
				t.Errorf("got %d bytes, %v; want %d", len(got), err, len(data))
			}
			if err := os.Remove(filepath.Join(s.home, "copy")); err != nil {
				t.Error(err)
			}
		})
	}
	writeFile(t, s.home, "down", data)
	if _, errout, status := o.run("", "scp", "-q", "demo:down", "here"); status != 0 {
		t.Fatalf("scp down: %s", errout)
	}
	if got, err := os.ReadFile(filepath.Join(o.dir, "here")); err != nil || string(got) != data {
		t.Errorf("scp down: %d bytes, %v", len(got), err)
	}
	_, errout, status := o.run("symlink down link\n", "sftp", "-q", "-b", "-", "demo")
	if to, err := os.Readlink(filepath.Join(s.home, "link")); to != "down" {
		t.Errorf("symlink down link: to %q, %v; status %d, %s", to, err, status, errout)
	}
}

// Forwards of the real client, and several of its sessions on one connection.
func TestOpenSSHForwards(t *testing.T) {
	s := newSandbox(t)
	o := newOpenSSH(t, s)
	service := listenLocal(t, "tcp", "127.0.0.1:0")
	halfCloser(t, service)
	near, far, ctl := filepath.Join(o.dir, "near"), filepath.Join(s.home, "far"),
		filepath.Join(o.dir, "ctl")
	master := exec.CommandContext(t.Context(), "ssh",
		append(append([]string{}, o.args...), "-N", "-M", "-S", ctl,
			"-L", near+":"+service.Addr().String(), "-R", far+":"+service.Addr().String(), "-o",
			"ExitOnForwardFailure=yes", "demo")...)
	master.Stderr = os.Stderr
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = master.Process.Kill() // may have ended already
		_ = master.Wait()
	}()
	for name, path := range map[string]string{"-L": near, "-R": far} {
		var conn net.Conn
		await(t, name+" listens", func() bool {
			var err error
			conn, err = net.DialTimeout("unix", path, time.Second)
			return err == nil
		})
		if got := talk(t, conn, "hello"); got != "read 5 bytes, <nil>" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	for range 3 {
		if out, errout, status := o.run("", "ssh", "-S", ctl, "demo",
			"echo shared"); out != "shared\n" || status != 0 {
			t.Errorf("a session of the shared connection: %q, %q, %d", out, errout, status)
		}
	}
	if out, errout, status := o.run("hello", "ssh", "-W", service.Addr().String(),
		"demo"); out != "read 5 bytes, <nil>" || status != 0 {
		t.Errorf("-W: %q, %q, %d", out, errout, status)
	}
}
