package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// Two names of one server: a secret binds the first, and connections to the second pass untouched.
const boundName, directName = "bound.bench.test", "direct.bench.test"

// hostsWrapper runs a program that sees another /etc/hosts.
const hostsWrapper = `#!/bin/sh
exec unshare -m sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' %s %s "$@"
`

// broker: requests of a sandbox to a host whose credential the daemon sets, and to the same server
// without.
func broker(ctx context.Context, b *bench) (rows []row, err error) {
	program, err := b.buildStream(ctx)
	if err != nil {
		return nil, err
	}
	server, addr, remove, err := b.streamContainer(ctx, program, "web", boundName, directName)
	if err != nil {
		return nil, err
	}
	defer remove()
	ca, err := b.containerOutput(ctx, server, []byte("END CERTIFICATE"))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	hosts := "127.0.0.1 localhost\n" + addr + " " + boundName + " " + directName + "\n"
	for name, text := range map[string]string{"ca.pem": ca, "hosts": hosts} {
		files[name] = filepath.Join(b.dir, name)
		if err := os.WriteFile(files[name], []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	sandboxd, err := filepath.Abs("bin/sandboxd")
	if err != nil {
		return nil, err
	}
	wrapper := filepath.Join(b.dir, "sandboxd-hosts")
	if err := os.WriteFile(wrapper, fmt.Appendf(nil, hostsWrapper, files["hosts"], sandboxd),
		0o700); err != nil { // #nosec G306 -- a program
		return nil, err
	}
	state := filepath.Join(b.dir, "broker")
	d, err := daemon.Start(ctx, wrapper, daemon.Options{State: state, Log: state + ".log",
		Env: []string{"SANDBOXD_CA_BUNDLE=" + files["ca.pem"], "SANDBOXD_ALLOW=" + addr}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.End(ctx)) }()
	const name = "broker"
	set := d.Line(ctx, "secret", "set", "bench", "--host", boundName, "--header",
		"Authorization: Bearer {}")
	set.Stdin = bytes.NewReader([]byte("bench-key\n"))
	if said, err := set.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("secret set: %w: %s", err, said)
	}
	if said, err := d.Line(ctx, "new", name).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("new: %w: %s", err, said)
	}
	if said, err := d.Line(ctx, "cp", program, name+":/tmp/").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cp: %w: %s", err, said)
	}
	in := func(what, host string) func() (string, error) {
		return func() (string, error) {
			out, err := d.Line(ctx, "exec", name, "/tmp/stream", what,
				"https://"+host+"/"+what).CombinedOutput()
			return string(out), err
		}
	}
	for _, r := range []struct {
		what, say, goal string
		added           float64 // of the 99th percentile, in milliseconds
	}{
		{"requests", "secret: a request on an open connection", "p99 ≤ direct + 2 ms", 2},
		{"events", "secret: a server-sent event, from server to program", "p99 ≤ direct + 5 ms", 5},
	} {
		mine, direct, err := printed(in(r.what, boundName), in(r.what, directName))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.what, err)
		}
		rows = append(rows, against(r.say, "ms", mine, direct, "direct", "–", always))
		// The table shows medians.
		within := mine.P99 <= direct.P99+r.added
		mine.Median, direct.Median = mine.P99, direct.P99
		rows = append(rows, against(r.say+", 99 in 100", "ms", mine, direct, "direct", r.goal,
			func(float64) bool { return within }))
	}
	return rows, nil
}

// containerOutput waits until a container has printed until, and returns its output.
func (b *bench) containerOutput(ctx context.Context, id string, until []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		logs, err := b.docker.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true,
			ShowStderr: true})
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		_, err = stdcopy.StdCopy(&out, &out, logs)
		logs.Close()
		if err != nil {
			return "", err
		}
		if bytes.Contains(out.Bytes(), until) {
			return out.String(), nil
		}
		if err := daemon.Pause(ctx, 50*time.Millisecond); err != nil {
			return "", fmt.Errorf("%w: %s", err, &out)
		}
	}
}
