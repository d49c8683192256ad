// Package openssh runs this machine's SSH server for tests: on a free port of the loopback, for the
// account of the test, with its own keys, configuration and home directory. It knows no backend and
// no sandbox.
package openssh

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

const (
	program = "/usr/sbin/sshd"

	// patience bounds waits for quick events on a busy machine.
	patience = time.Minute
)

// Settings of a server. The zero value is Debian's configuration, with SFTP.
type Settings struct {
	Lines  []string // of sshd_config, before ours: the first line of a keyword counts
	NoSFTP bool
	RC     string // ~/.bashrc of the account
	Home   string // instead of a directory of the test
	Env    string // more variables for SetEnv
}

// Server is an SSH server of the test, with a user who may log in.
type Server struct {
	Dir, Home string
	Port      string
	User      string
	Key       ssh.Signer // its host key
	Identity  string     // file of the key that may log in
	PID       int        // of the listening process
	Log       string     // file
}

// Start runs a server until the test ends. By then, processes with a path below its home directory
// in their arguments must have ended.
func Start(t testing.TB, s Settings) *Server {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		Needed(t, "openssh-server")
	}
	who, err := user.Current()
	check(t, err)
	dir := ShortDir(t)
	server := &Server{Dir: dir, Home: filepath.Join(dir, "home"), User: who.Username,
		Identity: filepath.Join(dir, "id"), Log: filepath.Join(dir, "log")}
	if s.Home != "" {
		server.Home = s.Home
	} else {
		check(t, os.Mkdir(server.Home, 0o700))
	}
	if s.RC != "" {
		check(t, os.WriteFile(filepath.Join(server.Home, ".bashrc"), []byte(s.RC), 0o600))
	}
	t.Cleanup(func() { // after all cleanup of the test; a guest ends when its connection has ended
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		late := time.After(patience)
		for left := Processes(server.Home); len(left) > 0; left = Processes(server.Home) {
			select {
			case <-look.C:
			case <-late:
				t.Errorf("processes are left: %v", left)
				return
			}
		}
	})
	server.Key = KeyPair(t, filepath.Join(dir, "host"))
	KeyPair(t, server.Identity)
	server.Port = FreePort(t)
	config := append(s.Lines, "Port "+server.Port, "ListenAddress 127.0.0.1",
		"HostKey "+filepath.Join(dir, "host"),
		"AuthorizedKeysFile "+server.Identity+".pub", "StrictModes no", "PidFile none", "UsePAM no",
		"SetEnv HOME="+server.Home+" "+s.Env,
		"PrintMotd no", "PrintLastLog no")
	if !s.NoSFTP {
		config = append(config, "Subsystem sftp internal-sftp")
	}
	check(t, os.WriteFile(filepath.Join(dir, "sshd_config"),
		[]byte(strings.Join(config, "\n")+"\n"), 0o600))
	if os.Geteuid() == 0 {
		check(t, os.MkdirAll("/run/sshd", 0o755))
	}
	server.Serve(t)
	return server
}

// NeedTerminals skips a test if a server of this user cannot make terminals. sshd requires the
// group tty for each and ends otherwise (pty_setowner in its sshpty.c). Only root can change the
// group, so for other users devpts must set it (gid= in Linux's filesystems/devpts.rst).
func NeedTerminals(t testing.TB) {
	t.Helper()
	tty, err := user.LookupGroup("tty")
	if os.Geteuid() == 0 || err != nil { // without the group sshd uses the user's own
		return
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	check(t, err)
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[1] == "/dev/pts" &&
			!slices.Contains(strings.Split(f[3], ","), "gid="+tty.Gid) {
			t.Skipf("sshd for another user than root takes a /dev/pts with gid=%s, this one has %s",
				tty.Gid, f[3])
		}
	}
}

// Serve runs the server again after its process has ended; it reads its files anew.
func (s *Server) Serve(t testing.TB) {
	t.Helper()
	s.PID = Run(t, exec.CommandContext(context.Background(), program, "-D", "-f", filepath.Join(s.Dir, "sshd_config"), "-E", s.Log), s.Port, s.Log) //nolint:gosec // from the test
}

// Run runs an SSH server until the test ends, waits until it speaks, and returns its process. That
// something listens on the port is no proof: another test may be trying whether the port is free.
func Run(t testing.TB, cmd *exec.Cmd, port, log string) (pid int) {
	t.Helper()
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // may have ended
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("the server's log:\n%s", text)
		}
	})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(patience)) // never fails on a live connection
			_, err = io.ReadFull(conn, make([]byte, len("SSH-")))
			conn.Close()
		}
		if err == nil {
			return cmd.Process.Pid
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("never: the server speaks")
		}
	}
}

// Addr returns the server's address.
func (s *Server) Addr() string { return "127.0.0.1:" + s.Port }

// URI returns the URI of the account on the server.
func (s *Server) URI() string { return "ssh://" + s.User + "@" + s.Addr() }

// KeyPair generates a key, writes it and its public half to file and file.pub, and returns it.
func KeyPair(t testing.TB, file string) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	check(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	check(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	check(t, err)
	check(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	check(t, os.WriteFile(file+".pub", ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600))
	return signer
}

// Processes returns the processes with a path in a directory in their arguments.
func Processes(dir string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(b), dir) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// ShortDir returns a directory, until the test ends, with a path short enough for sockets in it
// (unix(7)).
func ShortDir(t testing.TB) string {
	t.Helper()
	return shortdir.New(t)
}

// FreePort returns an unused port of the loopback. The kernel gives it to no other program that
// asks for any port, before a server listens on it.
func FreePort(t testing.TB) string {
	t.Helper()
	const first, behind = 10000, 32768 // Linux's ip_local_port_range begins there
	for range 100 {
		port := strconv.Itoa(first + rand.IntN(behind-first)) //nolint:gosec // not a secret
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			check(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Needed skips a test because a package is not installed. It fails the test where skips are not
// allowed.
func Needed(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
		t.Fatal(what + " is not here: scripts/setup test installs it")
	}
	t.Skip(what + " is not here: scripts/setup test installs it")
}

// Guest builds the guest binary into dir and returns its path.
func Guest(dir string) (string, error) {
	out := filepath.Join(dir, "sandboxd-guest")
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "github.com/sandboxd/sandboxd/cmd/sandboxd-guest") //nolint:gosec // fixed
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build guest: %w\n%s", err, text)
	}
	return out, nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
