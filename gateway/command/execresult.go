package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxExecOutput is the longest output in an execResult, in bytes.
const maxExecOutput = 16 << 20

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

// print runs the command and prints its output, and the blocked connections to stderr.
func (x *execution) print(ctx context.Context) error {
	env := x.env
	blocked := env.Hub.Relay.Blocked(env.Principal, x.sandbox)
	err := x.run(ctx)
	if _, exited := errors.AsType[exitError](err); ctx.Err() != nil || err != nil && !exited {
		return err
	}
	newline := "\n"
	if x.o.tty {
		newline = "\r\n" // the caller's terminal is in raw mode
	}
	say := func(format string, args ...any) {
		fmt.Fprint(env.Stderr, text.Lines(fmt.Sprintf(format, args...)), newline)
	}
	denied, _ := blocked(ctx)
	env.reportDenied(say, wire.Target{Sandbox: x.sandbox}, denied)
	return err
}

// json runs the command and prints its execResult.
func (x *execution) json(ctx context.Context) error {
	stdout, stderr := &text.Head{Limit: x.o.most}, &text.Head{Limit: x.o.most}
	x.stdout, x.stderr = stdout, stderr
	began := time.Now()
	blocked := x.env.Hub.Relay.Blocked(x.env.Principal, x.sandbox)
	err := x.run(ctx)
	exit, exited := errors.AsType[exitError](err)
	if ctx.Err() != nil || err != nil && !exited {
		return err
	}
	res := execResult{Sandbox: x.sandbox, ExitCode: int(exit), Stdout: stdout.String(),
		Stderr: stderr.String(), Truncated: stdout.Cut || stderr.Cut,
		ElapsedMS: time.Since(began).Milliseconds(), Notes: []string{}}
	var complete bool
	if res.Denied, complete = blocked(ctx); !complete {
		res.Notes = append(res.Notes, wire.NoteDenied)
	}
	return errors.Join(x.env.printJSON(res), err)
}
