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

// where are the arguments that select a session.
type where struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name of another sandbox; default this server's sandbox"`
	Session string `json:"session,omitempty" jsonschema:"name of another terminal of the sandbox; default main. A missing session is started"`
}

// bounds are the arguments that limit the time and the output of a call.
type bounds struct {
	TimeoutS  float64 `json:"timeout_s,omitempty" jsonschema:"timeout in seconds, 0.1 to 600; default 50. The program continues after it"`
	MaxOutput int     `json:"max_output,omitempty" jsonschema:"limit of the returned output in bytes, 1 to 1000000; default 32768. Longer output has its head and tail; log returns the rest"`
	Screen    string  `json:"screen,omitempty" jsonschema:"when to return the screen: never, always or auto; default auto: for full-screen programs, pagers, and idle programs that read keys"`
}

// defaultTimeout is less than the minute that many clients wait for a tool. A call that a client
// cancels interrupts its command.
const defaultTimeout = 50 * time.Second

const (
	maxTimeout = 10 * time.Minute
	maxOutput  = 1_000_000
	maxCommand = 512 << 10 // it must fit one frame of the session stream
)

func (b bounds) read() (timeout time.Duration, output int, err error) {
	timeout = defaultTimeout
	if b.TimeoutS != 0 {
		timeout = time.Duration(b.TimeoutS * float64(time.Second))
		if b.TimeoutS > maxTimeout.Seconds() || timeout < 100*time.Millisecond {
			return 0, 0, &agent.Error{
				Code: agent.CodeUsage,
				Message: fmt.Sprintf(
					"timeout_s: %g is not in 0.1 to %g seconds",
					b.TimeoutS,
					maxTimeout.Seconds(),
				),
				Hint: "omit it, or call wait again: the program continues after the timeout",
			}
		}
	}
	if b.MaxOutput < 0 || b.MaxOutput > maxOutput {
		return 0, 0, &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("max_output: %d is not in 1 to %d bytes", b.MaxOutput, maxOutput),
			Hint:    "the tool log returns more, in parts",
		}
	}
	return timeout, b.MaxOutput, nil
}

// sessionCall is a call that runs something in a session or waits for it.
type sessionCall struct {
	where where
	agent.Call
	bounds bounds
	wait   *waitFor // set for a wait, which has no Call
	// what to do when the client cancels the call
	stop stopping
	also func(context.Context, agent.Result) agent.Result // changes the Result; may be nil
}

// stopping says what to stop when a client cancels a call.
type stopping int

const (
	nothing   stopping = iota // the program continues
	pressed                   // press ^C: an earlier call started the program
	interrupt                 // interrupt the command that the call started
)

type waitFor struct {
	phases   []agent.Phase
	keyboard bool
	pattern  bool
}

// addSession adds the tools that work in a session.
func (s *Server) addSession() {
	type runIn struct {
		Command string `json:"command" jsonschema:"shell command, which may have several lines"`
		Adopt   bool   `json:"adopt,omitempty" jsonschema:"run it in the shell behind ssh or another relay, once, when looks_like_shell is true; later calls do not need it"`
		where
		bounds
	}
	add(
		s,
		tool{
			name: "run",
			about: "Run a shell command in a terminal of the sandbox. Returns its output when it " +
				"has ended (exit_code), when it asks for input (ended: waiting; then use " +
				"answer), or after timeout_s (ended: deadline; it still runs, then use wait). " +
				"The shell keeps its directory and variables. Do not append & and do not " +
				"redirect input: a command that asks for input is recognized.",
		},
		func(ctx context.Context, c *call, in runIn) (answer, error) {
			return c.do(
				ctx,
				sessionCall{
					where:  in.where,
					bounds: in.bounds,
					stop:   interrupt,
					Call:   agent.Call{Command: in.Command, Adopt: in.Adopt},
				},
			)
		},
	)

	type answerIn struct {
		Text  string `json:"text" jsonschema:"text to type; empty presses only Enter"`
		Enter *bool  `json:"enter,omitempty" jsonschema:"press Enter after the text; default true"`
		where
		bounds
	}
	add(
		s,
		tool{
			name: "answer",
			about: "Type a line to the program that asks (ended: waiting or attention), and " +
				"return as run does. If no program asks, nothing is typed and the error is " +
				"not_waiting, so that a late answer never runs as a command.",
		},
		func(ctx context.Context, c *call, in answerIn) (answer, error) {
			call := agent.Call{Text: in.Text, Raw: in.Enter != nil && !*in.Enter, Answer: true}
			if in.Text == "" {
				if call.Raw {
					return answer{}, &agent.Error{
						Code:    agent.CodeUsage,
						Message: "answer: nothing to type",
						Hint:    "set text, or omit enter to press Enter",
					}
				}
				call = agent.Call{Keys: []string{"Enter"}, Answer: true}
			}
			return c.do(
				ctx,
				sessionCall{where: in.where, bounds: in.bounds, stop: pressed, Call: call},
			)
		},
	)

	type keysIn struct {
		Keys []string `json:"keys" jsonschema:"names of keys in order, such as ^C, Enter, Up, Tab, Esc, F1, PageDown, or single characters; for text use answer"`
		where
		bounds
	}
	add(
		s,
		tool{
			name: "keys",
			about: "Press keys in the terminal, for programs that read keys instead of lines: " +
				"editors, pagers, menus. Returns when the program is idle again, with the screen.",
		},
		func(ctx context.Context, c *call, in keysIn) (answer, error) {
			if len(in.Keys) == 0 {
				return answer{}, &agent.Error{
					Code:    agent.CodeUsage,
					Message: "keys: no key given",
					Hint:    `set keys, such as ["^C"] or ["Down", "Enter"]`,
				}
			}
			return c.do(
				ctx,
				sessionCall{where: in.where, bounds: in.bounds, Call: agent.Call{Keys: in.Keys}},
			)
		},
	)

	add(
		s,
		tool{
			name:  "wait",
			reads: true,
			about: "Wait for the program of a session, such as after ended: deadline. Returns " +
				"immediately if no program runs. Output is what was printed during the call; log " +
				"returns earlier output. With pattern, it returns when the program prints a " +
				"match (ended: matched), asks or ends.",
		},
		wait,
	)

	add(
		s,
		tool{
			name:  "screen",
			reads: true,
			about: "Return what the terminal shows, as text, with the cursor. For full-screen " +
				"programs, and to check what a session does.",
		},
		showScreen,
	)

	add(
		s,
		tool{
			name: "interrupt",
			about: "Stop the program of a session: ^C, then TERM and KILL if it does not end. " +
				"The shell and its directory are kept. The receipt lists the ended processes.",
		},
		func(ctx context.Context, c *call, in where) (answer, error) {
			return c.on(
				ctx,
				in,
				c.server.places.existing,
				func(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
					ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
					defer cancel()
					return sh.Interrupt(ctx)
				},
			)
		},
	)

	add(
		s,
		tool{
			name:  "log",
			reads: true,
			about: "Read the log of a session: everything that it printed, by byte offset. Use " +
				"from and to of a result to read truncated output, or output between two calls.",
		},
		readLog,
	)
}

// do makes a call in a session and reports progress to the client.
func (c *call) do(ctx context.Context, sc sessionCall) (answer, error) {
	timeout, output, err := sc.bounds.read()
	if err != nil {
		return answer{}, err
	}
	if sc.wait == nil && sc.Keys == nil && strings.TrimSpace(sc.Command) == "" && sc.Text == "" {
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: c.request.Params.Name + ": the command is empty",
			Hint:    "set it to a shell command",
		}
	}
	if len(sc.Command)+len(sc.Text) > maxCommand {
		return answer{}, &agent.Error{
			Code: agent.CodeUsage,
			Message: fmt.Sprintf(
				"%s: the text is longer than %d bytes",
				c.request.Params.Name,
				maxCommand,
			),
			Hint: "write a script with write_file, and run it",
		}
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
	return c.on(
		ctx,
		sc.where,
		open,
		func(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
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
			// The client cancelled the call. A broken connection has another cause.
			if err != nil && context.Cause(ctx) == context.Canceled { //nolint:errorlint // as is
				res, err = c.stopped(ctx, sh, sc.stop)
			}
			if err == nil && sc.also != nil {
				res = sc.also(ctx, res)
			}
			return res, err
		},
	)
}

// showing sets the screen of a wait's Result to what the call asks for. A wait returns that of
// ScreenAuto.
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

// stands returns the state of a session whose reply to a wait did not arrive in time.
func stands(ctx context.Context, sh *agent.Shell) (agent.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	res, err := sh.Wait(
		ctx,
		agent.PhasePrompt,
		agent.PhaseRunning,
		agent.PhaseWaiting,
		agent.PhaseContinuation,
		agent.PhaseOpaque,
		agent.PhaseDead,
	)
	if err == nil && res.Phase == agent.PhaseRunning {
		res.Ended = agent.EndedDeadline
	}
	return res, err
}

// opener returns the shell of a session: places.shell or places.existing.
type opener func(context.Context, wire.Target) (*agent.Shell, error)

// on calls do with the shell of a session that open returns, and converts the Result to an answer.
func (c *call) on(
	ctx context.Context,
	w where,
	open opener,
	do func(context.Context, *agent.Shell) (agent.Result, error),
) (answer, error) {
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
	return answer{
		object: res,
		text:   resultText(res),
		failed: res.Ended == agent.EndedRefused || res.Ended == agent.EndedLost,
	}
}

// refused returns the Result of a call that was rejected with the error why.
func refused(t wire.Target, why *agent.Error) agent.Result {
	return agent.Result{
		Sandbox:   t.Sandbox,
		Session:   t.Session,
		Ended:     agent.EndedRefused,
		Phase:     agent.PhaseOpaque,
		Attention: "no",
		Error:     why,
		Basis:     []agent.Basis{},
		Disputed:  []agent.Basis{},
		Notes:     []string{},
		Denied:    []agent.Denial{},
	}
}

// in is on without the conversion to an answer.
func (c *call) in(
	ctx context.Context,
	t wire.Target,
	open opener,
	do func(context.Context, *agent.Shell) (agent.Result, error),
) (agent.Result, error) {
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

// stopped stops what a cancelled call started, and returns the state of the session.
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

// progressEvery is the interval of progress notifications.
const progressEvery = time.Second

// progress sends progress notifications until done is called, if the client asked for them.
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
			// An error means that the client has disconnected, which ends ctx.
			_ = c.request.Session.NotifyProgress(
				ctx,
				&sdk.ProgressNotificationParams{
					ProgressToken: token,
					Progress:      float64(n),
					Message:       fmt.Sprintf("running for %v", time.Duration(n)*progressEvery),
				},
			)
		}
	}()
	return func() { cancel(); <-stopped }
}

func showScreen(ctx context.Context, c *call, in where) (answer, error) {
	t, err := c.server.places.target(ctx, in)
	if err != nil {
		return answer{}, err
	}
	// The command, because attaching would start a missing session or a stopped sandbox.
	text, err := c.server.gateway.Command(ctx, nil, "screen", "--json", "--", t.String())
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
	said += fmt.Sprintf(
		"%s~%s: %d columns, %d rows, cursor in column %d of row %d\n",
		t.Sandbox,
		t.Session,
		screen.Cols,
		screen.Rows,
		screen.CursorX+1,
		screen.CursorY+1,
	)
	return answer{object: screen, text: said + fence("screen", screen.Text)}, nil
}

// lives returns an error if the session does not exist: a wait starts neither a session nor a
// stopped sandbox.
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
	return &agent.Error{
		Code: agent.CodeNotFound,
		Message: fmt.Sprintf(
			"no session %s in sandbox %s",
			t.Session,
			t.Sandbox,
		),
		Hint: "run starts a missing session and a stopped sandbox",
	}
}
