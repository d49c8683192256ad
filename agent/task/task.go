// Package task has a language model do a task in a sandbox: it asks a server that speaks OpenAI's Chat Completions, calls the tools that
// the model names, and tells it what became of them, until the model says that it is done or cannot go on. Reach for it where one
// sentence is to be carried out and nobody's own agent is at hand.
//
// The tools are those of package mcp, kept to one sandbox and to sessions of the task's own, which end with it. A command that asks for
// something is told to the model as such; none hangs. It knows neither how a gateway is reached nor flags nor a terminal.
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
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a task is. Gateway, Sandbox, Session, Endpoint and Task are required.
type Options struct {
	Gateway  agent.Daemon
	Sandbox  string
	Session  string // a name that no other session has; the task's sessions are this one and others whose names begin with it
	Endpoint Endpoint
	Task     string // what is to be done, in words

	Dir   string // that the task is about, for the model; empty means where the shell begins
	Shell string // a shell and its flags that each command is given to with -c, such as "dash -eu"; empty is the session's own, which keeps its directory

	MaxRounds int // answers of the model; 0 is DefaultRounds
	MaxTokens int // of all requests and answers; 0 is no limit. What a server does not count is taken for a token each four bytes

	// Tell gets every Event as it happens, in order; Words the model's words and Output what commands print, as they come. None may
	// block for long, and each may be nil. Nothing in them has been made fit for a terminal.
	Tell   func(Event)
	Words  func(string)
	Output io.Writer
}

// DefaultRounds is how often a model is asked for one task.
const DefaultRounds = 10

const (
	warnAt  = 3                // the same call with the same result, when the model is told of it
	endAt   = 5                // and when the task ends
	idlest  = 3                // answers without a call, one after the other, that end it
	leaving = 30 * time.Second // for the end of what the task began
)

// Ended is why a task came to its end.
type Ended string

// Why a task ended.
const (
	Done        Ended = "done"        // the model says so
	Failed      Ended = "failed"      // the model says that it cannot be done, or will not do it
	Rounds      Ended = "rounds"      // as many answers as it may have
	Budget      Ended = "budget"      // more tokens than it may have
	Stuck       Ended = "stuck"       // the model did the same over and over, or nothing
	NoAnswer    Ended = "endpoint"    // the model's server cannot be used
	Deadline    Ended = "deadline"    // the time for all of it is over
	Interrupted Ended = "interrupted" // the caller gave it up
)

// Exit codes of a task besides the table's own: wire.ExitDeadline, wire.ExitFailed and wire.ExitInterrupt mean there what they mean here.
const (
	ExitTaskFailed = 1
	ExitRounds     = 3
	ExitEndpoint   = 4
	ExitStuck      = 5
	ExitBudget     = 6
)

// Outcome is how a task ended.
type Outcome struct {
	Ended   Ended  `json:"ended"`
	Message string `json:"message"` // the model's last word where it is done or failed, else what happened
	Hint    string `json:"hint,omitempty"`
	Rounds  int    `json:"rounds"`
	Tokens  int    `json:"tokens"`
}

// ExitStatus is the exit code that a command line tool ends with.
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

// Event is one thing that happened, as transcripts and --json have it.
type Event struct {
	Event string    `json:"event"` // words, call, result, note
	Time  time.Time `json:"time"`
	Round int       `json:"round"`

	Text      string `json:"text,omitempty"`      // of words and note; of a result what the model is told
	Tool      string `json:"tool,omitempty"`      // of call and result
	Arguments string `json:"arguments,omitempty"` // of call, as the model wrote them
	Result    any    `json:"result,omitempty"`    // the same as Text for programs
}

// run is one task under way.
type run struct {
	Options
	server *mcp.Server
	chat   *chat
	tools  []toolSpec
	turns  []turn
	round  int
	tokens int
	seen   map[string]int // how often the same call had the same result
	idle   int            // answers without a call, one after the other
}

// Run does a task. When it returns, the task's sessions have ended with all that ran in them, unless the sandbox does not answer, which a
// note tells; the sandbox stays. An error is about the
// sandbox or a mistake of the caller; how the task itself ended is in the Outcome.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.Endpoint.Check(); err != nil {
		return endpointOutcome(err), nil
	}
	if strings.TrimSpace(o.Task) == "" {
		return Outcome{}, &agent.Error{Code: agent.CodeUsage, Message: "task: nothing to do", Hint: `say what: sandboxd task "convert cat.jpg to png"`}
	}
	o.MaxRounds = cmp.Or(o.MaxRounds, DefaultRounds)
	r := &run{Options: o, seen: make(map[string]int)}
	r.server = mcp.New(mcp.Options{Gateway: o.Gateway, Sandbox: o.Sandbox, Session: o.Session, Own: true, Output: o.Output})
	r.chat = newChat(o.Endpoint, func(s string) { r.tell(Event{Event: "note", Text: s}) })
	r.tools = toolSpecs(r.server)
	defer r.chat.close()
	outcome, err := r.rounds(ctx)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if e := r.server.EndSessions(bye); e != nil {
		r.tell(Event{Event: "note", Text: fmt.Sprintf("what the task started may go on: %v", e)})
	}
	r.server.Close()
	outcome.Rounds, outcome.Tokens = r.round, r.tokens
	return outcome, err
}

func (r *run) tell(e Event) {
	if r.Tell != nil {
		e.Time, e.Round = time.Now().UTC(), r.round
		r.Tell(e)
	}
}

// rounds asks and does until the task has ended.
func (r *run) rounds(ctx context.Context) (Outcome, error) {
	if err := r.begin(ctx); err != nil {
		return over(ctx, err)
	}
	for {
		if r.round == r.MaxRounds {
			return Outcome{Ended: Rounds, Message: fmt.Sprintf("not done after %d rounds", r.round), Hint: "allow more with --max-rounds, or make the task smaller"}, nil
		}
		if r.MaxTokens > 0 && r.tokens >= r.MaxTokens {
			return Outcome{Ended: Budget, Message: fmt.Sprintf("%d tokens are used of %d", r.tokens, r.MaxTokens), Hint: "allow more with --max-tokens"}, nil
		}
		r.round++
		answer, err := r.chat.ask(ctx, r.render, r.tools, r.words)
		if err != nil {
			return over(ctx, err)
		}
		r.count(answer)
		if answer.text != "" {
			r.tell(Event{Event: "words", Text: answer.text})
		}
		if answer.refusal != "" || answer.finish == "content_filter" {
			return Outcome{Ended: Failed, Message: "the model refuses: " + cmp.Or(answer.refusal, answer.text, "its server filters what it would say")}, nil
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

// GivenUp is the outcome of a task whose ctx has ended, before it was begun too.
func GivenUp(ctx context.Context) Outcome {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return Outcome{Ended: Deadline, Message: "the time for the task is over", Hint: "give it more with --timeout"}
	}
	return Outcome{Ended: Interrupted, Message: "interrupted"}
}

// over is the outcome of a task that err ended.
func over(ctx context.Context, err error) (Outcome, error) {
	var e *EndpointError
	switch {
	case ctx.Err() != nil:
		return GivenUp(ctx), nil //nolint:nilerr // the caller's own wish
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

// begin sees that there is a shell as it is asked for.
func (r *run) begin(ctx context.Context) error {
	command := ":"
	words, err := shellquote.Split(r.Shell)
	switch {
	case err != nil || r.Shell != "" && len(words) == 0:
		return &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("task: %q is no shell command", r.Shell), Hint: "such as --shell-command bash"}
	case len(words) > 0:
		command = "command -v -- " + shellquote.Join(words[0]) + " >/dev/null"
	}
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return err
	}
	a := r.call(ctx, "run", arguments)
	res, ok := a.Object.(agent.Result)
	code, _ := res.Code() // 0 where it is not known
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ok && res.Ended == agent.EndedDone && code == 0:
		return nil
	case ok && res.Error != nil:
		return res.Error
	case ok && res.Ended == agent.EndedDone && len(words) > 0:
		return &agent.Error{Code: agent.CodeNotFound, Message: fmt.Sprintf("the sandbox %s has no shell %q", r.Sandbox, words[0]), Hint: "install it there, or choose another --image with --wipe"}
	}
	return &agent.Error{Code: agent.CodeUnavailable, Message: "the sandbox's shell does not work: " + strings.TrimSpace(a.Text)}
}

// call calls a tool. When ctx ends, what the tool started is interrupted before call returns.
func (r *run) call(ctx context.Context, tool string, arguments json.RawMessage) mcp.Answer {
	// The server takes a plain cancellation for that of its client, and no other cause.
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
