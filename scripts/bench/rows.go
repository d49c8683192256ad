package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// boot: docker's own create and start, against a sandbox until its first command is done.
func boot(ctx context.Context, b *bench) ([]row, error) {
	ours, peer, err := boots(ctx, b, b.daemon)
	return []row{against("boot: create until the first command is done", "ms", ours, peer,
		"docker create+start", "≤ 1.1 ×", atMost(1.1))}, err
}

// boots measures sandboxes of a daemon, and containers of Docker's engine in turn with them.
func boots(ctx context.Context, b *bench, d *daemon.Daemon) (own, docker sample, err error) {
	control, err := b.control(ctx, d)
	if err != nil {
		return own, docker, err
	}
	defer control.Close()
	command := func(line string) error {
		_, err := control.command(ctx, line)
		return err
	}
	var ours, peer []float64
	for i := range 12 {
		name := fmt.Sprintf("boot-%d", i)
		began := time.Now()
		if err := command("new " + name); err != nil {
			return own, docker, err
		}
		if err := command("exec " + name + " true"); err != nil {
			return own, docker, err
		}
		took := time.Since(began)
		if err := command("rm -f " + name); err != nil {
			return own, docker, err
		}
		began = time.Now()
		c, err := b.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: &container.Config{Image: image, Cmd: []string{"sleep", "1000"},
				Labels: mark},
			HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		if err != nil {
			return own, docker, err
		}
		_, err = b.docker.ContainerStart(ctx, c.ID, client.ContainerStartOptions{})
		alone := time.Since(began)
		if _, rmErr := b.docker.ContainerRemove(
			ctx, c.ID, client.ContainerRemoveOptions{Force: true}); err == nil {
			err = rmErr
		}
		if err != nil {
			return own, docker, err
		}
		if i >= 2 {
			ours = append(ours, milliseconds(took))
			peer = append(peer, milliseconds(alone))
		}
	}
	return summarize(ours), summarize(peer), nil
}

// runTrue runs a command on a connection.
func runTrue(c *ssh.Client) func() error {
	return func() error {
		s, err := c.NewSession()
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Run("true")
	}
}

// execTrue: one command on a live connection.
func execTrue(ctx context.Context, b *bench) ([]row, error) {
	gw, err := b.gateway()
	if err != nil {
		return nil, err
	}
	defer gw.Close()
	direct, err := b.sshdConn()
	if err != nil {
		return nil, err
	}
	defer direct.Close()
	c, err := b.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Cmd: []string{"sleep", "1000"}, Labels: mark},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		// Its label tells whose it is.
		_, _ = b.docker.ContainerRemove(context.WithoutCancel(ctx), c.ID,
			client.ContainerRemoveOptions{Force: true})
	}()
	if _, err := b.docker.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		return nil, err
	}
	samples, err := times(ctx, 200, runTrue(gw), runTrue(direct))
	if err != nil {
		return nil, err
	}
	// In turns of ten: docker exec leaves caches and processor cold for the next call, and it
	// would always be us.
	docker, err := inTurns(ctx, 100, 10, runTrue(gw),
		func() error { return b.dockerExec(ctx, c.ID, "true") })
	if err != nil {
		return nil, err
	}
	return []row{
		against("exec true on a live connection", "ms", samples[0], samples[1], "OpenSSH",
			"≤ 1.0 ×", atMost(1)),
		against("exec true on a live connection", "ms", docker[0], docker[1], "docker exec",
			"≤ 0.05 ×", atMost(0.05)),
	}, nil
}

// echo: a key to its echo, on a terminal of its own.
func echo(ctx context.Context, b *bench) ([]row, error) {
	open := func(c *ssh.Client) (func() error, error) {
		s, err := c.NewSession()
		if err != nil {
			return nil, err
		}
		in, err := s.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := s.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}); err != nil {
			return nil, err
		}
		if err := s.Start("echo ready; exec cat"); err != nil {
			return nil, err
		}
		if _, err := bufio.NewReaderSize(out, 16).ReadString('\n'); err != nil {
			return nil, err
		}
		key := make([]byte, 16)
		return func() error {
			if _, err := in.Write([]byte("x")); err != nil {
				return err
			}
			_, err := out.Read(key)
			return err
		}, nil
	}
	gw, err := b.gateway()
	if err != nil {
		return nil, err
	}
	defer gw.Close()
	direct, err := b.sshdConn()
	if err != nil {
		return nil, err
	}
	defer direct.Close()
	jumped, err := b.throughJumpHost()
	if err != nil {
		return nil, err
	}
	defer jumped.Close()
	var keys []func() error
	for _, c := range []*ssh.Client{gw, direct, jumped} {
		key, err := open(c)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	samples, err := times(ctx, 1000, keys...)
	if err != nil {
		return nil, err
	}
	person, err := b.echoBySSH(ctx)
	if err != nil {
		return nil, err
	}
	return []row{
		against("terminal: key to echo, between programs", "ms", samples[0], samples[1], "OpenSSH",
			"≤ 1.1 ×", atMost(1.1)),
		against("terminal: key to echo, between programs", "ms", samples[0], samples[2],
			"OpenSSH jump host", "–", always),
		person,
	}, nil
}

// echoBySSH is what a person at the ssh program has: a key goes through their own terminal, too.
func (b *bench) echoBySSH(ctx context.Context) (row, error) {
	open := func(addr, user string) (func() error, func(), error) {
		cmd := exec.CommandContext(ctx, "ssh",
			append(append([]string{"-tt"}, b.sshArgs(addr, user)...), "echo ready; exec cat")...)
		terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
		if err != nil {
			return nil, nil, err
		}
		end := func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			terminal.Close()
		}
		if _, err := bufio.NewReaderSize(terminal, 16).ReadString('\n'); err != nil {
			end()
			return nil, nil, err
		}
		key := make([]byte, 16)
		return func() error {
			if _, err := terminal.Write([]byte("x")); err != nil {
				return err
			}
			_, err := terminal.Read(key)
			return err
		}, end, nil
	}
	ours, end, err := open(b.daemon.SSH, "bench")
	if err != nil {
		return row{}, err
	}
	defer end()
	peer, endPeer, err := open(b.sshdAddr, "root")
	if err != nil {
		return row{}, err
	}
	defer endPeer()
	samples, err := times(ctx, 1000, ours, peer)
	if err != nil {
		return row{}, err
	}
	return against("terminal: key to echo, at the ssh program", "ms", samples[0], samples[1],
		"OpenSSH", "≤ 1.1 ×", atMost(1.1)), nil
}

// shellRun: a command in a shared, recorded session until its Result, and until a program asks.
func shellRun(ctx context.Context, b *bench) ([]row, error) {
	sh, err := b.client.Shell(ctx, "bench")
	if err != nil {
		return nil, err
	}
	defer sh.Close()
	samples, err := times(ctx, 300, func() error {
		res, err := sh.Run(ctx, "true")
		if err == nil && (res.Ended != agent.EndedDone || *res.ExitCode != 0) {
			err = fmt.Errorf("true ended %s: %+v", res.Ended, res)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var asks, verdicts []float64
	for i := range 100 {
		question := fmt.Sprintf("name %d? ", i)
		printed := make(chan time.Time, 1)
		go func() { // ends with the question, or with ctx
			if _, err := sh.Expect(ctx, agent.Text(question)); err == nil {
				printed <- time.Now()
			}
			close(printed)
		}()
		began := time.Now()
		// The line that shows the command must not have the question in it.
		res, err := sh.Run(ctx, fmt.Sprintf(`q=%d; read -p "name $q? " x`, i))
		took := time.Since(began)
		if err == nil && res.Ended != agent.EndedWaiting {
			err = fmt.Errorf("read ended %s: %+v", res.Ended, res)
		}
		if err != nil {
			return nil, err
		}
		at, ok := <-printed
		if !ok {
			return nil, fmt.Errorf("%q was not printed", question)
		}
		verdicts = append(verdicts, float64((took-at.Sub(began)).Microseconds())/1000)
		if res, err = sh.Type(ctx, "x"); err != nil || res.Ended != agent.EndedDone {
			return nil, fmt.Errorf("the answer ended %s: %w", res.Ended, err)
		}
		asks = append(asks, float64(took.Microseconds())/1000)
	}
	asked, verdict := summarize(asks), summarize(verdicts)
	return []row{
		{What: `Shell.Run("true") until its Result`, Unit: "ms", Ours: samples[0], Goal: "≤ 3 ms",
			Passes: samples[0].Median <= 3},
		{What: "Shell.Run of a program that asks, until waiting", Unit: "ms", Ours: asked,
			Goal: "–", Passes: true},
		{What: "a question on the screen, until its caller has waiting", Unit: "ms", Ours: verdict,
			Goal: "≤ 3 ms", Passes: verdict.P99 <= 3},
	}, nil
}

// freshSSH: the ssh program from its start to its end, command included.
func freshSSH(ctx context.Context, b *bench) ([]row, error) {
	on := func(addr, user string) func() error {
		return func() error {
			out, err := exec.CommandContext(
				ctx, "ssh", append(b.sshArgs(addr, user), "true")...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ssh: %w: %s", err, out)
			}
			return nil
		}
	}
	samples, err := times(ctx, 30, on(b.daemon.SSH, "bench"), on(b.sshdAddr, "root"))
	if err != nil {
		return nil, err
	}
	r := against("fresh ssh until its command is done", "ms", samples[0], samples[1], "OpenSSH",
		"≤ 15 ms or ≤ 0.2 ×", atMost(0.2))
	r.Passes = r.Passes || r.Ours.Median <= 15
	return []row{r}, nil
}

// bulk: a large stream out of the sandbox by the ssh program, with and without the cipher of our
// ssh-config block.
func bulk(ctx context.Context, b *bench) ([]row, error) {
	const size = 512 << 20
	on := func(addr, user string, options ...string) func() (float64, error) {
		return func() (float64, error) {
			cmd := exec.CommandContext(ctx, "ssh", append(b.sshArgs(addr, user, options...),
				fmt.Sprintf("head -c %d /dev/zero", size))...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				return 0, err
			}
			if err := cmd.Start(); err != nil {
				return 0, err
			}
			// From the first byte on: how long a login takes is another row.
			first, err := out.Read(make([]byte, 1))
			began := time.Now()
			n, copied := io.Copy(io.Discard, out)
			n += int64(first)
			err = errors.Join(err, copied)
			if waited := cmd.Wait(); err == nil {
				err = waited
			}
			if err == nil && n != size {
				err = fmt.Errorf("%d bytes came, not %d", n, size)
			}
			return float64(size) / (1 << 20) / time.Since(began).Seconds(), err
		}
	}
	gcm := []string{"-o", "Ciphers=^aes128-gcm@openssh.com"}
	var rows []row
	for _, c := range []struct {
		what    string
		options []string
		goal    string
		pass    func(float64) bool
	}{
		{"bulk out, with our ssh-config block", gcm, "≥ 0.95 ×", atLeast(0.95)},
		{"bulk out, ssh's own choice of cipher", nil, "–", always},
	} {
		var ours, peer, jumped []float64
		// One run of a party is often half as fast again as the next, by the processors on which
		// its programs happen to be.
		for range 12 {
			for _, m := range []struct {
				values *[]float64
				f      func() (float64, error)
			}{{&ours, on(b.daemon.SSH, "bench", c.options...)},
				{&peer, on(b.sshdAddr, "root", c.options...)},
				{&jumped, on(b.sshdAddr, "root", b.jump(c.options...)...)}} {
				v, err := m.f()
				if err != nil {
					return nil, err
				}
				*m.values = append(*m.values, v)
			}
		}
		mine := summarize(ours)
		rows = append(rows, against(c.what, "MiB/s", mine, summarize(peer), "OpenSSH", c.goal,
			c.pass),
			against(c.what, "MiB/s", mine, summarize(jumped), "OpenSSH jump host", "–", always))
	}
	return rows, nil
}

// restart: kill -9 of the daemon until a session's next command is done.
func restart(ctx context.Context, b *bench) ([]row, error) {
	sh, err := b.client.Shell(ctx, "restart")
	if err != nil {
		return nil, err
	}
	if res, err := sh.Run(ctx, "export KEPT=1"); err != nil || res.Ended != agent.EndedDone {
		return nil, fmt.Errorf("export ended %s: %w", res.Ended, err)
	}
	sh.Close()
	b.client.Close()
	var values []float64
	for range 5 {
		if err := b.daemon.Kill(); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := b.startDaemon(ctx); err != nil {
			return nil, err
		}
		if b.client, err = agent.Dial(ctx, "ssh://bench@"+b.daemon.SSH,
			agent.Options{State: filepath.Join(b.dir, "state")}); err != nil {
			return nil, err
		}
		sh, err := b.client.Shell(ctx, "restart")
		if err != nil {
			return nil, err
		}
		res, err := sh.Run(ctx, `test "$KEPT" = 1`)
		if err != nil || res.Ended != agent.EndedDone || *res.ExitCode != 0 {
			return nil, fmt.Errorf("after the restart the session ended %s: %w", res.Ended, err)
		}
		values = append(values, float64(time.Since(began).Microseconds())/1000)
		sh.Close()
		if len(values) < 5 {
			b.client.Close()
		}
	}
	s := summarize(values)
	return []row{{What: "kill -9 of the daemon until its session's next command is done",
		Unit: "ms", Ours: s, Goal: "≤ 2000", Passes: s.Median <= 2000}}, nil
}
