package task_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/task"
	"github.com/sandboxd/sandboxd/agent/task/modeltest"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = gateway.Principal{Name: "alice", Kind: wire.Agent}

// hubGateway is a hub on sandboxes that run the real guest in this process.
type hubGateway struct {
	hub     *gateway.Hub
	running sync.WaitGroup
}

// newGateway runs a hub with alice's sandboxes box and other until t ends.
func newGateway(t testing.TB) *hubGateway {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	state, records := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "records")
	check(os.Mkdir(state, 0o700))
	check(os.Mkdir(records, 0o700))
	db, err := store.Open(t.Context(), state)
	check(err)
	t.Cleanup(func() { db.Close() })
	hub, err := gateway.New(gateway.Options{Store: db, Backends: map[string]sandbox.Backend{sandboxtest.Name: sandboxtest.New(t, sandboxtest.Options{})},
		Records: records, Owner: "alice", StopGrace: time.Second})
	check(err)
	g := &hubGateway{hub: hub}
	life, end := context.WithCancel(context.Background())
	t.Cleanup(func() {
		end()
		g.running.Wait()
	})
	g.running.Go(func() {
		if err := hub.Run(life); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("hub: %v", err)
		}
	})
	check(hub.Ready(t.Context()))
	_, err = hub.Create(t.Context(), alice, gateway.NewSpec{Name: "box"}, nil)
	check(err)
	return g
}

func (g *hubGateway) Dial(ctx context.Context, name string) (*agent.Client, error) {
	if _, err := g.hub.Get(ctx, alice, name); err != nil {
		return nil, g.hub.Public(err)
	}
	return agent.NewClient(name, func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return nil, err
		}
		g.running.Go(func() { _ = g.hub.Stream(context.Background(), alice, name, far) }) // ends with near
		return near, nil
	}, func(ctx context.Context) (*connect.Conn, error) { return g.hub.Upstream(ctx, alice, name, nil) }), nil
}

func (g *hubGateway) Command(ctx context.Context, words ...string) ([]byte, error) {
	var out bytes.Buffer
	if code := command.Run(ctx, &command.Env{Hub: g.hub, Principal: alice, Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard}, words); code != 0 {
		var failed struct{ Error *agent.Error }
		if err := json.Unmarshal(out.Bytes(), &failed); err != nil || failed.Error == nil {
			return nil, errors.New("exit without a reason: " + out.String())
		}
		return nil, failed.Error
	}
	return out.Bytes(), nil
}

// world is a task with a scripted model.
type world struct {
	t       *testing.T
	g       *hubGateway
	model   *modeltest.Server
	options task.Options
	events  []task.Event
	words   strings.Builder
	output  bytes.Buffer
	waits   []time.Duration // between tries
}

const key = "sk-secret-of-the-test"

// newWorld has a model that answers with steps.
func newWorld(t *testing.T, steps ...modeltest.Step) *world {
	t.Helper()
	w := &world{t: t, g: newGateway(t), model: modeltest.New(steps...)}
	server := httptest.NewServer(w.model)
	t.Cleanup(server.Close)
	w.options = task.Options{Gateway: w.g, Sandbox: "box", Session: "task-1", Task: "do it", Dir: "/tmp",
		Endpoint: task.Endpoint{URL: server.URL + "/v1", Key: key, Model: "scripted", Timeout: 30 * time.Second,
			Pause: func(_ context.Context, d time.Duration) error { w.waits = append(w.waits, d); return nil }},
		Tell:   func(e task.Event) { w.events = append(w.events, e) },
		Words:  func(s string) { w.words.WriteString(s) },
		Output: &w.output}
	return w
}

// run does the task, checks how it ended and that nothing of it is left in the sandbox, and that the key is nowhere.
func (w *world) run(want task.Ended) task.Outcome {
	w.t.Helper()
	return w.runIn(w.t.Context(), want)
}

func (w *world) runIn(ctx context.Context, want task.Ended) task.Outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the test takes too long"))
	defer cancel()
	o, err := task.Run(ctx, w.options)
	if err != nil || o.Ended != want {
		w.t.Fatalf("ended %q: %+v, %v; events %+v", o.Ended, o, err, w.events)
	}
	sessions, err := w.g.hub.Sessions(w.t.Context(), alice, "box")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range sessions {
		if strings.HasPrefix(s.Name, "task-") && s.State.Phase != wire.PhaseDead {
			w.t.Errorf("session %s is left, %s", s.Name, s.State.Phase)
		}
	}
	all, err := json.Marshal([]any{w.events, o})
	if err != nil {
		w.t.Fatal(err)
	}
	if strings.Contains(string(all)+w.words.String()+w.output.String(), key) {
		w.t.Errorf("the key is told: %s", all)
	}
	return o
}

// call is a step with one call.
func call(tool string, arguments any) modeltest.Step {
	return modeltest.Step{Calls: []modeltest.Call{one(tool, arguments)}}
}

func one(tool string, arguments any) modeltest.Call {
	text, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return modeltest.Call{Name: tool, Arguments: string(text)}
}

type args = map[string]any

func sh(command string) modeltest.Step { return call("run", args{"command": command}) }

func done() modeltest.Step { return call("done", args{"message": "all is well"}) }

func expect(s modeltest.Step, pattern string) modeltest.Step {
	s.Expect = pattern
	return s
}
