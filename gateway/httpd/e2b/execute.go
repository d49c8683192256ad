package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// execution is the request of run_code.
type execution struct {
	Code     string            `json:"code"`
	Context  *string           `json:"context_id"`
	Language *string           `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// execute runs code and streams what it does, a JSON object on each line. Calls of one context
// wait for each other. When the client disconnects, as the SDKs do at their timeout, its code is
// interrupted.
func (ip *interpreter) execute(w http.ResponseWriter, r *http.Request, v *visit,
	in *kernels.Lease) error {
	var ask execution
	if err := rest.DecodeOpen(w, r, &ask); err != nil {
		return err
	}
	if err := onlyPython(ask.Language); err != nil {
		return err
	}
	for key, value := range ask.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return &apiError{http.StatusNotFound,
				fmt.Sprintf("env_vars: %.64q is not a valid variable", key)}
		}
	}
	leave, err := v.stream()
	if err != nil {
		return err
	}
	defer leave()
	name := defaultContext
	if ask.Context != nil && *ask.Context != "" {
		name = *ask.Context
	}
	nb, err := v.named(r.Context(), in, name)
	if err != nil {
		return err
	}
	leaveTurn, err := nb.take(r.Context())
	if err != nil {
		return err
	}
	defer leaveTurn()
	c, err := v.kernelOf(r.Context(), in, name, nb, "~")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := &outputWriter{w: w, c: http.NewResponseController(w), failed: cancel}
	if len(ask.Env) > 0 {
		undo, err := withEnv(ctx, c, ask.Env)
		if err != nil {
			return err
		}
		defer undo()
	}
	record := ip.hub.Relay.Recorder(v.who, v.name)
	t.begin()
	res, err := c.Execute(ctx, python.Call{Code: ask.Code, Timeout: maxRun, NoInput: true,
		Passing: true, Output: t.output})
	nb.ready = time.Now()
	if res.Ended != agent.EndedDone || res.Fresh || res.Restart {
		nb.ready = time.Time{} // the next kernel must change to its directory again
	}
	exit := 0
	if !res.OK {
		exit = 1
	}
	record(gateway.ExecEvent{Command: "run_code in context " + name + ": " + ask.Code, Exit: exit,
		Bytes: t.bytes})
	t.end(res, err)
	return nil
}

// withEnv sets variables of the kernel until undo is called.
func withEnv(ctx context.Context, c *python.Context, env map[string]string) (undo func(),
	err error) {
	run := func(ctx context.Context, code string) (python.Result, error) {
		ctx, cancel := context.WithTimeout(ctx, prepareTime)
		defer cancel()
		return c.Execute(ctx, python.Call{Code: code, Silent: true, NoInput: true})
	}
	res, err := run(ctx, cell(setEnv, map[string]any{"env": env}))
	switch {
	case err != nil:
		return nil, err
	case !res.OK:
		return nil, wire.Errorf(wire.CodeUnavailable, "env_vars: context %s: %s", c.Name(),
			cmp.Or(res.Why, string(res.Ended)))
	}
	// Undo also after a disconnect. A kernel that died has no variables left.
	return func() { _, _ = run(context.WithoutCancel(ctx), cell(unsetEnv, map[string]any{})) }, nil
}

// Lines of the answer in the SDKs' format.
type (
	printed struct {
		Type string `json:"type"` // stdout, stderr
		Text string `json:"text"`
		Time int64  `json:"timestamp"` // Unix, in nanoseconds
	}
	raised struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	}
	counted struct {
		Type  string `json:"type"`
		Count int    `json:"execution_count"`
	}
	ended struct {
		Type string `json:"type"`
	}
)

// formats maps MIME types to the SDKs' names. Other types are returned as extra.
var formats = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg",
	"application/pdf": "pdf", "text/latex": "latex", "application/javascript": "javascript",
	"application/json": "json",
}

// shown converts a result for the SDKs.
func shown(o python.Output) map[string]any {
	line := map[string]any{"type": "result", "is_main_result": o.Type == python.Value}
	extra := map[string]json.RawMessage{}
	for mime, data := range o.Data {
		switch name := formats[mime]; name {
		case "":
			extra[mime] = data
		case "json":
			line[name] = data
		default:
			line[name] = o.Text(mime)
		}
	}
	// E2B shows a string itself, not Python's literal.
	if text, ok := line["text"].(string); ok && len(text) > 1 && text[0] == '\'' &&
		text[len(text)-1] == '\'' {
		line["text"] = text[1 : len(text)-1]
	}
	line["extra"] = extra
	return line
}

// outputWriter writes the answer. The kernel waits for it, so that nothing accumulates for a slow
// client.
type outputWriter struct {
	w      http.ResponseWriter
	c      *http.ResponseController
	failed func()
	bytes  int64
}

// begin sends the header before any output: the JavaScript SDK starts its timeout then.
func (t *outputWriter) begin() {
	t.w.Header().Set("Content-Type", "application/json")
	t.w.WriteHeader(http.StatusOK)
	if err := t.c.Flush(); err != nil {
		t.failed()
	}
}

// The server aborts an answer that a client does not read for a while. A client that reads slowly
// could still hold shared memory for hours. Therefore each line has a deadline: slack plus its size
// at the slowest rate.
const (
	slack   = time.Minute
	slowest = 256 << 10 // bytes a second
	pieces  = 64 << 10  // bytes between checks of the deadline
)

func (t *outputWriter) line(v any) {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	lines.SetEscapeHTML(false)
	err := lines.Encode(v)
	for late := time.Now().Add(slack + time.Duration(text.Len()/slowest)*time.Second); err == nil &&
		text.Len() > 0; {
		if _, err = t.w.Write(text.Next(pieces)); err == nil && time.Now().After(late) {
			err = errSlow
		}
	}
	if err == nil {
		err = t.c.Flush()
	}
	if err != nil {
		t.failed()
	}
}

var errSlow = errors.New("the client reads too slowly")

func (t *outputWriter) output(o python.Output) {
	switch o.Type {
	case python.Stdout, python.Stderr:
		t.bytes += int64(len(o.Chars))
		t.line(printed{string(o.Type), o.Chars, time.Now().UnixNano()})
	case python.Failure:
		t.line(raised{"error", o.Name, o.Value, strings.Join(o.Traceback, "\n")})
	case python.Value, python.Display:
		t.line(shown(o))
	}
}

// end writes how the execution ended.
func (t *outputWriter) end(res python.Result, err error) {
	note := func(text string) {
		t.line(printed{"stderr", "sandboxd: " + text + "\n", time.Now().UnixNano()})
	}
	if res.Dropped > 0 {
		note(fmt.Sprintf("%d outputs dropped: larger than 32 MiB, or no memory left for large ones",
			res.Dropped))
	}
	if res.Fresh {
		note("the code ran in a new kernel: the state of earlier calls is lost")
	}
	switch {
	case err != nil:
		t.line(raised{"error", "ExecutionInterrupted", "the call ended before its code did", ""})
	case res.Ended == agent.EndedDead:
		t.line(raised{"error", "KernelDied", res.Why +
			": the state of earlier calls is lost, and the next call gets a new kernel", ""})
	case res.Ended == agent.EndedDeadline:
		t.line(raised{"error", "ExecutionTimeout",
			fmt.Sprintf("the code ran for %v and was interrupted", maxRun), ""})
	}
	if res.Count > 0 {
		t.line(counted{"number_of_executions", res.Count})
	}
	t.line(ended{"end_of_execution"})
}
