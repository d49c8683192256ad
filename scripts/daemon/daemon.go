// Package daemon runs a daemon of a script's own, on free ports of the loopback and with a state
// directory of its own, and has what scripts do with one and while they wait for it.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// Options say how a daemon is started.
type Options struct {
	State  string   // directory, made if it is missing
	Log    string   // file that takes what it says
	Config string   // file; empty is what it finds by itself
	Env    []string // variables besides the script's own
}

// Daemon is one that runs. Its endpoint is what serve --json prints.
type Daemon struct {
	SSH        string `json:"ssh"`
	HTTP       string `json:"http"`
	Identity   string `json:"identity"`
	State      string `json:"state"`
	KnownHosts string `json:"known_hosts"`
	TokenFile  string `json:"token_file"`

	program string
	cmd     *exec.Cmd
}

// Start runs program, as make build makes it, until End or Kill, also when ctx ends before. It
// returns when the daemon answers.
func Start(ctx context.Context, program string, o Options) (*Daemon, error) {
	var args []string
	if o.Config != "" {
		args = []string{"--config", o.Config}
	}
	args = append(args, "serve", "--json", "--state", o.State, "--ssh", "127.0.0.1:0", "--http",
		"127.0.0.1:0")
	program, err := filepath.Abs(program) // for command lines in other directories
	if err != nil {
		return nil, err
	}
	d := &Daemon{program: program, cmd: exec.CommandContext(context.WithoutCancel(ctx), program,
		args...)}
	d.cmd.Env = append(os.Environ(), o.Env...)
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd.Stderr = log
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("daemon: %w; run make build first", err)
	}
	if err := json.NewDecoder(out).Decode(d); err != nil {
		_ = d.cmd.Wait() // it has ended without a word on its output; what it said is the error
		said, _ := os.ReadFile(o.Log)
		return nil, fmt.Errorf("daemon: %s", said)
	}
	return d, nil
}

// Pid is the daemon's process.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// End removes the daemon's sandboxes and ends it, also when ctx has ended.
func (d *Daemon) End(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var failed error
	// Those that have a name, and then those of the pool.
	for _, words := range [][]string{{"rm", "--force", "--all"}, {"down", "--all"}} {
		if out, err := d.Line(ctx, words...).CombinedOutput(); err != nil {
			failed = errors.Join(failed,
				fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out))
		}
	}
	return errors.Join(failed, d.Stop())
}

// Stop ends the daemon and leaves its sandboxes to the next one. A daemon that has ended is no
// error.
func (d *Daemon) Stop() error { return d.signal(syscall.SIGINT) }

// Kill ends the daemon in the middle of what it does.
func (d *Daemon) Kill() error { return d.signal(syscall.SIGKILL) }

func (d *Daemon) signal(s os.Signal) error {
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = d.cmd.Wait() // how it ended does not matter, it has
	return nil
}

// Line is a command line of the daemon's own program, such as "new", "demo".
func (d *Daemon) Line(ctx context.Context, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, d.program, append([]string{"--state", d.State}, words...)...)
}

// Signer is the key that logs in to the daemon.
func (d *Daemon) Signer() (ssh.Signer, error) {
	pem, err := os.ReadFile(d.Identity)
	if err != nil {
		return nil, err
	}
	return ssh.ParsePrivateKey(pem)
}

// Connect logs in as user, with key, to a server that the script started itself on the loopback.
func Connect(addr, user string, key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", addr, ClientConfig(user, key))
}

// ClientConfig is how Connect logs in.
func ClientConfig(user string, key ssh.Signer) *ssh.ClientConfig {
	return &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyCallback: acceptOwn, Timeout: 10 * time.Second}
}

// acceptOwn accepts the key of a server that the script started itself a moment ago.
func acceptOwn(_ string, remote net.Addr, _ ssh.PublicKey) error {
	if tcp, ok := remote.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return errors.New("not on loopback")
	}
	return nil
}

// Pause waits for d, unless ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Load is what the machine is busy with, by its average of the last minute.
func Load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
