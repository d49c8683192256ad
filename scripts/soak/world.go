package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// world is what a run works with: a daemon and a sandbox of its own.
type world struct {
	dir    string
	daemon *daemon.Daemon
	signer ssh.Signer
	client *agent.Client // on the sandbox
	config string        // of the daemon
}

// box is the sandbox's name.
const box = "soak"

func start(ctx context.Context, config string) (w *world, err error) {
	w = &world{config: config}
	defer func() {
		if err != nil {
			w.stop(ctx)
		}
	}()
	if w.dir, err = os.MkdirTemp("", "sandboxd-soak-"); err != nil {
		return w, err
	}
	if err := w.startDaemon(ctx); err != nil {
		return w, err
	}
	if w.signer, err = w.daemon.Signer(); err != nil {
		return w, err
	}
	out, err := w.daemon.Line(ctx, "new", box, "--network", "bridge").CombinedOutput()
	if err != nil {
		return w, fmt.Errorf("new %s: %w: %s", box, err, out)
	}
	w.client, err = agent.Dial(ctx, "ssh://"+box+"@"+w.daemon.SSH,
		agent.Options{State: w.daemon.State})
	return w, err
}

func (w *world) startDaemon(ctx context.Context) (err error) {
	config := filepath.Join(w.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(w.config), 0o600); err != nil {
		return err
	}
	w.daemon, err = daemon.Start(ctx, "bin/sandboxd",
		daemon.Options{State: filepath.Join(w.dir, "state"), Log: w.log(), Config: config})
	return err
}

func (w *world) log() string { return filepath.Join(w.dir, "daemon.log") }

// stop ends what start started, also when ctx has ended.
func (w *world) stop(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if w.client != nil {
		w.client.Close()
	}
	if w.daemon != nil {
		if err := w.daemon.End(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
	}
	os.RemoveAll(w.dir)
}

// exec runs a script in the sandbox without a terminal; what it said is in the error if it fails.
func (w *world) exec(ctx context.Context, script string) error {
	var out bytes.Buffer
	exit, err := w.client.Exec(ctx, agent.Cmd{Command: script, Stdout: &out, Stderr: &out})
	if err == nil && exit.Code != 0 {
		text := strings.TrimSpace(out.String())
		err = fmt.Errorf("exit %d: %s", exit.Code, text[max(0, len(text)-400):])
	}
	return err
}

// setUp runs a script and says so: installations take their time.
func (w *world) setUp(ctx context.Context, what, script string) error {
	began := time.Now()
	if err := w.exec(ctx, "set -e; export DEBIAN_FRONTEND=noninteractive; "+script); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(os.Stderr, "%s: %.0f s\n", what, time.Since(began).Seconds())
	return nil
}

// put writes a file in the sandbox.
func (w *world) put(ctx context.Context, path string, content []byte, mode os.FileMode) error {
	files, err := w.client.Files(ctx)
	if err != nil {
		return err
	}
	defer files.Close()
	f, err := files.Create(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close(), files.Chmod(path, mode))
}

// guestPID is this machine's number of the sandbox's PID 1.
func (w *world) guestPID(ctx context.Context) (int, error) {
	id, err := w.container(ctx, box)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, "docker", "inspect", "--format", "{{.State.Pid}}",
		id).Output()
	if err != nil {
		return 0, fmt.Errorf("docker inspect: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// container is the name of a sandbox's container.
func (w *world) container(ctx context.Context, name string) (string, error) {
	out, err := w.daemon.Line(ctx, "describe", "--json", name).Output()
	if err != nil {
		return "", fmt.Errorf("describe %s: %w", name, err)
	}
	var described struct{ ID string }
	if err := json.Unmarshal(out, &described); err != nil {
		return "", fmt.Errorf("describe: %w", err)
	}
	return "sandboxd-" + described.ID, nil
}

// connect returns an SSH connection of its own to the sandbox, for what the agent library does not
// show: events.
func (w *world) connect() (*ssh.Client, error) {
	return daemon.Connect(w.daemon.SSH, box, w.signer)
}
