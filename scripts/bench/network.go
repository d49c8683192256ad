package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// networkRounds is how often the two take turns.
const networkRounds = 5

// network: a sandbox with the filtered network and a container on the engine's own bridge, both to
// one server in a third container.
func network(ctx context.Context, b *bench) (rows []row, err error) {
	program, err := b.buildStream(ctx)
	if err != nil {
		return nil, err
	}
	_, addr, remove, err := b.streamContainer(ctx, program, "serve")
	if err != nil {
		return nil, err
	}
	defer remove()
	peer, _, removePeer, err := b.streamContainer(ctx, program, "serve") // it has to run something
	if err != nil {
		return nil, err
	}
	defer removePeer()

	control, err := b.control(ctx, b.daemon)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	const name = "network"
	if _, err := control.command(ctx, "new --network filtered=tun --allow "+addr+" "+
		name); err != nil {
		return nil, err
	}
	defer func() {
		_, left := control.command(context.WithoutCancel(ctx), "rm -f "+name)
		err = errors.Join(err, left)
	}()
	if err := b.putProgram(name, program); err != nil {
		return nil, err
	}
	ours := func(what string) (string, error) {
		return control.command(ctx, "exec "+name+" /tmp/stream "+what+" "+addr)
	}
	theirs := func(what string) (string, error) {
		out, err := exec.CommandContext(ctx, "docker", "exec", peer, "/stream", what, addr).Output()
		return string(out), err
	}
	for _, r := range []struct {
		what, say, unit, goal string
		pass                  func(sample) bool
	}{
		{"in", "network filtered: one TCP stream into the container", "MiB/s", "≥ 500",
			func(s sample) bool { return s.Median >= 500 }},
		{"out", "network filtered: one TCP stream out of it", "MiB/s", "≥ 500",
			func(s sample) bool { return s.Median >= 500 }},
		{"connect", "network filtered: connect, and a byte there and back", "ms", "≤ 1",
			func(s sample) bool { return s.Median <= 1 }},
	} {
		mine, their, err := printed(func() (string, error) { return ours(r.what) },
			func() (string, error) { return theirs(r.what) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.what, err)
		}
		made := against(r.say, r.unit, mine, their, "docker bridge", r.goal, always)
		made.Passes = r.pass(mine)
		rows = append(rows, made)
	}
	return rows, nil
}

// printed calls two programs in turn, which print numbers.
func printed(ours, theirs func() (string, error)) (mine, their sample, err error) {
	var values [2][]float64
	for range networkRounds {
		for i, f := range []func() (string, error){ours, theirs} {
			said, err := f()
			if err != nil {
				return mine, their, fmt.Errorf("%w: %s", err, said)
			}
			for word := range strings.FieldsSeq(said) {
				v, err := strconv.ParseFloat(word, 64)
				if err != nil {
					return mine, their, fmt.Errorf("%q: %w", said, err)
				}
				values[i] = append(values[i], v)
			}
		}
	}
	return summarize(values[0]), summarize(values[1]), nil
}

// buildStream builds the program of scripts/bench/stream, and returns its path.
func (b *bench) buildStream(ctx context.Context) (string, error) {
	program := filepath.Join(b.dir, "stream")
	build := exec.CommandContext(ctx, "go", "build", "-C", "scripts", "-o", program,
		"./bench/stream")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("stream: %w: %s", err, said)
	}
	return program, nil
}

// streamContainer runs the program of scripts/bench/stream in a container on the engine's own
// network, and returns its address there.
func (b *bench) streamContainer(ctx context.Context, program string, args ...string) (id,
	addr string, remove func(), err error) {
	c, err := b.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Entrypoint: append([]string{"/stream"}, args...),
			Labels: mark},
		HostConfig: &container.HostConfig{NetworkMode: "bridge",
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: program, Target: "/stream",
				ReadOnly: true}}},
	})
	if err != nil {
		return "", "", nil, err
	}
	remove = func() {
		// Its label tells whose it is.
		_, _ = b.docker.ContainerRemove(context.WithoutCancel(ctx), c.ID,
			client.ContainerRemoveOptions{Force: true})
	}
	if _, err := b.docker.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		remove()
		return "", "", nil, err
	}
	found, err := b.docker.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err != nil {
		remove()
		return "", "", nil, err
	}
	at, ok := found.Container.NetworkSettings.Networks["bridge"]
	if !ok {
		remove()
		return "", "", nil, errors.New("the engine has no network bridge")
	}
	return c.ID, at.IPAddress.String(), remove, nil
}

// putProgram copies a program into a sandbox, as /tmp and its name.
func (b *bench) putProgram(name, program string) error {
	text, err := os.Open(program)
	if err != nil {
		return err
	}
	defer text.Close()
	c, err := b.connect(b.daemon.SSH, name)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	s.Stdin = text
	at := "/tmp/" + filepath.Base(program)
	return s.Run("cat >" + at + " && chmod 755 " + at)
}
