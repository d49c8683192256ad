package agentrun

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

//go:embed plots.py
var plots string

const (
	workDir = "/code" // as in AgentRun
	script  = "main.py"

	// For output under way when the code has ended; processes that hold it open longer are killed.
	lingering  = 50 * time.Millisecond
	killWithin = 5 * time.Second
	maxAnswer  = 64 << 10
	exitKilled = 128 + 9
)

// conn is a connection to a call's sandbox.
type conn struct {
	r      *Runner
	p      gateway.Principal
	name   string
	client *ssh.Client // nil in the zero value
}

func dial(ctx context.Context, r *Runner, p gateway.Principal, name string) (*conn, error) {
	b := &conn{r: r, p: p, name: name}
	up, err := r.o.Hub.Relay.Open(ctx, p, name, nil)
	if err != nil {
		return b, err
	}
	b.client = up.Client()
	return b, nil
}

// close ends the connection. A second call does nothing.
func (b *conn) close() {
	if b.client != nil {
		b.client.Close()
		_ = b.client.Wait()
	}
}

// ask runs a command of the daemon and returns its output.
func (b *conn) ask(ctx context.Context, command, input string) (string, error) {
	out := &output{head: maxAnswer}
	err := connect.Run(ctx, b.client, connect.Command{Line: command,
		Stdin: strings.NewReader(input), Stdout: out})
	if _, ok := errors.AsType[*connect.ExitError](err); ok {
		return "", &wire.Error{Code: wire.CodeUnavailable, Message: "image cannot run Python: " +
			err.Error(),
			Hint: "set agentrun.image to an image with python3 and pip"}
	}
	if err != nil {
		return "", fmt.Errorf("run in %s: %w", b.name, err)
	}
	return out.String(), nil
}

// endMark is the line with which the wrapping shell reports the code's exit code.
var endMark = regexp.MustCompile(`(?m)^end ([0-9]{1,3})\n`)

// marks detects the end of the code. The wrapping shell reports it on standard error, to which the
// code has no access.
type marks struct {
	once sync.Once
	end  chan struct{} // closed after code is set
	code int

	mu   sync.Mutex
	text []byte // guarded by mu
}

func (m *marks) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.text) < maxAnswer {
		m.text = append(m.text, p...)
	}
	if found := endMark.FindSubmatch(m.text); found != nil {
		m.once.Do(func() {
			m.code, _ = strconv.Atoi(string(found[1]))
			close(m.end)
		})
	}
	return len(p), nil
}

// exit returns the code's exit code. ok is false if neither the shell nor its exit tells it. The
// shell's word comes first: it may be killed with the processes that hold the output open.
func (m *marks) exit(err error) (code int, ok bool) {
	select {
	case <-m.end:
		return m.code, true
	default:
	}
	if err == nil {
		return 0, true
	}
	exit, ok := errors.AsType[*connect.ExitError](err)
	switch {
	case !ok:
		return 0, false
	case exit.Signal != "":
		return exitKilled, true
	}
	return exit.Status, true
}

func (m *marks) files() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Contains(m.text, []byte("files"))
}

// python runs the code as a file in the working directory, so that tracebacks show its lines. Its
// standard input is empty: input() raises EOFError.
func (b *conn) python(ctx context.Context, code string) (Result, error) {
	input, env := code, "PYTHONUNBUFFERED=1 PYTHONUTF8=1"
	place := fmt.Sprintf("head -c %d >%s", len(code), script)
	if strings.Contains(code, "matplotlib") {
		place += fmt.Sprintf(
			" && mkdir -p /tmp/.plots && head -c %d >/tmp/.plots/sandboxd_plots.py", len(plots))
		input += plots
		env += " MPLBACKEND=module://sandboxd_plots MPLCONFIGDIR=/tmp/.plots PYTHONPATH=/tmp/.plots"
	}
	command := fmt.Sprintf(
		"mkdir -p %[1]s && cd %[1]s && %[2]s || { echo none >&2; exit 1; }\n%[3]s python3 %[4]s "+
			"</dev/null 2>&1\n"+
			`s=$?; for f in * .[!.]*; do case $f in %[4]s|'*'|'.[!.]*'|__pycache__) ;; *) echo files >&2; break;; esac; done; echo end $s >&2; exit $s`, workDir, place, env, script)
	out, said := &output{head: headBytes, tail: tailBytes}, &marks{end: make(chan struct{})}
	running, err := connect.Start(ctx, b.client,
		connect.Command{Line: command, Stdin: strings.NewReader(input), Stdout: out, Stderr: said})
	if err != nil {
		return Result{}, fmt.Errorf("run in %s: %w", b.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- running.Wait() }() // ends with ctx, or the connection
	timer := time.NewTimer(b.r.o.Timeout)
	defer timer.Stop()
	timedOut := false
	select {
	case err = <-ended:
	case <-said.end:
		select {
		case err = <-ended:
		case <-time.After(lingering):
			// background processes hold the output open: they end with the call
			err = b.kill(ctx, ended)
		}
	case <-timer.C:
		timedOut = true
		err = b.kill(ctx, ended)
	}
	if ctx.Err() != nil {
		// The code has begun.
		return Result{}, attach.CutOff(context.Cause(ctx), b.r.o.Hub.Public(context.Cause(ctx)))
	}
	result := Result{Status: OK, Output: out.String(), Truncated: out.cut()}
	status, known := said.exit(err)
	switch {
	case timedOut:
		result.Status = TimedOut
		result.Output = line(result.Output, "Execution timed out.")
	case errors.Is(err, connect.ErrLost):
		return Result{}, b.r.o.Hub.Relay.Lost(ctx, b.p, b.name)
	case known:
		result.ExitCode = &status
		if status != 0 {
			result.Status = Failed
		}
		if status == exitKilled {
			if err := b.whyKilled(ctx, &result); err != nil {
				return Result{}, err
			}
		}
	default:
		return Result{}, fmt.Errorf("run in %s: %w", b.name, err)
	}
	if said.files() || timedOut {
		if result.Artifacts, err = b.collect(ctx); err != nil {
			b.r.log.Warn("artifacts of a call lost", "sandbox", b.name, "err", err)
		}
	}
	return result, nil
}

// kill kills all processes in the sandbox, and waits for the end of the command. Earlier output is
// still delivered.
func (b *conn) kill(ctx context.Context, ended <-chan error) error {
	within, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	if _, err := b.r.o.Hub.Rescue(within, b.p, b.name); err != nil {
		b.r.log.Warn("kill of a call's processes failed", "sandbox", b.name, "err", err)
		b.client.Close()
	}
	select {
	case err := <-ended:
		return err
	case <-within.Done():
		b.client.Close()
		return <-ended
	}
}

// whyKilled sets OOMKilled if the backend reports a kill at the memory limit.
func (b *conn) whyKilled(ctx context.Context, result *Result) error {
	d, err := b.r.o.Hub.Describe(ctx, b.p, b.name)
	if err != nil {
		return err
	}
	if d.Used != nil && d.Used.OOMKills > 0 {
		result.Status = OOMKilled
		result.Output = line(result.Output, "Killed: memory limit exceeded.")
	}
	return nil
}

// line returns text with another line.
func line(text, more string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + more + "\n"
}

const (
	headBytes = 1536 << 10 // bytes kept of the beginning of the output
	tailBytes = 512 << 10  // bytes kept of its end
)

// output keeps the beginning and the end of what is written.
type output struct {
	head, tail int

	mu      sync.Mutex
	first   []byte // guarded by mu
	last    []byte // guarded by mu; up to twice tail
	dropped int64  // guarded by mu; bytes between the two
}

var _ io.Writer = (*output)(nil)

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(p)
	fits := min(n, o.head-len(o.first))
	o.first = append(o.first, p[:fits]...)
	o.last = append(o.last, p[fits:]...)
	if over := len(o.last) - o.tail; over > o.tail || o.tail == 0 && over > 0 {
		o.dropped += int64(over)
		o.last = o.last[:copy(o.last, o.last[over:])]
	}
	return n, nil
}

// cut reports whether bytes were dropped.
func (o *output) cut() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leftOutLocked() > 0
}

func (o *output) leftOutLocked() int64 { return o.dropped + int64(max(0, len(o.last)-o.tail)) }

// String returns the kept output as text, with a line where bytes were dropped.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.first
	if n := o.leftOutLocked(); n > 0 {
		text = fmt.Appendf(bytes.Clone(text), "\n[output truncated: %d bytes dropped]\n", n)
	}
	return strings.ToValidUTF8(string(append(text, o.last[max(0, len(o.last)-o.tail):]...)),
		"\uFFFD")
}
