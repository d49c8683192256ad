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

	"github.com/creack/pty"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

func demoCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "watch an agent work in a real sandbox: no key, no account",
		Long: "Start a daemon of its own in a temporary directory, boot a sandbox with a network, and let a small agent install\n" +
			"a package that asks a question, while a second ssh client watches the same terminal. Everything is removed\n" +
			"afterwards. It ends with 0 only if every step did what it should.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return (&demo{cli: c, out: os.Stdout}).run(ctx)
		},
	}
}

// demo is one run of the demonstration: a daemon, a sandbox, an agent and a watcher, all real.
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
	fmt.Fprintf(d.out, "A daemon of its own, one sandbox with a network, an agent, and a person who watches. It takes about 20 s,\n"+
		"most of it apt's, needs 100 MB for as long as it runs, and leaves nothing behind.\n\n")

	if err := d.step("start a daemon", func() (string, error) { return "", d.start(ctx) }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	err = d.step("boot a sandbox", func() (string, error) {
		out, err := d.lobby(ctx, "new", demoSandbox)
		return out, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "    watch along from another terminal: %s\n", d.at.gateway().SSHCommand(demoSandbox))

	var client *agent.Client
	var sh *agent.Shell
	err = d.step("an agent attaches by ssh URI", func() (string, error) {
		if client, err = agent.Dial(ctx, d.at.gateway().URI(demoSandbox), agent.Options{Kind: agent.KindGateway, State: d.dir}); err != nil {
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
	return d.step("the record, played fast", func() (string, error) {
		out, err := d.lobby(ctx, "replay", "--speed=1000", demoSandbox)
		if err != nil {
			return "", err
		}
		for _, want := range []string{"apt-get install toilet", "Do you want to continue?", "toilet --filter"} {
			if !strings.Contains(out, want) {
				return "", fmt.Errorf("the record lacks %q", want)
			}
		}
		return lastLines(out, 14), nil
	})
}

// agent is what the agent does: it installs a package without -y, meets apt's question, answers it, uses the program.
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
		if res.Ended != agent.EndedWaiting || !strings.Contains(res.Prompt, "Do you want to continue?") {
			return "", fmt.Errorf("apt asks before it installs, but the call ended %s at %q", res.Ended, res.Prompt)
		}
		return fmt.Sprintf("ended: %s  want: %s  basis: %v\nprompt: %s", res.Ended, res.Want, res.Basis, res.Prompt), nil
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

// finished makes anything but an orderly end with 0 an error.
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

// start starts a daemon as anybody would, and reads where it answers.
func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.daemon = exec.CommandContext(context.WithoutCancel(ctx), self, "serve", "--json", "--state", d.dir, "--ssh", "127.0.0.1:0")
	var said bytes.Buffer
	d.daemon.Stderr = &said
	out, err := d.daemon.StdoutPipe()
	if err != nil {
		return err
	}
	// Not ^C's: the demo ends its daemon after the sandbox.
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.daemon.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, d.kill)()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		_ = d.daemon.Wait() // what it said last says more
		return fmt.Errorf("the daemon ended: %s", lastLines(said.String(), 3))
	}
	return json.Unmarshal(line, &d.at)
}

// stop removes the sandbox and ends the daemon.
func (d *demo) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := d.lobby(ctx, "rm", "--force", "--all")
	_ = d.daemon.Process.Signal(syscall.SIGTERM) // one that has ended needs none
	defer context.AfterFunc(ctx, d.kill)()
	if waited := d.daemon.Wait(); waited != nil {
		err = errors.Join(err, fmt.Errorf("daemon: %w", waited))
	}
	return err
}

// kill ends a daemon that does not end in order. One that has ended needs none.
func (d *demo) kill() { _ = d.daemon.Process.Kill() }

// lobby runs a command of the table and returns what it printed.
func (d *demo) lobby(ctx context.Context, words ...string) (string, error) {
	client, err := agent.Dial(ctx, d.at.gateway().URI("sandboxd"), agent.Options{Kind: agent.KindGateway, State: d.dir})
	if err != nil {
		return "", err
	}
	defer client.Close()
	var out, said bytes.Buffer
	exit, err := client.Exec(ctx, agent.Cmd{Command: strings.Join(words, " "), Stdout: &out, Stderr: &said})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", words[0], exit.Code, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(out.String()), err
}

// watcher is a person at a real terminal with the real ssh, who only looks.
type watcher struct {
	cmd  *exec.Cmd
	tty  *os.File
	done chan struct{}

	mu     sync.Mutex
	screen *screen.Screen // guarded by mu; what that terminal shows
	more   chan struct{}  // guarded by mu; closed and replaced when it changes
}

func (w *watcher) start(ctx context.Context, g command.Gateway) error {
	const cols, rows = 200, 51 // a row more than the session has, for the status line
	w.screen = screen.New(screen.Options{Cols: cols, Rows: rows})
	w.more, w.done = make(chan struct{}), make(chan struct{})
	w.cmd = exec.CommandContext(ctx, "sh", "-c", "exec "+g.SSHCommand(demoSandbox)+" -o LogLevel=ERROR")
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
			_, _ = w.screen.Write(buf[:n]) // in memory: it takes everything
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
	_ = w.cmd.Process.Kill() // one that has ended needs none
	_ = w.cmd.Wait()         // killed, as was asked
	w.tty.Close()
	<-w.done
}
