package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// guest: the file, and the memory that it does not share.
func guest(ctx context.Context, b *bench) ([]row, error) {
	info, err := os.Stat("bin/sandboxd-guest-linux-" + runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	size := float64(info.Size()) / 1e6
	control, err := agent.Dial(ctx, "ssh://sandboxd@"+b.daemon.SSH,
		agent.Options{State: b.daemon.State})
	if err != nil {
		return nil, err
	}
	defer control.Close()
	if exit, err := control.Exec(ctx, agent.Cmd{Command: "new --if-missing idle"}); err != nil ||
		exit.Code != 0 {
		return nil, fmt.Errorf("new idle: exit %d, %w", exit.Code, err)
	}
	pid, err := b.initPID(ctx, "idle")
	if err != nil {
		return nil, err
	}
	// Until the boot's garbage is collected.
	if err := daemon.Pause(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	private, err := privateMemory(pid)
	if err != nil {
		return nil, err
	}
	mib := float64(private) / (1 << 20)
	return []row{
		{What: "guest binary", Unit: "MB", Ours: summarize([]float64{size}), Goal: "≤ 8",
			Passes: size <= 8},
		{What: "guest, idle, private memory", Unit: "MiB", Ours: summarize([]float64{mib}),
			Goal: "≤ 3", Passes: mib <= 3},
	}, nil
}

// initPID is the host's number of a sandbox's PID 1.
func (b *bench) initPID(ctx context.Context, name string) (int, error) {
	var out bytes.Buffer
	control, err := agent.Dial(ctx, "ssh://sandboxd@"+b.daemon.SSH,
		agent.Options{State: b.daemon.State})
	if err != nil {
		return 0, err
	}
	defer control.Close()
	if _, err := control.Exec(ctx, agent.Cmd{Command: "describe --json " + name,
		Stdout: &out}); err != nil {
		return 0, err
	}
	_, id, _ := strings.Cut(out.String(), `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	list, err := b.docker.ContainerList(ctx,
		client.ContainerListOptions{Filters: make(client.Filters).Add("label", "sandboxd.id="+id)})
	if err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("%d containers have the label of %s", len(list.Items), id)
	}
	c, err := b.docker.ContainerInspect(ctx, list.Items[0].ID, client.ContainerInspectOptions{})
	if err != nil {
		return 0, err
	}
	return c.Container.State.Pid, nil
}

// privateMemory is what a process shares with no other, in bytes (proc_pid_smaps(5)).
func privateMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && strings.HasPrefix(f[0], "Private_") {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, err
			}
			sum += kb << 10
		}
	}
	return sum, nil
}

// daemonMemory: what connections with a terminal cost the daemon.
func daemonMemory(ctx context.Context, b *bench) ([]row, error) {
	// So many that it does not matter when the collector last ran; each is a program in the
	// sandbox, whose processes are limited.
	const n = 96
	if err := b.freshDaemon(ctx); err != nil {
		return nil, err
	}
	var before int64
	var conns []*ssh.Client
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range n + 1 {
		if i == 1 { // the first has the daemon touch what it needs for any
			var err error
			if before, err = b.daemonSettled(ctx); err != nil {
				return nil, err
			}
		}
		c, err := b.gateway()
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
		s, err := c.NewSession()
		if err != nil {
			return nil, err
		}
		if err := s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}); err != nil {
			return nil, err
		}
		if err := s.Start("cat"); err != nil {
			return nil, err
		}
	}
	after, err := b.daemonSettled(ctx)
	if err != nil {
		return nil, err
	}
	kib := float64(after-before) / n / (1 << 10)
	return []row{{What: "daemon, per connection with a terminal", Unit: "KiB",
		Ours: sample{Median: kib, P99: kib, Min: kib, Max: kib, N: n}, Goal: "≤ 150",
		Passes: kib <= 150}}, nil
}

// freshDaemon starts the daemon anew: what earlier measurements left in its heap would be taken for
// that of the next.
func (b *bench) freshDaemon(ctx context.Context) (err error) {
	b.client.Close()
	if err := b.daemon.Stop(); err != nil {
		return err
	}
	if err := b.startDaemon(ctx); err != nil {
		return err
	}
	b.client, err = agent.Dial(ctx, "ssh://bench@"+b.daemon.SSH,
		agent.Options{State: b.daemon.State})
	return err
}

// daemonSettled is the daemon's private memory once what led here is collected.
func (b *bench) daemonSettled(ctx context.Context) (int64, error) {
	if err := daemon.Pause(ctx, 3*time.Second); err != nil {
		return 0, err
	}
	return privateMemory(b.daemon.Pid())
}
