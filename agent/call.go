package agent

import (
	"context"
	"io"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Call is one call of [Shell.Do]. Set exactly one of Command, Text and Keys.
type Call struct {
	// Command is shell code of any length, which may have several lines. The shell runs it when it
	// is at its prompt. It is passed as data and not typed.
	Command string

	// Text is typed to the program, followed by Enter unless Raw is set.
	Text string
	Raw  bool

	// Keys are named keys, such as "^C", "Up", "Enter" and "F1", and single characters, such as
	// "a".
	Keys []string

	// Answer, with Text or Keys, sends them only to a program that asks. See [Shell.Answer].
	Answer bool

	// Timeout bounds the call. 0 means 120 s, or until ctx ends if that is earlier. A negative
	// value means that only ctx bounds the call.
	Timeout time.Duration

	// Kill, with Command, interrupts the command if it still runs at the timeout.
	Kill bool

	// Adopt, with Command, runs it in the shell behind the program in front, if that is a relay
	// such as ssh and State.LooksLikeShell is set. What is there is asked to prove that it is a
	// shell: the call is rejected with not_prompt if it does not. At a prompt, Adopt changes
	// nothing: later calls do not need it.
	Adopt bool

	// Hold waits while a person holds the keyboard, instead of failing with keyboard_held.
	Hold bool

	// MaxOutput limits Result.Output, in bytes. 0 means 32 KiB. −1 means all output, up to 64 MiB
	// of the log. If the log cannot be read, Result.Notes says so.
	MaxOutput int

	// Screen says when Result.Screen is set. Empty means ScreenAuto.
	Screen ShowScreen

	// Op is an idempotency key: 128 bits in lower-case hex, see [NewOp]. A repeated call with the
	// same Op, on any connection, returns the first call's result and does nothing. Empty generates
	// one, so that the library can repeat the call after a reconnect.
	Op string

	// Incarnation, with Op, is the value of [Shell.Incarnation] at the first attempt of the call.
	// If the session does not know the call and has another shell by now, it does not run the call
	// and the Result is lost. If Incarnation is empty, the session runs a call that it does not
	// know, such as after a restart of the sandbox.
	Incarnation string

	// Stdout, with Command, receives the exact bytes that the command prints, as they arrive.
	// Nothing is written after Do has returned. It must not block for long, because the whole Shell
	// waits for it. Its errors are ignored.
	Stdout io.Writer
}

// NewOp returns a new Call.Op: 128 random bits in hex.
func NewOp() string { return wire.NewOp() }

const defaultTimeout = 120 * time.Second

// callTimeout returns the timeout of a request in milliseconds; −1 means none. It ends a little
// before ctx, so that the call returns partial output instead of a bare context error.
func callTimeout(ctx context.Context, d time.Duration) int64 {
	if d == 0 {
		d = defaultTimeout
	}
	if end, bounded := ctx.Deadline(); bounded {
		left := time.Until(end)
		left -= min(left/5, time.Second) // time for the reply to arrive, on a busy machine, too
		if left = max(left, time.Millisecond); d < 0 || left < d {
			d = left
		}
	}
	if d < 0 {
		return -1
	}
	return max(d.Milliseconds(), 1)
}

// verb returns the request that the call stands for, or a usage error.
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
		return "", &Error{
			Code:    CodeUsage,
			Message: "call: exactly one of Command, Text and Keys must be set",
			Hint:    `to press only Enter, set Keys to "Enter"`,
		}
	case verb == wire.VerbRun && c.Answer:
		return "", &Error{Code: CodeUsage, Message: "call: Answer needs Text or Keys"}
	case verb != wire.VerbRun && (c.Stdout != nil || c.Kill || c.Adopt):
		return "", &Error{Code: CodeUsage, Message: "call: Stdout, Kill and Adopt need Command"}
	}
	return verb, nil
}

func (c Call) request(ctx context.Context, verb wire.Verb) wire.Request {
	r := wire.Request{
		Verb:        verb,
		Op:          c.Op,
		Incarnation: c.Incarnation,
		TimeoutMS:   callTimeout(ctx, c.Timeout),
		Kill:        c.Kill,
		Adopt:       c.Adopt,
		Hold:        c.Hold,
		Answer:      c.Answer,
		MaxOutput:   c.MaxOutput,
		Screen:      wire.ShowScreen(c.Screen),
	}
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
