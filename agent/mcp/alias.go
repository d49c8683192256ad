package mcp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// addAliases adds the pair of tools that models are trained on: exec_command begins, write_stdin goes on. Both come back after a time
// to yield, and a session is a number. They are run, answer and wait under names that need no explanation to such a model.
func (s *Server) addAliases() {
	a := &aliases{server: s, runs: make(map[int]uint64)}
	type execIn struct {
		Cmd             string `json:"cmd" jsonschema:"shell command to run"`
		Workdir         string `json:"workdir,omitempty" jsonschema:"directory to run it in; default where the shell is; it stays there"`
		YieldTimeMS     int    `json:"yield_time_ms,omitempty" jsonschema:"how long to wait for it to end, 100 to 600000; default 10000"`
		MaxOutputTokens int    `json:"max_output_tokens,omitempty" jsonschema:"most output that comes back, in tokens of 4 bytes; default 8192"`
	}
	add(s, tool{name: "exec_command", about: "Run a command in a terminal of the sandbox. Comes back when it ended, asks for input, or has not ended within yield_time_ms: " +
		"then session_id is for write_stdin. The same as run, under a name that you may know."},
		func(ctx context.Context, c *call, in execIn) (answer, error) {
			b, err := yields(in.YieldTimeMS, in.MaxOutputTokens)
			if err != nil {
				return answer{}, err
			}
			if strings.TrimSpace(in.Cmd) == "" {
				return answer{}, &agent.Error{Code: agent.CodeUsage, Message: "exec_command: the command is empty", Hint: "give cmd shell text"}
			}
			if in.Workdir != "" {
				in.Cmd = "cd -- " + shellquote.Join(in.Workdir) + " && {\n" + in.Cmd + "\n}"
			}
			return a.exec(ctx, c, sessionCall{bounds: b, stop: interrupt, Call: agent.Call{Command: in.Cmd}})
		})

	type writeIn struct {
		SessionID       int    `json:"session_id" jsonschema:"of exec_command"`
		Chars           string `json:"chars,omitempty" jsonschema:"what to type, with a line feed for Enter; empty only waits for more output"`
		YieldTimeMS     int    `json:"yield_time_ms,omitempty" jsonschema:"how long to wait, 100 to 600000; default 10000"`
		MaxOutputTokens int    `json:"max_output_tokens,omitempty" jsonschema:"most output that comes back, in tokens of 4 bytes; default 8192"`
	}
	add(s, tool{name: "write_stdin", about: "Type to a command of exec_command that still runs or asks, or only wait for it, and get what it printed since."},
		func(ctx context.Context, c *call, in writeIn) (answer, error) {
			b, err := yields(in.YieldTimeMS, in.MaxOutputTokens)
			if err != nil {
				return answer{}, err
			}
			known, ok := a.running(in.SessionID)
			if !ok {
				return answer{}, &agent.Error{Code: agent.CodeNotFound, Message: fmt.Sprintf("write_stdin: nothing runs in session %d", in.SessionID), Hint: "use the session_id that exec_command returned; it is null once the command has ended"}
			}
			sc := sessionCall{where: where{Session: a.name(in.SessionID)}, bounds: b}
			if in.Chars == "" {
				sc.wait = &waitFor{}
				sc.also = func(ctx context.Context, r agent.Result) agent.Result { return s.since(ctx, r, known, b.MaxOutput) }
			} else {
				sc.Call = agent.Call{Text: strings.ReplaceAll(strings.ReplaceAll(in.Chars, "\r\n", "\r"), "\n", "\r"), Raw: true}
			}
			return a.told(in.SessionID)(c.do(ctx, sc))
		})
}

func yields(ms, tokens int) (bounds, error) {
	switch {
	case ms < 0 || ms > int(maxTimeout/time.Millisecond) || ms > 0 && ms < 100:
		return bounds{}, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("yield_time_ms: %d is not 100 to %d", ms, maxTimeout/time.Millisecond), Hint: "leave it out, or wait again with write_stdin"}
	case tokens < 0 || tokens > maxOutput/4:
		return bounds{}, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("max_output_tokens: %d is not 1 to %d", tokens, maxOutput/4), Hint: "leave it out; log gives more"}
	case ms == 0:
		ms = 10_000
	}
	return bounds{TimeoutS: float64(ms) / 1000, MaxOutput: 4 * tokens}, nil
}

// aliases are the sessions that the numbers of exec_command mean: 1 is the one that every tool means, the others are there for
// commands that are started while it is busy.
type aliases struct {
	server *Server

	mu   sync.Mutex
	runs map[int]uint64 // guarded by mu; where a command has not ended: up to which offset the model knows the log
}

// maxAliases is how many commands of exec_command one client may have that have not ended.
const maxAliases = 8

func (a *aliases) name(n int) string {
	if n == 1 {
		return a.server.options.Session
	}
	return fmt.Sprintf("exec-%d", n)
}

// running reports whether a command has not ended in session n, and up to where its log is known to the model.
func (a *aliases) running(n int) (known uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok = a.runs[n]
	return known, ok
}

// take finds a session without a command for one, after session n.
func (a *aliases) take(n int) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n++; n <= maxAliases; n++ {
		if _, busy := a.runs[n]; !busy {
			a.runs[n] = 0
			return n, nil
		}
	}
	return 0, &agent.Error{Code: agent.CodeLimitSessions, Message: fmt.Sprintf("%d commands have not ended", maxAliases), Hint: "go on with one of them by write_stdin"}
}

// exec runs a command in the first session that has room for it: somebody else may be using one.
func (a *aliases) exec(ctx context.Context, c *call, sc sessionCall) (answer, error) {
	for n := 0; ; {
		var err error
		if n, err = a.take(n); err != nil {
			return answer{}, err
		}
		sc.where.Session = a.name(n)
		got, err := a.told(n)(c.do(ctx, sc))
		out, ok := got.object.(aliasOut)
		busy := ok && out.Error != nil && (out.Error.Code == agent.CodeNotPrompt || out.Error.Code == agent.CodeKeyboardHeld)
		if err != nil || !busy || n == maxAliases {
			return got, err
		}
	}
}

// aliasOut is a Result with the number of its session, as long as there is something to write to.
type aliasOut struct {
	agent.Result
	SessionID *int `json:"session_id"`
}

// told makes the answer of session n one with its number, and keeps in mind what of its log the model knows.
func (a *aliases) told(n int) func(answer, error) (answer, error) {
	return func(got answer, err error) (answer, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		res, ok := got.object.(agent.Result)
		if err != nil || !ok {
			delete(a.runs, n)
			return got, err
		}
		out := aliasOut{Result: res}
		switch res.Ended {
		case agent.EndedWaiting, agent.EndedAttention, agent.EndedDeadline, agent.EndedTakenOver, agent.EndedContinuation:
			a.runs[n] = res.To
			out.SessionID = &n
			got.text = fmt.Sprintf("session_id: %d\n%s", n, got.text)
		default:
			delete(a.runs, n)
		}
		got.object = out
		return got, nil
	}
}

// since makes the output of r everything that was printed from known on, at most limit bytes of it.
func (s *Server) since(ctx context.Context, r agent.Result, known uint64, limit int) agent.Result {
	if known >= r.From || r.Error != nil {
		return r
	}
	if limit == 0 {
		limit = 32 << 10
	}
	from := max(known, r.To-min(r.To, maxLog))
	out, err := s.logged(ctx, wire.Target{Sandbox: r.Sandbox, Session: r.Session}, from, r.To)
	if err != nil {
		return r // it has what was printed during the call
	}
	cut := false
	r.Output, cut = text.Cut(out.Output, limit)
	r.From, r.Truncated = known, cut || from > known
	return r
}
