package task_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/agent/task"
	"github.com/sandboxd/sandboxd/agent/task/modeltest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a task with a scripted model.
type world struct {
	t       *testing.T
	g       *agenttest.Gateway
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
	w := &world{t: t, g: agenttest.New(t), model: modeltest.New(steps...)}
	server := httptest.NewServer(w.model)
	t.Cleanup(server.Close)
	w.options = task.Options{
		Gateway: w.g,
		Sandbox: "box",
		Session: "task-1",
		Task:    "do it",
		Dir:     "/tmp",
		Endpoint: task.Endpoint{
			URL:     server.URL + "/v1",
			Key:     key,
			Model:   "scripted",
			Timeout: 30 * time.Second,
			Pause: func(_ context.Context, d time.Duration) error {
				w.waits = append(w.waits,
					d)
				return nil
			},
		},
		Tell:   func(e task.Event) { w.events = append(w.events, e) },
		Words:  func(s string) { w.words.WriteString(s) },
		Output: &w.output,
	}
	return w
}

// run does the task, checks how it ended and that nothing of it is left in the sandbox, and that
// the key is nowhere.
func (w *world) run(want task.Ended) task.Outcome {
	w.t.Helper()
	return w.runIn(w.t.Context(), want)
}

func (w *world) runIn(ctx context.Context, want task.Ended) task.Outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		2*time.Minute,
		errors.New("the test takes too long"),
	)
	defer cancel()
	o, err := task.Run(ctx, w.options)
	if err != nil || o.Ended != want {
		w.t.Fatalf("ended %q: %+v, %v; events %+v", o.Ended, o, err, w.events)
	}
	sessions, err := w.g.Hub.Sessions.List(w.t.Context(), agenttest.Alice, agenttest.Box)
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
		w.t.Errorf("the key is visible: %s", all)
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
