package agent

import (
	"context"
	"io"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Call is one thing to do in a shell. Exactly one of Command, Text and Keys is set.
type Call struct {
	Command string   // shell text of any length, given to the shell as data when it is at its prompt
	Text    string   // typed to the program, with Enter unless Raw
	Raw     bool     // Text without Enter
	Answer  bool     // with Text or Keys: only to a program that asks, see [Shell.Answer]
	Keys    []string // named keys, "^C", "Up", "Enter", "F1", and single characters, "a"; not text

	Timeout   time.Duration // 0 is 120 s, less if ctx ends before; negative is none but ctx
	Kill      bool          // with Command: interrupt what still runs at the deadline
	Hold      bool          // wait for a keyboard that a person holds, instead of failing with keyboard_held
	MaxOutput int           // bytes of Result.Output; 0 is 32 KiB, −1 all, up to 64 MiB of the log; where it cannot be read, Notes say so

	// Screen says when Result.Screen is what the terminal shows; empty is ScreenAuto.
	Screen ShowScreen

	// Op makes the call exactly-once: repeated with the same Op, on this connection or another, it returns the first one's
	// result and does nothing again. It is 128 bits in hex; empty means that the library makes one, for its own reconnects.
	Op string

	// Incarnation, with Op, is what [Shell.Incarnation] was when the call was made first. A session that does not know the call, and
	// has another shell by now, does not make it: the Result is lost. Without it a call that nobody remembers, as after a restart of
	// the sandbox, is a new one.
	Incarnation string

	// Stdout, with Command, receives the exact bytes that it prints, as they come; nothing after Do has returned. It must
	// not block for long: the whole shell waits for it. Its error is ignored.
	Stdout io.Writer
}

// NewOp returns a fresh Call.Op: 128 random bits in hex.
func NewOp() string { return wire.NewOp() }

const defaultTimeout = 120 * time.Second

// callTimeout is how long the session shall follow a call, in milliseconds as a request has them: what the caller said, but
// not past the end of ctx, so that partial output comes back instead of a bare context error.
func callTimeout(ctx context.Context, d time.Duration) int64 {
	if d == 0 {
		d = defaultTimeout
	}
	if end, bounded := ctx.Deadline(); bounded {
		left := time.Until(end)
		left -= min(left/10, 250*time.Millisecond) // for the way back
		if left = max(left, time.Millisecond); d < 0 || left < d {
			d = left
		}
	}
	if d < 0 {
		return -1
	}
	return max(d.Milliseconds(), 1)
}

// verb is what a call asks for, or the caller's mistake.
func (c Call) verb() (wire.Verb, error) {
	set := 0
	verb := wire.VerbType
	if c.Text != "" {
		set++
	}
	if c.Command != "" {
		set, verb = set+1, wire.VerbRun
	}
	if c.Keys != nil {
		set, verb = set+1, wire.VerbKeys
	}
	switch {
	case set != 1:
		return "", &Error{Code: CodeUsage, Message: "a call has one of Command, Text and Keys", Hint: `to press Enter alone, use Keys "Enter"`}
	case verb == wire.VerbRun && c.Answer:
		return "", &Error{Code: CodeUsage, Message: "Answer is for Text and Keys"}
	case verb != wire.VerbRun && (c.Stdout != nil || c.Kill):
		return "", &Error{Code: CodeUsage, Message: "Stdout and Kill are for a Command"}
	}
	return verb, nil
}

func (c Call) request(ctx context.Context, verb wire.Verb) wire.Request {
	r := wire.Request{Verb: verb, Op: c.Op, Incarnation: c.Incarnation, TimeoutMS: callTimeout(ctx, c.Timeout), Kill: c.Kill, Hold: c.Hold, Answer: c.Answer, MaxOutput: c.MaxOutput, Screen: wire.ShowScreen(c.Screen)}
	switch verb {
	case wire.VerbKeys:
		r.Keys = c.Keys
	case wire.VerbRun:
		r.Text = c.Command
	default:
		r.Text, r.Raw = c.Text, c.Raw
	}
	return r
}
