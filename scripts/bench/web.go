package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// api is the HTTP API of a daemon, with its user's token.
type api struct{ url, token string }

func (b *bench) api(at *daemon.Daemon) (*api, error) {
	token, err := os.ReadFile(at.TokenFile)
	return &api{at.HTTP, strings.TrimSpace(string(token))}, err
}

// ask has a request answered; an answer that is an error is one.
func (d *api) ask(ctx context.Context, method, path string, body []byte, header ...string) ([]byte,
	error) {
	r, err := http.NewRequestWithContext(ctx, method, d.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-API-Key", d.token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	said, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, a.Status, said)
	}
	return said, err
}

// e2bDoor: what the SDKs of E2B ask for, without what they themselves take, against docker's own
// API.
func e2bDoor(ctx context.Context, b *bench) (rows []row, err error) {
	own, err := b.launch(ctx, "e2b", "SANDBOXD_POOL_SIZE=2", "SANDBOXD_POOL_IMAGES="+image)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.End(ctx)) }()
	l, err := b.control(ctx, own)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	d, err := b.api(own)
	if err != nil {
		return nil, err
	}
	var created, peer []float64
	for i := range 22 {
		if err := l.poolFull(ctx); err != nil {
			return nil, err
		}
		began := time.Now()
		text, err := d.ask(ctx, http.MethodPost, "/e2b/v2/sandboxes",
			[]byte(`{"templateID":"base","timeout":300}`))
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		var box struct {
			ID string `json:"sandboxID"`
		}
		if err := json.Unmarshal(text, &box); err != nil {
			return nil, err
		}
		if _, err := d.ask(ctx, http.MethodDelete, "/e2b/sandboxes/"+box.ID, nil); err != nil {
			return nil, err
		}
		alone, err := b.dockerRun(ctx, "true")
		if err != nil {
			return nil, err
		}
		if i >= 2 {
			created, peer = append(created, milliseconds(took)), append(peer, milliseconds(alone))
		}
	}
	r := against("E2B: create, from the pool", "ms", summarize(created), summarize(peer),
		"docker run", "≤ 30 ms", always)
	r.Passes = r.Ours.Median <= 30
	more, err := b.e2bInside(ctx, d)
	return append([]row{r}, more...), err
}

// e2bInside: a command, and a small file written and read.
func (b *bench) e2bInside(ctx context.Context, d *api) ([]row, error) {
	text, err := d.ask(ctx, http.MethodPost, "/e2b/v2/sandboxes",
		[]byte(`{"templateID":"base","timeout":300}`))
	if err != nil {
		return nil, err
	}
	var box struct {
		ID     string `json:"sandboxID"`
		Access string `json:"envdAccessToken"`
	}
	if err := json.Unmarshal(text, &box); err != nil {
		return nil, err
	}
	inside := func(method, path, kind string, body []byte) ([]byte, error) {
		return d.ask(ctx, method, "/e2b"+path, body, "E2b-Sandbox-Id", box.ID, "X-Access-Token",
			box.Access, "Connect-Protocol-Version", "1", "Content-Type", kind)
	}
	c, err := b.docker.ContainerCreate(ctx,
		client.ContainerCreateOptions{Config: &container.Config{Image: image,
			Cmd: []string{"sleep", "1000"}, Labels: mark}})
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
	message := []byte(`{"process":{"cmd":"/bin/bash","args":["-l","-c","true"]},"stdin":false}`)
	message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	command, err := inTurns(ctx, 100, 10, func() error {
		said, err := inside(http.MethodPost, "/process.Process/Start", "application/connect+json",
			message)
		if err == nil && !bytes.Contains(said, []byte(`"exited":true`)) {
			err = fmt.Errorf("true ended otherwise: %q", said)
		}
		return err
	}, func() error { return b.dockerExec(ctx, c.ID, "/bin/bash", "-l", "-c", "true") })
	if err != nil {
		return nil, err
	}
	kib := bytes.Repeat([]byte("x"), 1024)
	archive, err := tarOf("f", kib)
	if err != nil {
		return nil, err
	}
	file, err := inTurns(ctx, 100, 10, func() error {
		if _, err := inside(http.MethodPost, "/files?path=/tmp/f", "application/octet-stream",
			kib); err != nil {
			return err
		}
		got, err := inside(http.MethodGet, "/files?path=/tmp/f", "application/json", nil)
		if err == nil && !bytes.Equal(got, kib) {
			err = errors.New("other bytes came back")
		}
		return err
	}, func() error {
		if _, err := b.docker.CopyToContainer(
			ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/tmp",
				Content: bytes.NewReader(archive)}); err != nil {
			return err
		}
		got, err := b.docker.CopyFromContainer(
			ctx, c.ID, client.CopyFromContainerOptions{SourcePath: "/tmp/f"})
		if err != nil {
			return err
		}
		defer got.Content.Close()
		_, err = io.Copy(io.Discard, got.Content)
		return err
	})
	if err != nil {
		return nil, err
	}
	run := against("E2B: a command, bash -l -c true", "ms", command[0], command[1], "docker exec",
		"≤ 10 ms", always)
	run.Passes = run.Ours.Median <= 10
	return []row{run, against("E2B: 1 KiB written and read", "ms", file[0], file[1], "docker cp",
		"≤ 1 ×", atMost(1))}, nil
}

// dockerExec is a command in a container, as docker exec runs it.
func (b *bench) dockerExec(ctx context.Context, id string, words ...string) error {
	e, err := b.docker.ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: words, AttachStdout: true})
	if err != nil {
		return err
	}
	a, err := b.docker.ExecAttach(ctx, e.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	_, err = io.Copy(io.Discard, a.Reader)
	return err
}

func tarOf(name string, content []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	return out.Bytes(), errors.Join(err, w.Close())
}

// agentRun: Python by one call, with a sandbox of its own that stood ready, against a container
// that docker makes for it.
func agentRun(ctx context.Context, b *bench) ([]row, error) {
	d, err := b.api(b.daemon)
	if err != nil {
		return nil, err
	}
	var ours, peer []float64
	for i := range 22 {
		began := time.Now()
		said, err := d.ask(ctx, http.MethodPost, "/v1/run/", []byte(`{"code":"print(1)"}`))
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		if !bytes.Contains(said, []byte(`"output":"1\n"`)) {
			return nil, fmt.Errorf("print(1) ended otherwise: %s", said)
		}
		alone, err := b.dockerRun(ctx, "python3", "-c", "print(1)") // meanwhile others are pooled
		if err != nil {
			return nil, err
		}
		if i >= 2 {
			ours, peer = append(ours, milliseconds(took)), append(peer, milliseconds(alone))
		}
	}
	r := against("AgentRun: print(1) by POST /v1/run/", "ms", summarize(ours), summarize(peer),
		"docker run", "≤ 50 ms", always)
	r.Passes = r.Ours.Median <= 50
	return []row{r}, nil
}

// pageRows: what a person at the page waits for, and what it costs to show them many sessions, by
// Go benchmarks, which have a browser and guests on this machine.
func pageRows(ctx context.Context, _ *bench) ([]row, error) {
	got := make(map[string]float64)
	for _, run := range [][]string{
		{"^BenchmarkPage$", "-benchtime", "60x", "./gateway/httpd"},
		{"^BenchmarkFleet$", "-benchtime", "20x", "./gateway/httpd"},
		{"^BenchmarkJoin$", "-benchtime", "100x", "./gateway/sshd"},
	} {
		cmd := exec.CommandContext(ctx, "scripts/go",
			append([]string{"test", "-run", "^$", "-bench"}, run...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", run[0], err, out)
		}
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			words := strings.Fields(s.Text())
			for i := 1; i < len(words); i++ {
				if v, err := strconv.ParseFloat(words[i-1], 64); err == nil {
					got[words[i]] = v
				}
			}
		}
	}
	var rows []row
	for _, one := range []struct {
		what, name, unit string
		limit            float64
		n                int
	}{
		{"page: first paint", "first-ms", "ms", 1000, 60},
		{"page: the list is there", "list-ms", "ms", 1000, 60},
		{"page: from a key to its cell", "median-ms", "ms", 30, 60},
		{"page: from a key to its cell, 19 in 20", "p95-ms", "ms", 100, 60},
		{"page: from a question to its row, beside 50 busy sessions", "need-ms", "ms", 1000, 20},
		{"page: pictures of 50 busy sessions, the daemon's part of a core", "percent-core", "%", 15, 1},
		{"page: pictures of 50 busy sessions, memory of the page", "page-MiB", "MiB", 150, 1},
		{"join with 1,000 lines of history, until the screen is there", "join-ms", "ms", 50, 100},
		{"join with 1,000 lines of history, what is sent", "join-KiB", "KiB", 100, 100},
	} {
		v, ok := got[one.name]
		if !ok {
			return nil, fmt.Errorf("the benchmarks of the page have no %s", one.name)
		}
		rows = append(rows, row{What: one.what, Unit: one.unit,
			Ours: sample{Median: v, Min: v, Max: v, N: one.n},
			Goal: fmt.Sprintf("≤ %v %s", one.limit, one.unit), Passes: v <= one.limit})
	}
	return rows, nil
}
