package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// codingAgents: from the command sandboxd agent until Claude Code shows its input line, for one and
// for eight at once. The image is made before.
func codingAgents(ctx context.Context, b *bench) (rows []row, err error) {
	program, err := agents.Find("claude", "")
	if err != nil {
		return nil, err
	}
	c := coders{bench: b, program: program, dir: filepath.Join(b.dir, "project")}
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	var one, alone, eight []float64
	for i := range 6 {
		began := time.Now()
		p, err := c.start(ctx, "coder-1")
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		again, err := c.again(ctx, p)
		if err := errors.Join(err, c.end(ctx, p)); err != nil {
			return nil, err
		}
		if i > 0 { // the first warms up
			one, alone = append(one, took.Seconds()), append(alone, again.Seconds())
		}
	}
	for range 3 {
		took, err := c.atOnce(ctx, 8)
		if err != nil {
			return nil, err
		}
		eight = append(eight, took.Seconds())
	}
	single, all := summarize(one), summarize(eight)
	return []row{
		against("agent: from the command to Claude Code's input line", "s", single,
			summarize(alone), "the program alone", "≤ 10 s",
			func(float64) bool { return single.Median <= 10 }),
		{What: "agent: eight at once, until the last input line", Unit: "s", Ours: all,
			Goal: "≤ 30 s", Passes: all.Median <= 30},
	}, nil
}

// coders are sandboxes with coding agents on clones of a repository.
type coders struct {
	*bench
	program *agents.Agent
	dir     string // of the repository
	image   string // with the program
}

// prepare makes the repository, the secret and the image.
func (c *coders) prepare(ctx context.Context) error {
	const script = `git init -q "$0" && cd "$0" && echo hello >README && git add README &&
		git -c user.name=bench -c user.email=bench@bench.test commit -qm one`
	out, err := exec.CommandContext(ctx, "sh", "-c", script, c.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("repository: %w: %s", err, out)
	}
	set := c.daemon.Line(ctx, "secret", "set", "anthropic")
	set.Stdin = strings.NewReader("bench-key\n")
	if out, err := set.CombinedOutput(); err != nil {
		return fmt.Errorf("secret set: %w: %s", err, out)
	}
	p, err := c.start(ctx, "coder-0") // it installs the program
	if err != nil {
		return err
	}
	out, err = c.daemon.Line(ctx, "describe", p.name, "--json").Output()
	var made struct{ Image string }
	if err == nil {
		err = json.Unmarshal(out, &made)
	}
	c.image = made.Image
	return errors.Join(err, c.end(ctx, p))
}

// coder is a sandbox in which the program has started.
type coder struct {
	name string
	box  *agent.Client
	sh   *agent.Shell
}

// start starts the program in a new sandbox, and waits for its input line.
func (c *coders) start(ctx context.Context, name string) (*coder, error) {
	cmd := c.daemon.Line(ctx, "agent", "claude", "-n", name, "-d")
	cmd.Dir = c.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("agent: %w: %s", err, out)
	}
	return c.reach(ctx, name)
}

// reach waits for the input line of the program in a sandbox.
func (c *coders) reach(ctx context.Context, name string) (*coder, error) {
	box, err := agent.Dial(ctx, "ssh://"+name+"@"+c.daemon.SSH,
		agent.Options{State: c.daemon.State})
	if err != nil {
		return nil, err
	}
	p := &coder{name: name, box: box}
	p.sh, err = box.Attach(ctx, agent.ShellOptions{Session: coding.Session, NoNew: true})
	if err == nil {
		err = c.ready(ctx, p.sh)
	}
	if err != nil {
		box.Close()
		return nil, err
	}
	return p, nil
}

// again ends the program, starts it again in its sandbox, and returns how long that takes until its
// input line.
func (c *coders) again(ctx context.Context, p *coder) (time.Duration, error) {
	if err := p.sh.End(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	sh, err := p.box.Attach(ctx, agent.ShellOptions{Session: "again", Fresh: true,
		Start: agent.Start{Argv: slices.Concat(c.program.Command, c.program.Yolo), Dir: c.dir,
			Bare: true}})
	if err != nil {
		return 0, err
	}
	defer sh.Close()
	err = c.ready(ctx, sh)
	return time.Since(began), err
}

// atOnce starts the program in n sandboxes, and returns how long that takes until the last input
// line.
func (c *coders) atOnce(ctx context.Context, n int) (time.Duration, error) {
	began := time.Now()
	var starts sync.WaitGroup
	started, failures := make([]*coder, n), make([]error, n)
	for i := range n {
		starts.Go(func() { started[i], failures[i] = c.start(ctx, fmt.Sprintf("coder-%d", i+1)) })
	}
	starts.Wait()
	took := time.Since(began)
	err := errors.Join(failures...)
	for _, p := range started {
		if p != nil {
			err = errors.Join(err, c.end(ctx, p))
		}
	}
	return took, err
}

// ready waits until the program shows its input line.
func (c *coders) ready(ctx context.Context, sh *agent.Shell) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		screen, err := sh.Screen(ctx)
		if err != nil {
			return err
		}
		if c.program.IsReady(screen.Text) {
			return nil
		}
		if err := daemon.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%w; the screen shows:\n%s", err, screen.Text)
		}
	}
}

// end removes the sandbox.
func (c *coders) end(ctx context.Context, p *coder) error {
	p.box.Close()
	cmd := c.daemon.Line(ctx, "rm", "--force", "--discard", p.name)
	cmd.Dir = c.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rm: %w: %s", err, out)
	}
	return nil
}

// remove removes the secret and the image.
func (c *coders) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err := c.docker.ImageRemove(ctx, c.image, client.ImageRemoveOptions{})
	return errors.Join(err, c.daemon.Line(ctx, "secret", "rm", "anthropic").Run())
}
