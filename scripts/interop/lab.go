package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// lab is a daemon with a sandbox "demo", in a container or on a host, what clients need to reach
// it, and files to send there.
type lab struct {
	ctx    context.Context //nolint:containedctx // of the run; every program that is started ends with it
	behind string          // container or host
	dir    string          // also the home of every program
	at     *daemon.Daemon
	port   string
	config string // for OpenSSH's programs: what `sandboxd ssh-config` prints
	up     string // a file of random bytes
	bytes  []byte // what it holds

	// Ports in the sandbox: of its web server, of forwards back, of an SSH server.
	web, back, jump string

	cleanup []func() // last first
}

// size of the file that most clients copy: several windows of a channel, and no multiple of
// anything.
const size = 5<<20 + 17

// The labs are made when the first check needs one, by what is behind, and end with the run.
var labs = map[string]*lab{}

func endLabs() {
	for behind, l := range labs {
		l.close()
		delete(labs, behind)
	}
}

// newLab starts a daemon of its own with a sandbox.
func newLab(ctx context.Context, behind string) (*lab, error) {
	dir, err := os.MkdirTemp("", "sandboxd-interop-")
	if err != nil {
		return nil, err
	}
	l := &lab{ctx: ctx, behind: behind, dir: dir, web: "8000", back: "9000", jump: "2200"}
	l.later(func() { os.RemoveAll(dir) })
	if err := l.start(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) later(f func()) { l.cleanup = append(l.cleanup, f) }

func (l *lab) close() {
	for i := len(l.cleanup) - 1; i >= 0; i-- {
		l.cleanup[i]()
	}
}

func (l *lab) start() error {
	// bin/sandboxd is what was built; make does that first.
	binary, err := filepath.Abs("bin/sandboxd")
	if err != nil {
		return err
	}
	state := l.file("state")
	l.at, err = daemon.Start(l.ctx, binary, daemon.Options{State: state, Log: l.file("daemon.log"),
		Env: []string{"HOME=" + l.dir, "SSH_AUTH_SOCK="}})
	if err != nil {
		return err
	}
	l.later(func() { _ = l.at.Stop() })
	_, l.port, err = net.SplitHostPort(l.at.SSH)
	if err != nil {
		return err
	}
	sandboxd := func(args ...string) (string, error) {
		o := l.run("", append([]string{binary, "--state", state}, args...)...)
		return o.stdout, o.want(outcome{stdout: o.stdout, stderr: o.stderr})
	}
	create := []string{"new", "demo", "--network", "bridge"}
	if l.behind == host {
		// Its loopback is this machine's.
		for _, port := range []*string{&l.web, &l.back, &l.jump} {
			if *port, err = freePort(); err != nil {
				return err
			}
		}
		m, err := startMachine(l.ctx, l.file("machine"), true)
		if err != nil {
			return err
		}
		l.later(m.end)
		create = []string{"add", "demo", m.URI, "--identity", m.Identity, "--accept", m.Accept}
	}
	if _, err := sandboxd(create...); err != nil {
		return err
	}
	l.later(func() {
		l.ctx = context.WithoutCancel(l.ctx)
		_, _ = sandboxd("rm", "--force", "--all") // the daemon's log says what stays behind
	})
	block, err := sandboxd("ssh-config")
	if err != nil {
		return err
	}
	l.config, l.up, l.bytes = l.file("config"), l.file("up"), make([]byte, size)
	_, _ = rand.Read(l.bytes) // never fails
	return errors.Join(os.WriteFile(l.config, []byte(block+"\tBatchMode yes\n\tLogLevel ERROR\n"),
		0o600), os.WriteFile(l.up, l.bytes, 0o640))
}

func (l *lab) file(name string) string { return filepath.Join(l.dir, name) }

// outcome is how a program ended.
type outcome struct {
	stdout, stderr string
	exit           int
	err            error // it could not be run, or did not end in time
}

// want compares everything: nothing extra on either stream.
func (o outcome) want(w outcome) error {
	switch {
	case o.err != nil:
		return fmt.Errorf("%w\n%s", o.err, tail(o.stderr, 10))
	case o.exit != w.exit:
		return fmt.Errorf("exit %d, want %d\n%s\n%s", o.exit, w.exit, tail(o.stdout, 10),
			tail(o.stderr, 10))
	case o.stdout != w.stdout:
		return fmt.Errorf("stdout: %s, want %s", brief(o.stdout), brief(w.stdout))
	case o.stderr != w.stderr:
		return fmt.Errorf("stderr: %s, want %s", brief(o.stderr), brief(w.stderr))
	}
	return nil
}

// brief quotes a text, or says how long it is.
func brief(s string) string {
	if len(s) > 300 {
		return fmt.Sprintf("%d bytes beginning with %q", len(s), s[:100])
	}
	return fmt.Sprintf("%q", s)
}

// limit is the longest that one program may run.
const limit = 3 * time.Minute

// command prepares a program that ends with the run at the latest.
func (l *lab) command(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.dir
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "HOME="+l.dir, "LC_ALL=C.UTF-8", "SSH_AUTH_SOCK=")
	return c
}

// run runs a program to its end.
func (l *lab) run(stdin string, argv ...string) outcome {
	return l.runWith(nil, stdin, argv...)
}

func (l *lab) runWith(env []string, stdin string, argv ...string) outcome {
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c := l.command(ctx, argv...)
	c.Env = append(c.Env, env...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	code := -1
	if c.ProcessState != nil {
		code = c.ProcessState.ExitCode()
	}
	return outcome{out.String(), errs.String(), code, err}
}

// must runs a program that has to succeed, whatever it prints.
func (l *lab) must(argv ...string) error {
	o := l.run("", argv...)
	if err := o.want(outcome{stdout: o.stdout, stderr: o.stderr}); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// all makes steps in order, up to the first that fails.
func all(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// background runs a program until the function that it returns is called, which ends it with TERM.
func (l *lab) background(argv ...string) (stop func(), err error) {
	c := l.command(l.ctx, argv...)
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // by the signal
	}, nil
}

// ssh is OpenSSH's client with the configuration that sandboxd writes.
func (l *lab) ssh(args ...string) []string {
	return append([]string{"ssh", "-F", l.config}, args...)
}

// sh runs a command in the sandbox and returns what it prints.
func (l *lab) sh(command string) (string, error) {
	o := l.run("", l.ssh("demo@sbx", command)...)
	return o.stdout, o.want(outcome{stdout: o.stdout, stderr: o.stderr})
}

// same compares a file here with what was sent.
func (l *lab) same(name string) error {
	b, err := os.ReadFile(l.file(name))
	if err != nil {
		return err
	}
	if !bytes.Equal(b, l.bytes) {
		return fmt.Errorf("%s: %d bytes that are not the %d sent", name, len(b), len(l.bytes))
	}
	return nil
}

// arrived compares a file in the sandbox with what was sent, by checksum.
func (l *lab) arrived(path string) error {
	here := l.run("", "sha256sum", l.up)
	there, err := l.sh("sha256sum " + path)
	if err != nil {
		return err
	}
	a, _, _ := strings.Cut(here.stdout, " ")
	b, _, _ := strings.Cut(there, " ")
	if a == "" || a != b {
		return fmt.Errorf("%s in the sandbox has checksum %q, want %q", path, b, a)
	}
	return nil
}

// eventually tries f until it succeeds, for half a minute.
func eventually(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// freePort returns a port of the loopback that nobody listened on a moment ago.
func freePort() (string, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
