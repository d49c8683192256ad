// Command recording makes the recording in the README: an agent installs a package, apt asks a
// question, a person takes the keyboard and answers. It prints the animated SVG of that session.
//
// It needs a Docker engine with the image sandboxd/base, ssh, Debian's packages, and the binaries
// that make build makes. The daemon is its own, with a temporary state directory and free ports.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// The person's window; its last row is the status line.
const (
	cols = 80
	rows = 23
)

func main() {
	log.SetFlags(0)
	bin := flag.String("bin", "bin/sandboxd", "the binary")
	out := flag.String("o", "docs/images/demo.svg", "file to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	svg, err := record(ctx, *bin)
	if err == nil {
		err = os.WriteFile(*out, svg, 0o644)
	}
	if err != nil {
		log.Fatalf("recording: %v", err)
	}
	fmt.Printf("%s: %d KiB\n", *out, len(svg)>>10)
}

// record plays the scene and returns its SVG.
func record(ctx context.Context, bin string) (svg []byte, err error) {
	dir, err := os.MkdirTemp("", "sandboxd-recording-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o := daemon.Options{State: filepath.Join(dir, "state"), Log: filepath.Join(dir, "log")}
	d, err := daemon.Start(ctx, bin, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.End(ctx)) }()
	s := &scene{d: d, dir: dir}
	if err := s.invite(ctx); err != nil {
		return nil, err
	}
	if err := s.play(ctx); err != nil {
		return nil, err
	}
	// Command 3 is the installation: the two before it prepare the scene.
	return s.ssh(ctx, "person", "sandboxd", "replay", "web", "--svg", "--from", "'#3'").Output()
}

// scene is a daemon with two keys of the principal alice: one of her own, one of her agent.
type scene struct {
	d   *daemon.Daemon
	dir string
}

// invite makes the keys.
func (s *scene) invite(ctx context.Context) error {
	lines := ""
	for _, kind := range []string{"person", "agent"} {
		key := filepath.Join(s.dir, kind)
		keygen := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
		if out, err := keygen.CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
		public, err := os.ReadFile(key + ".pub")
		if err != nil {
			return err
		}
		lines += fmt.Sprintf("principal=\"alice\",kind=%q %s", kind, public)
	}
	file := filepath.Join(s.d.State, "authorized_keys")
	keys, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = keys.WriteString(lines)
	return errors.Join(err, keys.Close())
}

// ssh is an ssh with one of the keys.
func (s *scene) ssh(ctx context.Context, key, user string, words ...string) *exec.Cmd {
	at, err := url.Parse("ssh://" + s.d.SSH)
	if err != nil {
		log.Fatalf("recording: %v", err) // the daemon said so itself
	}
	args := []string{"-F", "none", "-i", filepath.Join(s.dir, key), "-o", "IdentitiesOnly=yes",
		"-o", "LogLevel=ERROR", "-o", "UserKnownHostsFile=" + s.d.KnownHosts,
		"-p", at.Port(), user + "@localhost"}
	cmd := exec.CommandContext(ctx, "ssh", append(args, words...)...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	return cmd
}

// agent runs a command of the control host with the agent's key; its exit code has to be want.
func (s *scene) agent(ctx context.Context, want int, words ...string) error {
	out, err := s.ssh(ctx, "agent", "sandboxd", words...).CombinedOutput()
	code := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err != nil || code != want {
		line := strings.Join(words, " ")
		return fmt.Errorf("agent: %s: exit code %d, want %d: %w: %s", line, code, want, err, out)
	}
	return nil
}

// play is what happens.
func (s *scene) play(ctx context.Context) error {
	if out, err := s.ssh(ctx, "person", "sandboxd", "new", "web").CombinedOutput(); err != nil {
		return fmt.Errorf("new: %w: %s", err, out)
	}
	p := &person{}
	if err := p.join(s.ssh(ctx, "person", "web", "-t")); err != nil {
		return err
	}
	defer p.leave()
	// agent has the agent run a command whose end, or question, has this exit code.
	agent := func(code int, command ...string) func() error {
		words := append([]string{"run", "-n", "web", "--"}, command...)
		return func() error { return s.agent(ctx, code, words...) }
	}
	presses := func(keys string) func() error { return func() error { return p.presses(keys) } }
	rests := func(d time.Duration) func() error {
		return func() error { return daemon.Pause(ctx, d) }
	}
	sees := func(text string) func() error { return func() error { return p.sees(ctx, text) } }
	return inOrder(
		sees("root@web"),
		agent(0, "apt-get", "update", "-qq"),
		agent(0, "clear"),
		agent(123, "apt-get", "install", "toilet"),
		rests(2*time.Second),
		presses("\x1dt"), // Ctrl-] t
		rests(1500*time.Millisecond),
		presses("y"),
		rests(500*time.Millisecond),
		presses("\r"),
		sees("Processing triggers"),
		rests(2*time.Second),
		presses("\x1dg"), // Ctrl-] g
		rests(1500*time.Millisecond),
		agent(0, "toilet", "-f", "future", "-F", "border", "done"),
		rests(time.Second),
	)
}

// inOrder does one step after the other, until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// person is one at a terminal of their own.
type person struct {
	cmd  *exec.Cmd
	tty  *os.File
	done chan struct{}

	mu     sync.Mutex
	screen *screen.Screen // guarded by mu
}

func (p *person) join(cmd *exec.Cmd) (err error) {
	p.cmd, p.done = cmd, make(chan struct{})
	p.screen = screen.New(screen.Options{Cols: cols, Rows: rows})
	if p.tty, err = pty.StartWithSize(cmd, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		return err
	}
	go func() { // ends with ssh
		defer close(p.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := p.tty.Read(buf)
			p.mu.Lock()
			_, _ = p.screen.Write(buf[:n]) // in memory: it takes everything
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return nil
}

func (p *person) presses(keys string) error {
	_, err := p.tty.WriteString(keys)
	return err
}

// sees waits until the terminal shows text.
func (p *person) sees(ctx context.Context, text string) error {
	for {
		p.mu.Lock()
		now := p.screen.Text()
		p.mu.Unlock()
		if strings.Contains(now, text) {
			return nil
		}
		if err := daemon.Pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the person does not see %q but %q: %w", text, now, err)
		}
	}
}

func (p *person) leave() {
	_ = p.cmd.Process.Kill() // one that has ended needs none
	_ = p.cmd.Wait()
	p.tty.Close()
	<-p.done
}
