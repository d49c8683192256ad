package mcp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// addAliases adds exec_command and write_stdin, the names that some models are trained on for run,
// answer and wait. Both return after a yield time, and identify a session by a number.
func (s *Server) addAliases() {
	a := &aliases{server: s, runs: make(map[int]uint64)}
	type execIn struct {
		Cmd             string `json:"cmd" jsonschema:"shell command to run"`
		Workdir         string `json:"workdir,omitempty" jsonschema:"directory to run it in; default the shell's current directory. The shell stays in it"`
		YieldTimeMS     int    `json:"yield_time_ms,omitempty" jsonschema:"milliseconds to wait for its end, 100 to 600000; default 10000"`
		MaxOutputTokens int    `json:"max_output_tokens,omitempty" jsonschema:"limit of the returned output, in tokens of 4 bytes; default 8192"`
	}
	add(
		s,
		tool{
			name: "exec_command",
			about: "Run a command in a terminal of the sandbox. Returns when it has ended, when " +
				"it asks for input, or after yield_time_ms. While it runs, pass session_id to " +
				"write_stdin. Same as run.",
		},
		func(ctx context.Context, c *call, in execIn) (answer, error) {
			b, err := yields(in.YieldTimeMS, in.MaxOutputTokens)
			if err != nil {
				return answer{}, err
			}
			if strings.TrimSpace(in.Cmd) == "" {
				return answer{}, &agent.Error{
					Code:    agent.CodeUsage,
					Message: "exec_command: the command is empty",
					Hint:    "set cmd to a shell command",
				}
			}
			if in.Workdir != "" {
				in.Cmd = "cd -- " + text.Quote(in.Workdir) + " && {\n" + in.Cmd + "\n}"
			}
			return a.exec(ctx, c, sessionCall{bounds: b, stop: interrupt,
				Call: agent.Call{Command: in.Cmd}})
		},
	)

	type writeIn struct {
		SessionID       int    `json:"session_id" jsonschema:"session_id that exec_command returned"`
		Chars           string `json:"chars,omitempty" jsonschema:"text to type, with a line feed for Enter; empty only waits for more output"`
		YieldTimeMS     int    `json:"yield_time_ms,omitempty" jsonschema:"milliseconds to wait, 100 to 600000; default 10000"`
		MaxOutputTokens int    `json:"max_output_tokens,omitempty" jsonschema:"limit of the returned output, in tokens of 4 bytes; default 8192"`
	}
	add(
		s,
		tool{
			name: "write_stdin",
			about: "Type to a command of exec_command that still runs or asks for input, or wait " +
				"for it with empty chars. Returns its output since the last call.",
		},
		func(ctx context.Context, c *call, in writeIn) (answer, error) {
			b, err := yields(in.YieldTimeMS, in.MaxOutputTokens)
			if err != nil {
				return answer{}, err
			}
			known, ok := a.running(in.SessionID)
			if !ok {
				return answer{}, &agent.Error{
					Code:    agent.CodeNotFound,
					Message: fmt.Sprintf("write_stdin: nothing runs in session %d", in.SessionID),
					Hint: "use the session_id that exec_command returned; it is null once the " +
						"command has ended",
				}
			}
			sc := sessionCall{where: where{Session: a.name(in.SessionID)}, bounds: b}
			if in.Chars == "" {
				sc.wait = &waitFor{}
				sc.also = func(ctx context.Context, r agent.Result) agent.Result {
					return s.since(ctx, r, known, b.MaxOutput)
				}
			} else {
				chars := strings.NewReplacer("\r\n", "\r", "\n", "\r").Replace(in.Chars)
				sc.Call = agent.Call{Text: chars, Raw: true}
			}
			return a.numbered(in.SessionID)(c.do(ctx, sc))
		},
	)
}

func yields(ms, tokens int) (bounds, error) {
	switch {
	case ms < 0 || ms > int(maxTimeout/time.Millisecond) || ms > 0 && ms < 100:
		return bounds{}, &agent.Error{
			Code: agent.CodeUsage,
			Message: fmt.Sprintf(
				"yield_time_ms: %d is not in 100 to %d",
				ms,
				maxTimeout/time.Millisecond,
			),
			Hint: "omit it, or wait again with write_stdin",
		}
	case tokens < 0 || tokens > maxOutput/4:
		return bounds{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("max_output_tokens: %d is not in 1 to %d", tokens, maxOutput/4),
			Hint:    "omit it; the tool log returns more",
		}
	case ms == 0:
		ms = 10_000
	}
	return bounds{TimeoutS: float64(ms) / 1000, MaxOutput: 4 * tokens}, nil
}

// aliases maps the session numbers of exec_command to sessions. 1 is the default session of all
// tools. The others run commands while that is busy.
type aliases struct {
	server *Server

	mu sync.Mutex
	// guarded by mu; by session whose command runs: end of the log that the model has received
	runs map[int]uint64
}

// maxAliases limits the running commands of exec_command of one client.
const maxAliases = 8

func (a *aliases) name(n int) string {
	if n == 1 {
		return a.server.options.Session
	}
	return fmt.Sprintf("exec-%d", n)
}

// running reports whether a command runs in session n, and up to which offset the model has
// received its log.
func (a *aliases) running(n int) (known uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok = a.runs[n]
	return known, ok
}

// take reserves the first session after n that runs no command.
func (a *aliases) take(n int) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n++; n <= maxAliases; n++ {
		if _, busy := a.runs[n]; !busy {
			a.runs[n] = 0
			return n, nil
		}
	}
	return 0, &agent.Error{
		Code:    agent.CodeLimitSessions,
		Message: fmt.Sprintf("%d commands still run", maxAliases),
		Hint:    "continue one of them with write_stdin",
	}
}

// exec runs a command in the first free session. Another client may use a session, too.
func (a *aliases) exec(ctx context.Context, c *call, sc sessionCall) (answer, error) {
	for n := 0; ; {
		var err error
		if n, err = a.take(n); err != nil {
			return answer{}, err
		}
		sc.where.Session = a.name(n)
		got, err := a.numbered(n)(c.do(ctx, sc))
		out, ok := got.object.(aliasOut)
		busy := ok && out.Error != nil &&
			(out.Error.Code == agent.CodeNotPrompt || out.Error.Code == agent.CodeKeyboardHeld)
		if err != nil || !busy || n == maxAliases {
			return got, err
		}
	}
}

// aliasOut is a Result with the number of its session, or null once the command has ended.
type aliasOut struct {
	agent.Result
	SessionID *int `json:"session_id"`
}

// numbered adds the number of session n to an answer, and stores up to which offset the model has
// received the log.
func (a *aliases) numbered(n int) func(answer, error) (answer, error) {
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
		case agent.EndedWaiting,
			agent.EndedAttention,
			agent.EndedDeadline,
			agent.EndedTakenOver,
			agent.EndedContinuation:
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

// since sets the output of r to everything that was printed after offset known, at most limit
// bytes.
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
		return r // r has the output of the call itself
	}
	cut := false
	r.Output, cut = text.Cut(out.Output, limit)
	r.From, r.Truncated = known, cut || from > known
	return r
}
