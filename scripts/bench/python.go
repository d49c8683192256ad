package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/coder/websocket"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
)

const pythonImage = "sandboxd/python:latest"

const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]); plt.show()"

// pythonCalls: code in a kernel of a sandbox, through the gateway, against a Jupyter server of the
// same image in a plain container, by a unix socket of this machine.
func pythonCalls(ctx context.Context, b *bench) ([]row, error) {
	l, err := b.control(ctx, b.daemon)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if _, err := l.command(ctx, "new --image "+pythonImage+
		" --network none bench-python"); err != nil {
		return nil, err
	}
	// It goes with its daemon, too.
	defer func() { _, _ = l.command(context.WithoutCancel(ctx), "rm -f bench-python") }()
	c, err := agent.Dial(ctx, "ssh://bench-python@"+b.daemon.SSH,
		agent.Options{State: b.daemon.State})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	began := time.Now()
	in, err := python.Open(ctx, c, python.Options{})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	server := milliseconds(time.Since(began))
	bare, err := b.bareJupyter(ctx)
	if err != nil {
		return nil, err
	}
	defer bare.remove()

	var ours *python.Context
	var theirs *bareKernel
	n := 0
	ready, err := times(ctx, 7,
		func() (err error) {
			n++
			ours, err = in.Context(ctx, fmt.Sprintf("k%d", n))
			return err
		},
		func() (err error) {
			theirs, err = bare.kernel(ctx)
			return err
		})
	if err != nil {
		return nil, err
	}
	run := func(code string) []func() error {
		return []func() error{
			func() error {
				res, err := ours.Execute(ctx, python.Call{Code: code})
				if err == nil && (!res.OK || len(res.Outputs) == 0) {
					err = fmt.Errorf("%q: %+v", code, res)
				}
				return err
			},
			func() error { return theirs.execute(ctx, code) },
		}
	}
	for _, warm := range run(plot) {
		if err := warm(); err != nil {
			return nil, err
		}
	}
	sum, err := times(ctx, 200, run("1+1")...)
	if err != nil {
		return nil, err
	}
	shown, err := times(ctx, 40, run(plot)...)
	if err != nil {
		return nil, err
	}
	const name = "Jupyter by a unix socket"
	line := func(what string, s []sample, goal string, most float64) row {
		return row{What: what, Unit: "ms", Ours: s[0], Peer: &s[1], Name: name,
			Ratio: s[0].Median / s[1].Median, Goal: goal, Passes: s[0].Median <= most}
	}
	return []row{
		{What: "Python: the server of a sandbox is up", Unit: "ms",
			Ours: summarize([]float64{server}), Goal: "–", Passes: true},
		line("Python: a new context is ready", ready, "≤ 1200 ms", 1200),
		line("Python: 1+1 in a warm context", sum, "≤ 8 ms", 8),
		line("Python: a small plot", shown, "≤ 100 ms", 100),
	}, nil
}

// bareServer is a Jupyter server without anything of ours but the image.
type bareServer struct {
	http   *http.Client
	remove func()
}

func (b *bench) bareJupyter(ctx context.Context) (s *bareServer, err error) {
	dir := filepath.Join(b.dir, "jupyter")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c, err := b.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: pythonImage, Labels: mark, WorkingDir: "/mnt/data",
			Cmd: []string{"python3", "-m", "jupyter_server", "--allow-root", "--no-browser",
				"--sock=/jupyter/sock", "--sock-mode=0600", "--ServerApp.token=bench",
				"--ServerApp.root_dir=/mnt/data"}},
		HostConfig: &container.HostConfig{NetworkMode: "none",
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: dir, Target: "/jupyter"}}},
	})
	if err != nil {
		return nil, err
	}
	s = &bareServer{remove: func() {
		// Its label tells whose it is.
		_, _ = b.docker.ContainerRemove(context.WithoutCancel(ctx), c.ID,
			client.ContainerRemoveOptions{Force: true})
	}}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	if _, err := b.docker.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		return nil, err
	}
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "sock"))
	}}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(30 * time.Second); ; {
		resp, err := s.http.Do(bareRequest(ctx, http.MethodGet, "/api/kernels", nil))
		if err == nil {
			resp.Body.Close()
			return s, nil
		}
		if time.Now().After(late) || ctx.Err() != nil {
			return nil, fmt.Errorf("bare Jupyter: %w", err)
		}
		<-tick.C
	}
}

func bareRequest(ctx context.Context, method, path string, body []byte) *http.Request {
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path,
		bytes.NewReader(body))
	if err != nil {
		panic(err) // of constants
	}
	r.Header.Set("Authorization", "token bench")
	return r
}

// bareKernel is a connection to one of its kernels.
type bareKernel struct {
	conn *websocket.Conn
	sent int
}

func (s *bareServer) kernel(ctx context.Context) (*bareKernel, error) {
	resp, err := s.http.Do(bareRequest(ctx, http.MethodPost, "/api/kernels",
		[]byte(`{"name":"python3"}`)))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var made struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.ID == "" {
		return nil, errors.New("bare Jupyter: no kernel: " + resp.Status)
	}
	k := &bareKernel{}
	k.conn, _, err = websocket.Dial( //nolint:bodyclose // the connection is the body
		ctx, "http://localhost/api/kernels/"+made.ID+"/channels?token=bench",
		&websocket.DialOptions{HTTPClient: s.http})
	if err != nil {
		return nil, err
	}
	k.conn.SetReadLimit(-1)
	return k, k.ask(ctx, "kernel_info_request", map[string]any{}, "kernel_info_reply", false)
}

func (k *bareKernel) execute(ctx context.Context, code string) error {
	return k.ask(ctx, "execute_request",
		map[string]any{"code": code, "silent": false, "store_history": true,
			"user_expressions": struct{}{}, "allow_stdin": true}, "execute_reply", true)
}

// ask sends a request and waits for its reply, and for idle.
func (k *bareKernel) ask(ctx context.Context, kind string, content any, reply string,
	idle bool) error {
	k.sent++
	id := fmt.Sprint("bench-", k.sent)
	text, err := json.Marshal(map[string]any{"header": map[string]string{"msg_id": id,
		"msg_type": kind, "session": "bench", "username": "", "version": "5.3"},
		"parent_header": struct{}{}, "metadata": struct{}{}, "content": content,
		"channel": "shell"})
	if err != nil {
		return err
	}
	if err := k.conn.Write(ctx, websocket.MessageText, text); err != nil {
		return err
	}
	for replied, idled := false, !idle; !replied || !idled; {
		_, text, err := k.conn.Read(ctx)
		if err != nil {
			return err
		}
		var m struct {
			Type    string         `json:"msg_type"`
			Parent  map[string]any `json:"parent_header"`
			Content map[string]any `json:"content"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return err
		}
		if m.Parent["msg_id"] != id {
			continue
		}
		replied = replied || m.Type == reply
		idled = idled || m.Type == "status" && m.Content["execution_state"] == "idle"
	}
	return nil
}
