// Package task lets a language model carry out a task in a sandbox. It sends the task to a server
// with OpenAI's Chat Completions API, calls the tools that the model asks for, and returns their
// results to the model, until the model reports that it is done or has failed. Use it to carry out
// one instruction without an agent of your own.
//
// The tools are those of package mcp, restricted to one sandbox and to sessions of the task, which
// end with it. No command hangs: the model is informed when a command asks for input. The package
// does not connect to a gateway, and has no flags and no terminal.
package task

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure a task. Gateway, Sandbox, Session, Endpoint and Task are required.
type Options struct {
	Gateway agent.Daemon
	Sandbox string

	// Session is an unused session name. The task uses this session and others whose names begin
	// with it.
	Session  string
	Endpoint Endpoint
	Task     string // the instruction for the model

	// Dir is the directory that the task is about. Empty means the working directory of the shell.
	Dir string

	// Shell is a shell and its flags, such as "dash -eu", that runs each command with -c. Empty
	// means the shell of the session, which keeps its directory and variables.
	Shell string

	MaxRounds int // limit of model replies; 0 means DefaultRounds

	// MaxTokens limits the tokens of all requests and replies. 0 means no limit. If the server does
	// not report tokens, four bytes count as one.
	MaxTokens int

	// Tell receives every Event in order, Words the model's text and Output the output of commands,
	// as they arrive. They must not block for long, and each may be nil. Their text is not safe to
	// print on a terminal: it may have escape sequences.
	Tell   func(Event)
	Words  func(string)
	Output io.Writer
}

// DefaultRounds is the default limit of model replies for one task.
const DefaultRounds = 10

const (
	// repetitions of a call with the same result before the model is warned
	warnAt  = 3
	endAt   = 5                // repetitions before the task ends
	maxIdle = 3                // consecutive replies without a call before the task ends
	endTime = 30 * time.Second // to end the task's sessions
)

// Ended is the reason why a task ended.
type Ended string

// Reasons why a task ends.
const (
	Done        Ended = "done"        // the model reports success
	Failed      Ended = "failed"      // the model reports failure, or refuses
	Rounds      Ended = "rounds"      // MaxRounds is reached
	Budget      Ended = "budget"      // MaxTokens is reached
	Stuck       Ended = "stuck"       // the model repeats the same call, or calls nothing
	NoAnswer    Ended = "endpoint"    // the model's server is unusable
	Deadline    Ended = "deadline"    // the deadline of ctx has passed
	Interrupted Ended = "interrupted" // ctx was cancelled
)

// Exit codes of a task, in addition to wire.ExitDeadline, wire.ExitFailed and wire.ExitInterrupt.
const (
	ExitTaskFailed = 1
	ExitRounds     = 3
	ExitEndpoint   = 4
	ExitStuck      = 5
	ExitBudget     = 6
)

// Outcome is how a task ended.
type Outcome struct {
	Ended Ended `json:"ended"`
	// the model's final message if Ended is Done or Failed, else what happened
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Rounds  int    `json:"rounds"`
	Tokens  int    `json:"tokens"`
}

// ExitStatus returns the exit code for a command line tool.
func (o Outcome) ExitStatus() int {
	switch o.Ended {
	case Done:
		return 0
	case Failed:
		return ExitTaskFailed
	case Rounds:
		return ExitRounds
	case Budget:
		return ExitBudget
	case Stuck:
		return ExitStuck
	case NoAnswer:
		return ExitEndpoint
	case Deadline:
		return wire.ExitDeadline
	case Interrupted:
		return wire.ExitInterrupt
	}
	return wire.ExitFailed
}

// Event is one event of a task, as in transcripts and the output of --json.
type Event struct {
	Event string    `json:"event"` // words, call, result, note
	Time  time.Time `json:"time"`
	Round int       `json:"round"`

	// Text is that of words and note. With result, it is the text that the model receives.
	Text      string `json:"text,omitempty"`
	Tool      string `json:"tool,omitempty"`      // with call and result
	Arguments string `json:"arguments,omitempty"` // with call, as the model wrote them
	Result    any    `json:"result,omitempty"`    // with result: the same as Text, for programs
}

// run is one running task.
type run struct {
	Options
	server *mcp.Server
	chat   *chat
	tools  []toolSpec
	turns  []turn
	round  int
	tokens int
	seen   map[string]int // repetitions of a call with the same result
	idle   int            // consecutive replies without a call
}

// Run carries out a task. The Outcome says how the task ended. An error is a failure of the sandbox
// or a mistake of the caller. Before Run returns, it ends the task's sessions and their programs; a
// note reports if that fails. The sandbox is kept.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.Endpoint.Check(); err != nil {
		return endpointOutcome(err), nil
	}
	if strings.TrimSpace(o.Task) == "" {
		return Outcome{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "task: nothing to do",
			Hint:    `say what: sandboxd task "convert cat.jpg to png"`,
		}
	}
	o.MaxRounds = cmp.Or(o.MaxRounds, DefaultRounds)
	r := &run{Options: o, seen: make(map[string]int)}
	r.server = mcp.New(
		mcp.Options{
			Gateway: o.Gateway,
			Sandbox: o.Sandbox,
			Session: o.Session,
			Own:     true,
			Output:  o.Output,
		},
	)
	r.chat = newChat(o.Endpoint, func(s string) { r.emit(Event{Event: "note", Text: s}) })
	r.tools = toolSpecs(r.server)
	defer r.chat.close()
	outcome, err := r.rounds(ctx)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if e := r.server.EndSessions(bye); e != nil {
		r.emit(Event{Event: "note", Text: fmt.Sprintf("programs of the task may still run: %v", e)})
	}
	r.server.Close()
	outcome.Rounds, outcome.Tokens = r.round, r.tokens
	return outcome, err
}

func (r *run) emit(e Event) {
	if r.Tell != nil {
		e.Time, e.Round = time.Now().UTC(), r.round
		r.Tell(e)
	}
}

// rounds asks the model and calls tools until the task ends.
func (r *run) rounds(ctx context.Context) (Outcome, error) {
	if err := r.begin(ctx); err != nil {
		return over(ctx, err)
	}
	for {
		if r.round == r.MaxRounds {
			return Outcome{
				Ended:   Rounds,
				Message: fmt.Sprintf("not done after %d rounds", r.round),
				Hint:    "raise --max-rounds, or split the task",
			}, nil
		}
		if r.MaxTokens > 0 && r.tokens >= r.MaxTokens {
			return Outcome{
				Ended:   Budget,
				Message: fmt.Sprintf("%d of %d tokens are used", r.tokens, r.MaxTokens),
				Hint:    "raise --max-tokens",
			}, nil
		}
		r.round++
		answer, err := r.chat.ask(ctx, r.render, r.tools, r.words)
		if err != nil {
			return over(ctx, err)
		}
		r.count(answer)
		if answer.text != "" {
			r.emit(Event{Event: "words", Text: answer.text})
		}
		if answer.refusal != "" || answer.finish == "content_filter" {
			return Outcome{
				Ended: Failed,
				Message: "the model refuses: " + cmp.Or(
					answer.refusal,
					answer.text,
					"its server filtered the reply",
				),
			}, nil
		}
		outcome, err := r.act(ctx, answer)
		if err != nil {
			return over(ctx, err)
		}
		if outcome != nil {
			return *outcome, nil
		}
	}
}

// GivenUp returns the outcome of a task whose ctx has ended, possibly before Run.
func GivenUp(ctx context.Context) Outcome {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return Outcome{
			Ended:   Deadline,
			Message: "the deadline of the task has passed",
			Hint:    "raise --timeout",
		}
	}
	return Outcome{Ended: Interrupted, Message: "interrupted"}
}

// over returns the outcome of a task that err ended.
func over(ctx context.Context, err error) (Outcome, error) {
	var e *EndpointError
	switch {
	case ctx.Err() != nil:
		return GivenUp(ctx), nil //nolint:nilerr // the outcome reports it
	case errors.As(err, &e):
		return endpointOutcome(e), nil
	}
	return Outcome{}, err
}

func endpointOutcome(err error) Outcome {
	o := Outcome{Ended: NoAnswer, Message: err.Error()}
	var e *EndpointError
	if errors.As(err, &e) {
		o.Hint = e.Hint
	}
	return o
}

// begin checks that the requested shell exists.
func (r *run) begin(ctx context.Context) error {
	command := ":"
	words, err := shellquote.Split(r.Shell)
	switch {
	case err != nil || r.Shell != "" && len(words) == 0:
		return &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("task: %q is not a shell command", r.Shell),
			Hint:    "use a command such as --shell-command bash",
		}
	case len(words) > 0:
		command = "command -v -- " + text.Quote(words[0]) + " >/dev/null"
	}
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return err
	}
	a := r.call(ctx, "run", arguments)
	res, ok := a.Object.(agent.Result)
	code, _ := res.Code() // 0 if unknown
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ok && res.Ended == agent.EndedDone && code == 0:
		return nil
	case ok && res.Error != nil:
		return res.Error
	case ok && res.Ended == agent.EndedDone && len(words) > 0:
		return &agent.Error{
			Code:    agent.CodeNotFound,
			Message: fmt.Sprintf("the sandbox %s has no shell %q", r.Sandbox, words[0]),
			Hint:    "install it in the sandbox, or use another --image with --wipe",
		}
	}
	return &agent.Error{
		Code:    agent.CodeUnavailable,
		Message: "the sandbox's shell does not work: " + strings.TrimSpace(a.Text),
	}
}

// call calls a tool. If ctx ends, the tool interrupts its command before call returns.
func (r *run) call(ctx context.Context, tool string, arguments json.RawMessage) mcp.Answer {
	// The server treats only the cause context.Canceled as a cancellation by its client.
	plain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	return r.server.Call(plain, tool, arguments)
}

func (r *run) words(s string) {
	if r.Words != nil {
		r.Words(s)
	}
}

func (r *run) count(a reply) {
	if a.tokens > 0 {
		r.tokens += a.tokens
		return
	}
	n := len(a.text)
	for _, c := range a.calls {
		n += len(c.arguments)
	}
	for _, m := range r.render(!r.chat.noTools) {
		n += len(m.Content)
		for _, c := range m.ToolCalls {
			n += len(c.Function.Arguments)
		}
	}
	r.tokens += n / 4
}
