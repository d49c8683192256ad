package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// bench is what the measurements work with.
type bench struct {
	dir           string
	daemon        *daemon.Daemon
	sshd          *exec.Cmd
	sshdAddr      string
	signer        ssh.Signer
	docker        *client.Client
	dockerVersion string
	sshVersion    string
	client        *agent.Client // on the sandbox "bench"
}

const image = "sandboxd/base:latest"

func start(ctx context.Context) (b *bench, err error) {
	b = &bench{}
	defer func() {
		if err != nil {
			b.stop(ctx)
		}
	}()
	if b.dir, err = os.MkdirTemp("", "sandboxd-bench-"); err != nil {
		return b, err
	}
	if b.docker, err = client.New(client.FromEnv); err != nil {
		return b, err
	}
	v, err := b.docker.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return b, fmt.Errorf("docker: %w", err)
	}
	b.dockerVersion = v.Version
	if err := b.startDaemon(ctx); err != nil {
		return b, err
	}
	if b.signer, err = b.daemon.Signer(); err != nil {
		return b, err
	}
	if err := b.startSSHD(ctx); err != nil {
		return b, err
	}
	b.client, err = agent.Dial(ctx, "ssh://bench@"+b.daemon.SSH,
		agent.Options{Create: true, State: b.daemon.State})
	return b, err
}

func (b *bench) startDaemon(ctx context.Context) (err error) {
	b.daemon, err = b.launch(ctx, "state")
	return err
}

// launch starts a daemon with a state directory and variables of its own.
func (b *bench) launch(ctx context.Context, state string, env ...string) (*daemon.Daemon, error) {
	dir := filepath.Join(b.dir, state)
	return daemon.Start(ctx, "bin/sandboxd",
		daemon.Options{State: dir, Log: dir + ".log", Env: env})
}

// startSSHD starts Debian's OpenSSH server on loopback, with the same user, key and ciphers to
// choose from.
func (b *bench) startSSHD(ctx context.Context) error {
	var said bytes.Buffer
	version := exec.CommandContext(ctx, "ssh", "-V")
	version.Stderr = &said
	if err := version.Run(); err != nil {
		return fmt.Errorf("ssh -V: %w", err)
	}
	b.sshVersion, _, _ = strings.Cut(strings.TrimSpace(said.String()), ",")
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.sshdAddr = l.Addr().String()
	l.Close()
	key := filepath.Join(b.dir, "sshd_key")
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		key).CombinedOutput(); err != nil {
		return fmt.Errorf("ssh-keygen: %s", out)
	}
	authorized := filepath.Join(b.dir, "authorized_keys")
	if err := os.WriteFile(authorized, ssh.MarshalAuthorizedKey(b.signer.PublicKey()),
		0o600); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(b.sshdAddr)
	config := fmt.Sprintf(
		"Port %s\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\nStrictModes "+
			"no\nUsePAM no\nPidFile none\n"+
			"PermitRootLogin yes\nMaxStartups 1000\nMaxSessions 1000\nPrintMotd no\nPrintLastLog "+
			"no\n",
		port, key, authorized)
	if err := os.WriteFile(filepath.Join(b.dir, "sshd_config"), []byte(config), 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // privilege separation wants it
		return err
	}
	// With an empty home directory, as a sandbox has: bash reads ~/.bashrc for every command of
	// sshd's, and this machine's may take a tenth of a second.
	home := filepath.Join(b.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	b.sshd = exec.CommandContext(context.WithoutCancel(ctx), "unshare", "--mount", "sh", "-c",
		`mount --bind "$1" /root && exec /usr/sbin/sshd -D -f "$2"`, "sh", home,
		filepath.Join(b.dir, "sshd_config"))
	if err := b.sshd.Start(); err != nil {
		return fmt.Errorf("sshd: %w; scripts/setup test installs it", err)
	}
	for range 200 {
		if conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.sshdAddr); err == nil {
			conn.Close()
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("sshd does not listen")
}

// stop ends what setup started, also when ctx has ended.
func (b *bench) stop(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if b.client != nil {
		b.client.Close()
	}
	if b.daemon != nil {
		if err := b.daemon.End(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	if b.sshd != nil && b.sshd.Process != nil {
		_ = b.sshd.Process.Kill()
		_ = b.sshd.Wait() // killed, as was asked
	}
	if b.docker != nil {
		b.docker.Close()
	}
	os.RemoveAll(b.dir)
}

// gateway returns a new x/crypto connection to the sandbox through the gateway, sshdConn one to
// OpenSSH.
func (b *bench) gateway() (*ssh.Client, error) { return b.connect(b.daemon.SSH, "bench") }

func (b *bench) sshdConn() (*ssh.Client, error) { return b.connect(b.sshdAddr, "root") }

func (b *bench) connect(addr, user string) (*ssh.Client, error) {
	return daemon.Connect(addr, user, b.signer)
}

// throughJumpHost returns a connection to OpenSSH through OpenSSH (ssh -J): the peer that has as
// many programs in the way of a byte as we have. Closing it closes both.
func (b *bench) throughJumpHost() (*ssh.Client, error) {
	host, err := b.sshdConn()
	if err != nil {
		return nil, err
	}
	addr, err := net.ResolveTCPAddr("tcp", b.sshdAddr)
	if err != nil {
		host.Close()
		return nil, err
	}
	conn, err := host.DialTCP("tcp", nil, addr)
	if err != nil {
		host.Close()
		return nil, err
	}
	c, channels, requests, err := ssh.NewClientConn(conn, b.sshdAddr,
		daemon.ClientConfig("root", b.signer))
	if err != nil {
		host.Close()
		return nil, err
	}
	go func() { // ends with the connection
		_ = c.Wait()
		host.Close()
	}()
	return ssh.NewClient(c, channels, requests), nil
}

// jump are the options with which the ssh program goes to OpenSSH through OpenSSH.
func (b *bench) jump(options ...string) []string {
	first := append([]string{"ssh"}, b.sshArgs(b.sshdAddr, "root",
		append(options, "-W", "%h:%p")...)...)
	return append([]string{"-o", "ProxyCommand=" + strings.Join(first, " ")}, options...)
}

// sshArgs are those of the ssh command line to one of the two servers.
func (b *bench) sshArgs(addr, user string, options ...string) []string {
	host, port, _ := net.SplitHostPort(addr)
	args := []string{"-F", "none", "-o", "UserKnownHostsFile=/dev/null", "-o",
		"StrictHostKeyChecking=no", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes",
		"-o", "IdentitiesOnly=yes", "-i", b.daemon.Identity, "-p", port}
	return append(append(args, options...), user+"@"+host)
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown kernel"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
