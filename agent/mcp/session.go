package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// where is which session a call means.
type where struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"another sandbox than the one of this server"`
	Session string `json:"session,omitempty" jsonschema:"another terminal of the sandbox than main; it is started if it does not exist"`
}

// bounds are how long a call follows a program, and how much of its output comes back.
type bounds struct {
	TimeoutS  float64 `json:"timeout_s,omitempty" jsonschema:"seconds to follow the program, 0.1 to 600; default 50. It goes on when they are over"`
	MaxOutput int     `json:"max_output,omitempty" jsonschema:"most bytes of output that come back, 1 to 1000000; default 32768. Of more, the head and the tail; log has the rest"`
	Screen    string  `json:"screen,omitempty" jsonschema:"when the answer has the screen: never, always or auto; default auto, which is for programs that draw the whole screen, pagers, and what listens and has come to rest"`
}

// defaultTimeout is less than the minute for which clients commonly wait for a tool: what they give up is interrupted.
const defaultTimeout = 50 * time.Second

const (
	maxTimeout = 10 * time.Minute
	maxOutput  = 1_000_000
	maxCommand = 512 << 10 // it has to fit one frame of the session stream
)

func (b bounds) read() (timeout time.Duration, output int, err error) {
	timeout = defaultTimeout
	if b.TimeoutS != 0 {
		timeout = time.Duration(b.TimeoutS * float64(time.Second))
		if b.TimeoutS > maxTimeout.Seconds() || timeout < 100*time.Millisecond {
			return 0, 0, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("timeout_s: %g is not 0.1 to %g seconds", b.TimeoutS, maxTimeout.Seconds()),
				Hint: "leave it out, or call wait again: the program goes on when the time is over"}
		}
	}
	if b.MaxOutput < 0 || b.MaxOutput > maxOutput {
		return 0, 0, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("max_output: %d is not 1 to %d bytes", b.MaxOutput, maxOutput), Hint: "log gives more of it, a part at a time"}
	}
	return timeout, b.MaxOutput, nil
}

// sessionCall is a call that follows what a session does.
type sessionCall struct {
	where where
	agent.Call
	bounds bounds
	wait   *waitFor                                         // instead of Call
	stop   stopping                                         // what to do when the client gives the call up
	also   func(context.Context, agent.Result) agent.Result // what is done to a Result; may be nil
}

// stopping is what ends with a call that its client gave up.
type stopping int

const (
	nothing   stopping = iota // the program goes on
	pressed                   // ^C is pressed: the program may be more than this call
	interrupt                 // what the call started is interrupted
)

type waitFor struct {
	phases   []agent.Phase
	keyboard bool
	pattern  bool
}

// addSession adds the tools that work in a session.
func (s *Server) addSession() {
	type runIn struct {
		Command string `json:"command" jsonschema:"shell text, one command or several lines"`
		where
		bounds
	}
	add(s, tool{name: "run", about: "Run a shell command in a terminal of the sandbox and follow it. Comes back with its output when it has ended (exit_code), " +
		"when it asks for something (ended: waiting; then use answer), or when timeout_s is over (ended: deadline; it still runs, use wait). " +
		"The shell keeps directory and variables. Do not append & or redirect input: a command that asks is told apart from one that works."},
		func(ctx context.Context, c *call, in runIn) (answer, error) {
			return c.do(ctx, sessionCall{where: in.where, bounds: in.bounds, stop: interrupt, Call: agent.Call{Command: in.Command}})
		})

	type answerIn struct {
		Text  string `json:"text" jsonschema:"what to type; empty presses Enter alone"`
		Enter *bool  `json:"enter,omitempty" jsonschema:"press Enter behind it; default true"`
		where
		bounds
	}
	add(s, tool{name: "answer", about: "Type a line to the program that asks (ended: waiting or attention), and follow it like run. Refused with not_waiting " +
		"where no program asks, so that an answer that comes too late is not run as a command."},
		func(ctx context.Context, c *call, in answerIn) (answer, error) {
			call := agent.Call{Text: in.Text, Raw: in.Enter != nil && !*in.Enter, Answer: true}
			if in.Text == "" {
				if call.Raw {
					return answer{}, &agent.Error{Code: agent.CodeUsage, Message: "answer: nothing to type", Hint: "give a text, or leave enter out to press Enter"}
				}
				call = agent.Call{Keys: []string{"Enter"}, Answer: true}
			}
			return c.do(ctx, sessionCall{where: in.where, bounds: in.bounds, stop: pressed, Call: call})
		})

	type keysIn struct {
		Keys []string `json:"keys" jsonschema:"names of keys in order, such as ^C, Enter, Up, Tab, Esc, F1, PageDown, or single characters; text is for answer"`
		where
		bounds
	}
	add(s, tool{name: "keys", about: "Press keys in the terminal, for programs that take keys instead of lines: editors, pagers, menus. Comes back when the program " +
		"has come to rest; screen shows what it looks like then."},
		func(ctx context.Context, c *call, in keysIn) (answer, error) {
			if len(in.Keys) == 0 {
				return answer{}, &agent.Error{Code: agent.CodeUsage, Message: "keys: no key named", Hint: `such as ["^C"] or ["Down", "Enter"]`}
			}
			return c.do(ctx, sessionCall{where: in.where, bounds: in.bounds, Call: agent.Call{Keys: in.Keys}})
		})

	add(s, tool{name: "wait", reads: true, about: "Follow what runs in a session, such as after ended: deadline. Comes back at once where nothing runs. Output is what was printed meanwhile; log gives what was printed before. " +
		"With a pattern it comes back when the program has printed that (ended: matched), asks or ends."}, wait)

	add(s, tool{name: "screen", reads: true, about: "Show what the terminal shows now, as text, with the cursor. For programs that draw the whole screen, and to see where a session stands."}, showScreen)

	add(s, tool{name: "interrupt", about: "Stop what runs in a session: ^C, and where that does not do TERM and KILL. The shell and its directory stay. The receipt says what was ended."},
		func(ctx context.Context, c *call, in where) (answer, error) {
			return c.on(ctx, in, c.server.places.existing, func(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
				ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
				defer cancel()
				return sh.Interrupt(ctx)
			})
		})

	add(s, tool{name: "log", reads: true, about: "Read the log of a session: everything that it printed, by byte offset. A Result says from and to; use it for output whose middle was left out, and for what was printed between calls."}, readLog)
}

// do does a call in a session and follows it, telling the client how it goes on.
func (c *call) do(ctx context.Context, sc sessionCall) (answer, error) {
	timeout, output, err := sc.bounds.read()
	if err != nil {
		return answer{}, err
	}
	if sc.wait == nil && sc.Keys == nil && strings.TrimSpace(sc.Command) == "" && sc.Text == "" {
		return answer{}, &agent.Error{Code: agent.CodeUsage, Message: c.request.Params.Name + ": the command is empty", Hint: "give it shell text"}
	}
	if len(sc.Command)+len(sc.Text) > maxCommand {
		return answer{}, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("%s: it is longer than %d bytes", c.request.Params.Name, maxCommand), Hint: "write a file with write_file, and run that"}
	}
	sc.Timeout, sc.MaxOutput = timeout, output
	show, err := wire.ParseShowScreen(sc.bounds.Screen)
	if err != nil {
		return answer{}, err
	}
	sc.Screen = agent.ShowScreen(show)
	if sc.Command != "" {
		sc.Stdout = c.server.options.Output
	}
	open := c.server.places.existing
	if sc.Command != "" {
		open = c.server.places.shell
	}
	done := c.progress(ctx)
	defer done()
	return c.on(ctx, sc.where, open, func(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
		var res agent.Result
		var err error
		if sc.wait == nil {
			res, err = sh.Do(ctx, sc.Call)
		} else {
			bounded, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if sc.wait.keyboard {
				res, err = sh.WaitKeyboard(bounded)
				if err != nil && res.Ended == agent.EndedDeadline && ctx.Err() == nil {
					err = nil
				}
			} else {
				res, err = sh.Wait(bounded, sc.wait.phases...)
				if err != nil && bounded.Err() != nil && ctx.Err() == nil {
					res, err = stands(ctx, sh)
				}
			}
			if err == nil {
				err = showing(ctx, sh, &res, sc.Screen)
			}
		}
		if err != nil && context.Cause(ctx) == context.Canceled { //nolint:errorlint // of the client's own notification; a connection that broke has another cause
			res, err = c.stopped(ctx, sh, sc.stop)
		}
		if err == nil && sc.also != nil {
			res = sc.also(ctx, res)
		}
		return res, err
	})
}

// showing makes the screen of a wait's Result what the call asks for: a wait has that of ScreenAuto.
func showing(ctx context.Context, sh *agent.Shell, r *agent.Result, show agent.ShowScreen) error {
	switch {
	case show == agent.ScreenNever:
		r.Screen = nil
	case show == agent.ScreenAlways && r.Screen == nil:
		s, err := sh.Screen(ctx)
		if err != nil {
			return err
		}
		r.Screen = &s
	}
	return nil
}

// stands says how a session is whose answer did not come back before the time to wait was over.
func stands(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	res, err := sh.Wait(ctx, agent.PhasePrompt, agent.PhaseRunning, agent.PhaseWaiting, agent.PhaseContinuation, agent.PhaseOpaque, agent.PhaseDead)
	if err == nil && res.Phase == agent.PhaseRunning {
		res.Ended = agent.EndedDeadline
	}
	return res, err
}

// opener returns the shell of a session: places.shell or places.existing.
type opener func(context.Context, wire.Target) (*agent.Shell, error)

// on calls do with the shell of a session that open returns, and answers with its Result.
func (c *call) on(ctx context.Context, w where, open opener, do func(context.Context, *agent.Shell) (agent.Result, error)) (answer, error) {
	t, err := c.server.places.target(ctx, w)
	if err != nil {
		return answer{}, err
	}
	res, err := c.in(ctx, t, open, do)
	if err != nil && res.Ended == "" {
		res = refused(t, public(err))
	}
	return resultAnswer(res), nil
}

func resultAnswer(res agent.Result) answer {
	return answer{object: res, text: resultText(res), failed: res.Ended == agent.EndedRefused || res.Ended == agent.EndedLost}
}

// refused is the Result of a call that was not made on session t, because of why.
func refused(t wire.Target, why *agent.Error) agent.Result {
	return agent.Result{Sandbox: t.Sandbox, Session: t.Session, Ended: agent.EndedRefused, Phase: agent.PhaseOpaque, Attention: "no", Error: why,
		Basis: []agent.Basis{}, Disputed: []agent.Basis{}, Notes: []string{}, Denied: []agent.Denial{}}
}

// in is on without the answer.
func (c *call) in(ctx context.Context, t wire.Target, open opener, do func(context.Context, *agent.Shell) (agent.Result, error)) (agent.Result, error) {
	leave, err := c.server.turns.enter(ctx, t)
	if err != nil {
		return agent.Result{}, err
	}
	defer leave()
	sh, err := open(ctx, t)
	if err != nil {
		return agent.Result{}, err
	}
	res, err := do(ctx, sh)
	if ctx.Err() == nil && broke(err) {
		c.server.places.lost(t.Sandbox)
	}
	return res, err
}

// stopped ends what a call began whose client gave it up, and says how the session is then.
func (c *call) stopped(ctx context.Context, sh *agent.Shell, how stopping) (agent.Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	switch how {
	case interrupt:
		return sh.Interrupt(ctx)
	case pressed:
		return sh.Do(ctx, agent.Call{Keys: []string{"^C"}, Timeout: time.Second})
	}
	return agent.Result{}, context.Canceled
}

// progressEvery is how often a client that wants to know is told that its call goes on.
const progressEvery = time.Second

// progress tells the client, if it asked, how long its call has been under way, until done is called.
func (c *call) progress(ctx context.Context) (done func()) {
	token := c.request.Params.GetProgressToken()
	if token == nil || c.request.Session == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			_ = c.request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(n), // a client that is gone ends ctx
				Message: fmt.Sprintf("under way for %v", time.Duration(n)*progressEvery)})
		}
	}()
	return func() { cancel(); <-stopped }
}

func showScreen(ctx context.Context, c *call, in where) (answer, error) {
	t, err := c.server.places.target(ctx, in)
	if err != nil {
		return answer{}, err
	}
	text, err := c.server.gateway.Command(ctx, nil, "screen", "--json", "--", t.String()) // who attaches starts what is not there
	if err != nil {
		return answer{}, err
	}
	var screen agent.Screen
	if err := json.Unmarshal(text, &screen); err != nil {
		return answer{}, fmt.Errorf("screen: %w", err)
	}
	said := ""
	if screen.Stopped {
		said = "the sandbox is stopped; this is its last screen\n"
	}
	said += fmt.Sprintf("%s~%s: %d columns, %d rows, cursor in column %d of row %d\n", t.Sandbox, t.Session, screen.Cols, screen.Rows, screen.CursorX+1, screen.CursorY+1)
	return answer{object: screen, text: said + fence("screen", screen.Text)}, nil
}

// lives is an error for a session that is not there: a wait starts neither it nor a sandbox that is stopped.
func (c *call) lives(ctx context.Context, w where) error {
	t, err := c.server.places.target(ctx, w)
	if err != nil {
		return err
	}
	text, err := c.server.gateway.Command(ctx, nil, "sessions", "--json", "--", t.Sandbox)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		var one struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(line, &one); err != nil {
			return fmt.Errorf("sessions: %w", err)
		}
		if one.Name == t.Session {
			return nil
		}
	}
	return &agent.Error{Code: agent.CodeNotFound, Message: fmt.Sprintf("no session %s in sandbox %s: there is nothing to wait for", t.Session, t.Sandbox),
		Hint: "run starts a session, and a sandbox that is stopped"}
}

// logIn are the arguments of log.
type logIn struct {
	From  uint64 `json:"from,omitempty" jsonschema:"offset of the first byte; default 0"`
	Bytes int    `json:"bytes,omitempty" jsonschema:"how many bytes of the log, at most 262144; default 32768"`
	where
}

// logOut is what log answers, as the table's command prints it.
type logOut struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`     // exclusive; from here on with the next call
	End     uint64 `json:"end"`    // of the log
	Output  string `json:"output"` // as a person would read it
}

const maxLog = 256 << 10

func readLog(ctx context.Context, c *call, in logIn) (answer, error) {
	if in.Bytes < 0 || in.Bytes > maxLog {
		return answer{}, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("log: %d is not 1 to %d bytes", in.Bytes, maxLog), Hint: "read it a part at a time"}
	}
	if in.Bytes == 0 {
		in.Bytes = 32 << 10
	}
	t, err := c.server.places.target(ctx, in.where)
	if err != nil {
		return answer{}, err
	}
	out, err := c.server.logged(ctx, t, in.From, in.From+uint64(in.Bytes))
	if err != nil {
		return answer{}, err
	}
	said := fmt.Sprintf("bytes %d to %d of the log of %s~%s, which has %d\n", out.From, out.To, t.Sandbox, t.Session, out.End)
	return answer{object: out, text: said + fence("log", out.Output)}, nil
}

// logged reads bytes [from, to) of a session's log, or what there is of them.
func (s *Server) logged(ctx context.Context, t wire.Target, from, to uint64) (logOut, error) {
	var out logOut
	text, err := s.gateway.Command(ctx, nil, "log", "--json", fmt.Sprintf("--from=%d", from), fmt.Sprintf("--to=%d", to), "--", t.String())
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("log: %w", err)
	}
	return out, nil
}
