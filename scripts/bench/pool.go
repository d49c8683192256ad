package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// mark is the label of this program's own containers.
var mark = map[string]string{"sandboxd.bench": "1"}

// control is a connection to a daemon's control host, to run commands on.
type control struct{ *agent.Client }

func (b *bench) control(ctx context.Context, at *daemon.Daemon) (control, error) {
	c, err := agent.Dial(ctx, "ssh://sandboxd@"+at.SSH, agent.Options{State: at.State})
	return control{c}, err
}

func (l control) command(ctx context.Context, line string) (string, error) {
	var out, said bytes.Buffer
	exit, err := l.Exec(ctx, agent.Cmd{Command: line, Stdout: &out, Stderr: &said})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%s: %s", line, said.String())
	}
	return out.String(), err
}

// poolFull waits until the pool has both its sandboxes.
func (l control) poolFull(ctx context.Context) error {
	for {
		pool, err := l.command(ctx, "pool --json")
		if err != nil || strings.Contains(pool, `"ready":2`) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claim: a pooled sandbox until its first command is done, against a container of docker's own that
// runs one.
func claim(ctx context.Context, b *bench) (rows []row, err error) {
	own, err := b.launch(ctx, "pool", "SANDBOXD_POOL_SIZE=2", "SANDBOXD_POOL_IMAGES="+image)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.End(ctx)) }()
	l, err := b.control(ctx, own)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var made, done, peer []float64
	for i := range 22 {
		if err := l.poolFull(ctx); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("claim-%d", i)
		began := time.Now()
		if _, err := l.command(ctx, "new "+name); err != nil {
			return nil, err
		}
		there := time.Since(began)
		if _, err := l.command(ctx, "exec "+name+" true"); err != nil {
			return nil, err
		}
		took := time.Since(began)
		if _, err := l.command(ctx, "rm -f "+name); err != nil {
			return nil, err
		}
		alone, err := b.dockerRun(ctx, "true")
		if err != nil {
			return nil, err
		}
		if i >= 2 {
			made = append(made, milliseconds(there))
			done = append(done, milliseconds(took))
			peer = append(peer, milliseconds(alone))
		}
	}
	s, first := summarize(made), summarize(done)
	r := against("claim: new until the first command is done, from the pool", "ms", first,
		summarize(peer), "docker run", "≤ 10 ms", always)
	r.Passes = first.Median <= 10
	return []row{{What: "claim: new, from the pool", Unit: "ms", Ours: s, Goal: "–", Passes: true},
		r}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// dockerRun is what docker run does: a container is made, started, and has ended.
func (b *bench) dockerRun(ctx context.Context, words ...string) (time.Duration, error) {
	began := time.Now()
	c, err := b.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: words, Labels: mark},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return 0, err
	}
	wait := b.docker.ContainerWait(ctx, c.ID,
		client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err = b.docker.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err == nil {
		select {
		case <-wait.Result:
		case err = <-wait.Error:
		}
	}
	took := time.Since(began)
	_, rmErr := b.docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
	return took, errors.Join(err, rmErr)
}

// atOnce is how many are asked for together.
const atOnce = 50

// fifty: as many programs at once, each of which wants a sandbox, against as many of docker's own.
func fifty(ctx context.Context, b *bench) ([]row, error) {
	ours, peer, err := fifties(ctx, b, b.daemon)
	if err != nil {
		return nil, err
	}
	return []row{against(fmt.Sprintf("%d programs at once that each make a sandbox", atOnce), "1/s",
		ours, peer, "docker run -d", "≥ 0.9 ×", atLeast(0.9))}, nil
}

// fifties measures how many sandboxes of a daemon start in a second, and how many containers of
// Docker's engine.
func fifties(ctx context.Context, b *bench, d *daemon.Daemon) (own, docker sample, err error) {
	l, err := b.control(ctx, d)
	if err != nil {
		return own, docker, err
	}
	defer l.Close()
	together := func(command func(i int) *exec.Cmd) (float64, error) {
		errs := make([]error, atOnce)
		var wg sync.WaitGroup
		began := time.Now()
		for i := range atOnce {
			wg.Go(func() {
				if out, err := command(i).CombinedOutput(); err != nil {
					errs[i] = fmt.Errorf("%w: %s", err, out)
				}
			})
		}
		wg.Wait()
		return atOnce / time.Since(began).Seconds(), errors.Join(errs...)
	}
	var ours, peer []float64
	for range 3 {
		rate, err := together(func(i int) *exec.Cmd {
			return d.Line(ctx, "new", "--network", "none", fmt.Sprintf("fifty-%d", i))
		})
		for i := range atOnce {
			if _, rmErr := l.command(ctx, fmt.Sprintf("rm -f fifty-%d", i)); err == nil {
				err = rmErr
			}
		}
		if err != nil {
			return own, docker, err
		}
		ours = append(ours, rate)
		rate, err = together(func(i int) *exec.Cmd {
			return exec.CommandContext(ctx, "docker", "run", "-d", "--network", "none", "--label",
				"sandboxd.bench=1", "--name", fmt.Sprintf("sandboxd-bench-%d", i), image, "sleep",
				"1000")
		})
		for i := range atOnce {
			_, rmErr := b.docker.ContainerRemove(context.WithoutCancel(ctx),
				fmt.Sprintf("sandboxd-bench-%d", i), client.ContainerRemoveOptions{Force: true})
			if err == nil {
				err = rmErr
			}
		}
		if err != nil {
			return own, docker, err
		}
		peer = append(peer, rate)
	}
	return summarize(ours), summarize(peer), nil
}
