package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

func demoCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "run a demonstration: an agent works in a sandbox, live",
		Long: "Show an agent at work in a real sandbox. The demo starts a temporary daemon\n" +
			"and a sandbox. A small agent installs a package that asks a question, while a\n" +
			"second ssh client watches the same terminal. It needs no API key and no\n" +
			"account, and removes everything afterwards. The exit code is 0 if every step\n" +
			"succeeds.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needsLinux(); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return (&demo{cli: c, out: os.Stdout}).run(ctx)
		},
	}
}

// demo is one run of the demonstration with a real daemon, sandbox, agent and watcher.
type demo struct {
	cli    *cli
	out    io.Writer
	dir    string
	daemon *exec.Cmd
	at     endpoint
	steps  int
}

const (
	demoSandbox = "demo"
	demoSteps   = 9
	demoLimit   = 10 * time.Minute // apt may have a slow mirror
)

// step runs one step and prints how long it took.
func (d *demo) step(what string, do func() (string, error)) error {
	d.steps++
	fmt.Fprintf(d.out, "%d/%d %-52s", d.steps, demoSteps, what)
	began := time.Now()
	said, err := do()
	took := time.Since(began)
	if err != nil {
		fmt.Fprintf(d.out, " FAILED after %.2f s\n", took.Seconds())
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(d.out, " %7.3f s\n", took.Seconds())
	for line := range strings.Lines(said) {
		fmt.Fprintf(d.out, "      | %s\n", strings.TrimRight(line, "\r\n"))
	}
	return nil
}

func (d *demo) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	if d.dir, err = os.MkdirTemp("", "sandboxd-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	what, left := "boot a sandbox", "nothing behind"
	if found, _ := hasBundleImage(d.cli.config); !found && backendOf(d.cli.config) == oci.Name {
		what = "build its image (about a minute), boot a sandbox"
		left = "the image behind, in " + string(d.cli.config.OCI.Images)
	}
	fmt.Fprintf(
		d.out, "A temporary daemon, one sandbox with a network, an agent, and a user who "+
			"watches.\n"+
			"It takes about 20 s, most of it for apt, and 100 MB while it runs. It leaves "+
			"%s.\n\n", left)

	if err := d.step("start a daemon", func() (string, error) {
		return "",
			d.start(ctx)
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	err = d.step(what, func() (string, error) {
		out, err := d.control(ctx, "new", demoSandbox)
		return out, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "    watch along from another terminal: %s\n",
		d.at.gateway().SSHCommand(demoSandbox))

	var client *agent.Client
	var sh *agent.Shell
	err = d.step("an agent attaches by ssh URI", func() (string, error) {
		if client, err = agent.Dial(ctx, d.at.gateway().URI(demoSandbox),
			agent.Options{Kind: agent.KindGateway, State: d.dir}); err != nil {
			return "", err
		}
		sh, err = client.Shell(ctx, "main")
		return d.at.gateway().URI(demoSandbox), err
	})
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return err
	}
	defer sh.Close()

	watcher := &watcher{}
	err = d.step("a second ssh client watches the same terminal", func() (string, error) {
		return "", watcher.start(ctx, d.at.gateway())
	})
	if err != nil {
		return err
	}
	defer watcher.stop()

	if err := d.agent(ctx, sh, watcher); err != nil {
		return err
	}
	return d.step("replay the recording", func() (string, error) {
		out, err := d.control(ctx, "replay", "--speed=1000", demoSandbox)
		if err != nil {
			return "", err
		}
		for _, want := range []string{"apt-get install toilet", "Do you want to continue?",
			"toilet --filter"} {
			if !strings.Contains(out, want) {
				return "", fmt.Errorf("the recording lacks %q", want)
			}
		}
		return lastLines(out, 14), nil
	})
}

// agent plays the agent: it installs a package without -y, answers apt's question, and uses the
// program.
func (d *demo) agent(ctx context.Context, sh *agent.Shell, w *watcher) error {
	err := d.step("agent: apt-get update", func() (string, error) {
		return "", finished(sh.Run(ctx, "apt-get update -qq"))
	})
	if err != nil {
		return err
	}
	err = d.step("agent: apt-get install toilet (no -y)", func() (string, error) {
		res, err := sh.Run(ctx, "apt-get install toilet")
		if err != nil {
			return "", err
		}
		if res.Ended != agent.EndedWaiting || !strings.Contains(res.Prompt,
			"Do you want to continue?") {
			return "", fmt.Errorf("no question from apt: the call ended %s at %q", res.Ended,
				res.Prompt)
		}
		return fmt.Sprintf("ended: %s  want: %s  basis: %v\nprompt: %s", res.Ended, res.Want,
			res.Basis, res.Prompt), nil
	})
	if err != nil {
		return err
	}
	err = d.step("agent: answers y", func() (string, error) {
		res, err := sh.Type(ctx, "y")
		if err := finished(res, err); err != nil {
			return "", err
		}
		code, _ := res.Code()
		return fmt.Sprintf("exit code %d; last line: %s", code, lastLines(res.Output, 1)), nil
	})
	if err != nil {
		return err
	}
	return d.step("agent: uses it; the watcher sees it too", func() (string, error) {
		res, err := sh.Run(ctx, "toilet --filter border sandboxd")
		if err := finished(res, err); err != nil {
			return "", err
		}
		lines := strings.Split(strings.TrimSpace(res.Output), "\n")
		if len(lines) < 3 {
			return "", fmt.Errorf("toilet printed %q", res.Output)
		}
		return res.Output, w.shows(ctx, strings.TrimSpace(lines[len(lines)/2]))
	})
}

// finished returns an error unless the command ended with exit code 0.
func finished(res agent.Result, err error) error {
	code, _ := res.Code()
	switch {
	case err != nil:
		return err
	case res.Error != nil:
		return res.Error
	case res.Ended != agent.EndedDone:
		return fmt.Errorf("the call ended %s: %s", res.Ended, lastLines(res.Output, 5))
	case code != 0:
		return fmt.Errorf("exit code %d: %s", code, lastLines(res.Output, 5))
	}
	return nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// start starts a daemon, and reads its endpoint.
func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.daemon = exec.CommandContext(context.WithoutCancel(ctx), self, "serve", "--json", "--state",
		d.dir, "--ssh", "127.0.0.1:0")
	var said bytes.Buffer
	d.daemon.Stderr = &said
	out, err := d.daemon.StdoutPipe()
	if err != nil {
		return err
	}
	// The daemon does not get ^C: the demo ends it after the sandbox.
	d.daemon.SysProcAttr = ownGroup()
	if err := d.daemon.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, d.kill)()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		_ = d.daemon.Wait() // its last output is more useful
		return fmt.Errorf("the daemon ended: %s", lastLines(said.String(), 3))
	}
	return json.Unmarshal(line, &d.at)
}

// stop removes the sandbox and ends the daemon.
func (d *demo) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := d.control(ctx, "rm", "--force", "--all")
	_ = d.daemon.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	defer context.AfterFunc(ctx, d.kill)()
	if waited := d.daemon.Wait(); waited != nil {
		err = errors.Join(err, fmt.Errorf("daemon: %w", waited))
	}
	return err
}

// kill ends a daemon that does not stop by itself. Its error is that the daemon has ended.
func (d *demo) kill() { _ = d.daemon.Process.Kill() }

// control runs a command on the control host and returns its output.
func (d *demo) control(ctx context.Context, words ...string) (string, error) {
	client, err := agent.Dial(ctx, d.at.gateway().URI("sandboxd"),
		agent.Options{Kind: agent.KindGateway, State: d.dir})
	if err != nil {
		return "", err
	}
	defer client.Close()
	var out, said bytes.Buffer
	exit, err := client.Exec(ctx, agent.Cmd{Command: strings.Join(words, " "), Stdout: &out,
		Stderr: &said})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", words[0], exit.Code,
			strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(out.String()), err
}

// watcher is a read-only user with a real terminal and ssh(1).
type watcher struct {
	cmd  *exec.Cmd
	tty  *os.File
	done chan struct{}

	mu     sync.Mutex
	screen *screen.Screen // guarded by mu; the content of the terminal
	more   chan struct{}  // guarded by mu; closed and replaced when it changes
}

func (w *watcher) start(ctx context.Context, g command.Gateway) error {
	const cols, rows = 200, 51 // one row more than the session, for the status line
	w.screen = screen.New(screen.Options{Cols: cols, Rows: rows})
	w.more, w.done = make(chan struct{}), make(chan struct{})
	w.cmd = exec.CommandContext(ctx, "sh", "-c",
		"exec "+g.SSHCommand(demoSandbox)+" -o LogLevel=ERROR")
	w.cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	var err error
	if w.tty, err = pty.StartWithSize(w.cmd, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		return err
	}
	go func() {
		defer close(w.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := w.tty.Read(buf)
			w.mu.Lock()
			_, _ = w.screen.Write(buf[:n]) // writing to memory does not fail
			close(w.more)
			w.more = make(chan struct{})
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return w.shows(ctx, demoSandbox+"~main")
}

// shows waits until the watcher's terminal shows text.
func (w *watcher) shows(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		w.mu.Lock()
		now, more := w.screen.Text(), w.more
		w.mu.Unlock()
		if strings.Contains(now, text) {
			return nil
		}
		select {
		case <-more:
		case <-w.done:
			return fmt.Errorf("the watcher's ssh ended, showing %q", lastLines(now, 3))
		case <-ctx.Done():
			return fmt.Errorf("the watcher does not see %q but %q", text, lastLines(now, 5))
		}
	}
}

func (w *watcher) stop() {
	_ = w.cmd.Process.Kill() // fails only if it has ended
	_ = w.cmd.Wait()         // reports that it was killed
	w.tty.Close()
	<-w.done
}
