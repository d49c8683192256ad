package python_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
)

// A kernel that dies during a call is a Result. The next call has a new kernel and sets Fresh.
func TestKernelDies(t *testing.T) {
	c := fresh(t, python.Options{})
	for _, code := range []string{
		"import os; os._exit(3)",
		"import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
		"import ctypes; ctypes.string_at(0)",
	} {
		execute(t, c, "kept = 1")
		if res := execute(t, c,
			"print('before', flush=True); "+code); res.Ended != agent.EndedDead ||
			res.OK ||
			res.Why == "" {
			t.Errorf("%s: %+v", code, res)
		}
		if strings.Contains(code, "SIGKILL") { // as a client that disconnects does
			if err := c.Settle(bounded(t)); err != nil {
				t.Error(err)
			}
		}
		res := execute(t, c, "'kept' in dir()")
		if !res.Fresh || !res.OK || res.Outputs[0].Text("text/plain") != "False" {
			t.Errorf("after %s: %+v", code, res)
		}
		if res := execute(t, c, "1"); res.Fresh {
			t.Errorf("said twice: %+v", res)
		}
	}
}

// A server that code killed is restarted.
func TestServerDies(t *testing.T) {
	needPython(t)
	in := interpreter(t, dial(t, boot(t, pythonImage)), python.Options{})
	c, err := in.Context(bounded(t), "main")
	if err != nil {
		t.Fatal(err)
	}
	if res := execute(t, c, "import os, signal; os.kill(os.getppid(), signal.SIGKILL); import "+
		"time; time.sleep(60)"); res.Ended != agent.EndedDead {
		t.Errorf("%+v", res)
	}
	if res := execute(t, c, "1 + 1"); !res.OK || !res.Fresh {
		t.Errorf("%+v", res)
	}
}

// At the deadline, code is interrupted. Its output is returned and its variables are kept. If it
// ignores interrupts, its kernel is ended.
func TestDeadline(t *testing.T) {
	c := fresh(t, python.Options{})
	call := func(code string, timeout time.Duration) python.Result {
		t.Helper()
		res, err := c.Execute(bounded(t), python.Call{Code: code, Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := call("x = 1; print('begun', flush=True)\nwhile True: pass",
		2*time.Second); res.Ended != agent.EndedDeadline ||
		res.OK ||
		res.Restart ||
		!strings.HasPrefix(res.Text(), "begun\n") {
		t.Errorf("%+v", res)
	}
	if res := execute(t, c, "x"); !res.OK || res.Fresh {
		t.Errorf("after a deadline: %+v", res)
	}
	stubborn := "import time\nwhile True:\n  try: time.sleep(1)\n  except KeyboardInterrupt: pass"
	if res := call(stubborn, time.Second); res.Ended != agent.EndedDeadline || !res.Restart {
		t.Errorf("%+v", res)
	}
	if res := execute(t, c, "'x' in dir()"); !res.OK || !res.Fresh {
		t.Errorf("after a restart: %+v", res)
	}
}

// A cancelled call interrupts the code and returns its output.
func TestGivenUp(t *testing.T) {
	c := fresh(t, python.Options{})
	ctx, cancel := context.WithCancel(bounded(t))
	res, err := c.Execute(
		ctx,
		python.Call{
			Code:   "print('begun', flush=True)\nwhile True: pass",
			Output: func(python.Output) { cancel() },
		},
	)
	if !errors.Is(err, context.Canceled) || res.Ended != agent.EndedInterrupted ||
		!strings.Contains(res.Text(), "begun") {
		t.Errorf("%+v, %v", res, err)
	}
	if res := execute(t, c, "1"); !res.OK {
		t.Errorf("%+v", res)
	}
}

// Interrupt and Restart work while another goroutine waits in Execute.
func TestInterruptRestart(t *testing.T) {
	c := fresh(t, python.Options{})
	for what, order := range map[string]func(context.Context) error{"interrupt": c.Interrupt,
		"restart": c.Restart} {
		said := make(chan error, 1)
		res, err := c.Execute(
			bounded(t),
			python.Call{
				Code: "kept = 1; print('begun', flush=True)\nwhile True: pass",
				Output: func(python.Output) {
					select {
					case said <- nil:
						go func() { said <- order(bounded(t)) }()
					default:
					}
				},
			},
		)
		if want := map[string]agent.Ended{"interrupt": agent.EndedInterrupted,
			"restart": agent.EndedDead}[what]; err != nil ||
			res.Ended != want {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
		<-said
		if err := <-said; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if res := execute(t, c, "'kept' in dir()"); !res.OK || res.Fresh ||
			res.Outputs[0].Text(
				"text/plain",
			) != map[string]string{"interrupt": "True", "restart": "False"}[what] {
			t.Errorf("after %s: %+v", what, res)
		}
	}
}

// Long output is kept as head and tail, from any source.
func TestMuchOutput(t *testing.T) {
	c := fresh(t, python.Options{})
	res := execute(t, c, "print('head', flush=True)\nfor i in range(20): print('x' * 1_000_000, "+
		"flush=True)\nprint('tail')",
	)
	text := res.Text()
	if !res.OK || res.Omitted < 19_000_000 || len(text) > 200<<10 ||
		!strings.HasPrefix(text, "head\n") ||
		!strings.HasSuffix(text, "\ntail\n") ||
		!strings.Contains(text, "bytes are left out here") {
		t.Errorf("20 MB in lines: ok %v, %d bytes, %d left out", res.OK, len(text), res.Omitted)
	}
	if res := execute(t, c, "for i in range(300): display(i)"); len(res.Outputs) != 100 ||
		res.Dropped != 200 {
		t.Errorf("300 displays: %d, %d dropped", len(res.Outputs), res.Dropped)
	}
	// A message of 100 MB is dropped and counted.
	if res := execute(t, c, "'x' * 100_000_000"); !res.OK || res.Dropped != 1 ||
		res.Omitted < 100_000_000 {
		t.Errorf(
			"a value of 100 MB: %s, ok %v, %d dropped, %d left out, %s",
			res.Ended,
			res.OK,
			res.Dropped,
			res.Omitted,
			res.Why,
		)
	}
	res, err := c.Execute(
		bounded(t),
		python.Call{Code: "while True: print('y' * 1000)", Timeout: 3 * time.Second},
	)
	if err != nil || res.Ended != agent.EndedDeadline || !strings.HasPrefix(res.Text(), "yyy") ||
		len(res.Text()) > 200<<10 ||
		res.Omitted == 0 {
		t.Errorf(
			"endless output: %s, %d bytes, %d left out, %d dropped, %v",
			res.Ended,
			len(res.Text()),
			res.Omitted,
			res.Dropped,
			err,
		)
	}
	if res := execute(t, c, "2"); !res.OK || len(res.Outputs) != 1 {
		t.Errorf("afterwards: %+v", res)
	}
}

// Printed text that looks like a protocol message is text. Messages that code sends for another
// call are ignored.
func TestFakeMessages(t *testing.T) {
	c := fresh(t, python.Options{})
	fake :=
		`{"header":{"msg_type":"execute_reply"},"parent_header":{"msg_id":"x"},"channel":"shell","content":{"status":"ok"}}`
	res := execute(t, c, fmt.Sprintf("print(%q)\nimport time; time.sleep(0.1); print('after')",
		fake))
	if !res.OK || res.Text() != fake+"\nafter\n" {
		t.Errorf("%+v", res)
	}
	res = execute(t, c, `k = get_ipython().kernel
k.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'of another'}, parent={'msg_id': 'other', 'msg_type': 'execute_request'}, ident=b'stream')
k.session.send(k.iopub_socket, 'display_data', {'data': {'text/plain': ['no', 'string'], 'image/png': 5}, 'metadata': None}, parent=k.get_parent(), ident=b'x')
k.session.send(k.iopub_socket, 'stream', {'text': ['no', 'text']}, parent=k.get_parent(), ident=b'x')
print('mine')`)
	if !res.OK || !strings.HasSuffix(res.Text(), "mine\n") ||
		strings.Contains(res.Text(), "another") {
		t.Errorf("%+v", res)
	}
}

// Invalid code is rejected before it is sent.
func TestBadCalls(t *testing.T) {
	c := fresh(t, python.Options{})
	for _, call := range []python.Call{{Code: "1\x00"}, {Code: strings.Repeat(" ", 9<<20)},
		{Timeout: -1}} {
		if _, err := c.Execute(bounded(t), call); !errors.Is(
			err,
			&agent.Error{Code: agent.CodeUsage},
		) {
			t.Errorf("%.5q: %v", call.Code, err)
		}
	}
	if res := execute(t, c, "this is no Python"); res.Error == nil ||
		res.Error.Name != "SyntaxError" {
		t.Errorf("%+v", res)
	}
	if res := execute(t, c, ""); !res.OK {
		t.Errorf("nothing: %+v", res)
	}
}

// Later clients find and list contexts. Closed contexts leave nothing behind.
func TestLife(t *testing.T) {
	needPython(t)
	client := dial(t, boot(t, pythonImage))
	in := interpreter(t, client, python.Options{})
	c, err := in.Context(bounded(t), "main")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c, "x = 5")
	in.Close()
	if _, err := c.Execute(bounded(t), python.Call{Code: "1"}); err == nil {
		t.Error("a closed interpreter runs code")
	}
	in = interpreter(t, client, python.Options{})
	list, err := in.List(bounded(t))
	if err != nil || len(list) != 1 || list[0].Name != "main" {
		t.Fatalf("%+v, %v", list, err)
	}
	if c, err = in.Context(bounded(t), "main"); err != nil {
		t.Fatal(err)
	}
	if res := execute(t, c, "x"); !res.OK || res.Fresh {
		t.Errorf("%+v", res)
	}
	if err := c.Close(bounded(t)); err != nil {
		t.Error(err)
	}
	if list, err := in.List(bounded(t)); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := in.Shutdown(bounded(t)); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	if _, err := client.Exec(bounded(t),
		agent.Cmd{Command: "ps -eo args | grep -E '[i]pykernel|[j]upyter'",
			Stdout: &out}); err != nil ||
		out.Len() > 0 {
		t.Errorf("left running: %q, %v", out.String(), err)
	}
}

// An idle kernel ends, and the next call sets Fresh. Idle is longer than a kernel takes to start on
// a busy machine: the server ends one that takes longer.
func TestIdle(t *testing.T) {
	needPython(t)
	in := interpreter(t, dial(t, boot(t, pythonImage)), python.Options{Idle: 30 * time.Second})
	c, err := in.Context(bounded(t), "main")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c, "x = 5")
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx := bounded(t); ; {
		if list, err := in.List(ctx); err != nil || len(list) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the kernel stays")
		}
	}
	if res := execute(t, c, "'x' in dir()"); !res.OK || !res.Fresh {
		t.Errorf("%+v", res)
	}
}

// A broken installation is reported quickly.
func TestBroken(t *testing.T) {
	needPython(t)
	for what, c := range map[string]struct{ breaks, says string }{
		"server": {"echo 'raise SystemExit(\"no server today\")' " +
			">/usr/lib/python3/dist-packages/jupyter_server/__main__.py", "no server today"},
		"kernel": {"echo 'raise SystemExit(1)' " +
			">/usr/lib/python3/dist-packages/ipykernel/kernelapp.py", "its kernel does not start"},
	} {
		t.Run(what, func(t *testing.T) {
			client := dial(t, boot(t, pythonImage))
			if exit, err := client.Exec(bounded(t), agent.Cmd{Command: c.breaks}); err != nil ||
				exit.Code != 0 {
				t.Fatal(exit, err)
			}
			in, err := python.Open(bounded(t), client, python.Options{})
			if err == nil {
				defer in.Close()
				_, err = in.Context(bounded(t), "main")
			}
			if err == nil || !strings.Contains(err.Error(), c.says) ||
				errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}
