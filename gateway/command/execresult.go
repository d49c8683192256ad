package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Lengths of each output in an execResult, in bytes.
const (
	defaultExecOutput = 1 << 20
	maxExecOutput     = 16 << 20
)

// execResult is the output of exec --json. Fields that a Result also has mean the same there.
type execResult struct {
	Sandbox   string        `json:"sandbox"`
	ExitCode  int           `json:"exit_code"`
	Stdout    string        `json:"stdout"`    // invalid UTF-8 is replaced
	Stderr    string        `json:"stderr"`    // invalid UTF-8 is replaced
	Truncated bool          `json:"truncated"` // the end of Stdout or Stderr is omitted
	ElapsedMS int64         `json:"elapsed_ms"`
	Notes     []string      `json:"notes"`
	Denied    []wire.Denial `json:"denied"` // connections that were blocked while the command ran
}

// execText runs a command and prints its output, and the blocked connections to stderr.
func (env *Env) execText(ctx context.Context, name, command string, o execOptions) error {
	blocked := env.Hub.Relay.Blocked(env.Principal, name)
	err := env.exec(ctx, name, command, o)
	if _, exited := errors.AsType[exitError](err); ctx.Err() != nil || err != nil && !exited {
		return err
	}
	newline := "\n"
	if o.tty {
		newline = "\r\n" // the caller's terminal is in raw mode
	}
	say := func(format string, args ...any) {
		fmt.Fprint(env.Stderr, text.Lines(fmt.Sprintf(format, args...)), newline)
	}
	denied, _ := blocked(ctx)
	env.reportDenied(say, wire.Target{Sandbox: name}, denied)
	return err
}

// execJSON runs a command and prints its execResult.
func (env *Env) execJSON(ctx context.Context, name, command string, o execOptions) error {
	if o.most == 0 {
		o.most = defaultExecOutput
	}
	o.most = min(o.most, maxExecOutput)
	stdout, stderr := &head{most: o.most}, &head{most: o.most}
	captured := *env
	captured.Stdout, captured.Stderr = stdout, stderr
	began := time.Now()
	blocked := env.Hub.Relay.Blocked(env.Principal, name)
	err := captured.exec(ctx, name, command, o)
	exit, exited := errors.AsType[exitError](err)
	if ctx.Err() != nil || err != nil && !exited {
		return err
	}
	res := execResult{Sandbox: name, ExitCode: int(exit), Stdout: stdout.text(),
		Stderr: stderr.text(), Truncated: stdout.cut || stderr.cut,
		ElapsedMS: time.Since(began).Milliseconds(), Notes: []string{}}
	var complete bool
	if res.Denied, complete = blocked(ctx); !complete {
		res.Notes = append(res.Notes, wire.NoteDenied)
	}
	return errors.Join(env.printJSON(res), err)
}

// head keeps the first bytes that are written to it, and takes the others.
type head struct {
	most int64
	kept bytes.Buffer
	cut  bool
}

var _ io.Writer = (*head)(nil)

func (h *head) Write(p []byte) (int, error) {
	room := h.most - int64(h.kept.Len())
	if int64(len(p)) > room {
		h.cut = true
	}
	h.kept.Write(p[:min(int64(len(p)), room)])
	return len(p), nil
}

func (h *head) text() string { return strings.ToValidUTF8(h.kept.String(), "\uFFFD") }
