package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Python are the settings of the sandboxes that python creates, and of the code that it runs.
type Python struct {
	Image     string // empty is the hub's default
	Network   sandbox.Network
	Memory    int64 // in bytes; 0 is the hub's default
	Isolation string

	DockerOptions []string // as lifecycle.NewSpec.Options
	About         string

	Options python.Options
}

// defaultPython is the sandbox of a python command without a name.
const defaultPython = "python"

func pythonCommand(env *Env) *cobra.Command {
	var name, contextName, code string
	var timeout time.Duration
	var asJSON, lines, interactive, restart, end, packages, create bool
	cmd := &cobra.Command{
		Use:   "python [NAME --] [--context C] [-c CODE | FILE | -]",
		Short: "run Python code in a kernel that keeps its variables",
		Long: "Run Python code in a Jupyter kernel in a sandbox, and print its output, the\n" +
			"value of its last expression and its exception. Variables stay for the next\n" +
			"call in the same context, until the context is idle for too long. A missing\n" +
			"sandbox is created from the image of key python.image.\n\n" +
			"FILE is a local file, - is standard input. --json prints one object, with\n" +
			"images.\n\n" +
			"On a terminal, you answer input() and getpass; ^D ends the input. Without a\n" +
			"terminal, -i answers with lines of standard input. Without -i, code that asks\n" +
			"for input is interrupted.\n\n" +
			"A terminal that can draw images does so; others print a description. --images\n" +
			"sets the format, also without a terminal. --save-images writes each image to a\n" +
			"new file in a directory: 1.png, or the next free number.\n\n" +
			"The exit code is 0, or 1 after an exception, or that of SystemExit. 123 means\n" +
			"that the code asked for input and got none, 124 that it ran into --timeout,\n" +
			"125 that it did not run or that its kernel died.",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := NameFirst(cmd, args)
			if err != nil {
				return err
			}
			given := cmd.Flags().Changed("code")
			switch {
			case len(args) > 1:
				e := usage("python: unexpected argument %q", args[1])
				e.Hint = "usage: " + cmd.UseLine()
				return e
			case timeout < 0:
				return usage("--timeout %v: must not be negative", timeout)
			case given && len(args) > 0, !given && len(args) == 0 && !restart && !end && !packages:
				return usage(
					"python: no code: use -c CODE, FILE, or - to read it from standard input")
			case len(args) > 0 && args[0] != "-":
				return &wire.Error{
					Code:    wire.CodeUsage,
					Message: "python: only the command line tool reads files",
					Hint:    "over ssh: python - < FILE",
				}
			case cmd.Flags().Changed("images"), cmd.Flags().Changed("save-images"):
				return &wire.Error{
					Code:    wire.CodeUsage,
					Message: "python: only the command line tool draws and saves images",
					Hint:    "over ssh, use --json to get them",
				}
			case asJSON && lines:
				return usage("python: --json and --json-lines are mutually exclusive")
			case lines && packages:
				return usage(
					"python: --packages and --json-lines are mutually exclusive; use --json")
			case len(args) > 0 && interactive:
				return usage("python: - and -i both read standard input: use one of them")
			}
			if len(args) > 0 {
				script, err := io.ReadAll(io.LimitReader(env.Stdin, maxScript+1))
				if err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				if len(script) > maxScript {
					return usage(
						"python: the code is longer than %d bytes: copy it to the sandbox and "+
							"import it", maxScript)
				}
				code, given = string(script), true
			}
			name, err := wire.ParseSandbox(name)
			if err != nil {
				return err
			}
			if err := env.ensure(cmd.Context(), env.pythonSpec(name), create); err != nil {
				return err
			}
			client := env.pythonClient(name)
			defer client.Close()
			in, err := python.Open(cmd.Context(), client, env.Python.Options)
			if err != nil {
				return err
			}
			defer in.Close()
			if packages {
				return env.packages(cmd.Context(), in, asJSON)
			}
			c, err := in.Context(cmd.Context(), contextName)
			if err != nil {
				return err
			}
			if restart {
				if err := c.Restart(cmd.Context()); err != nil {
					return err
				}
			}
			if given {
				p := &pythonCall{env: env, c: c, name: name, asJSON: asJSON, lines: lines,
					interactive: interactive, piped: len(args) > 0}
				err = p.run(cmd.Context(), python.Call{Code: code, Timeout: timeout})
				// it fails only if the sandbox is gone
				_ = c.Settle(context.WithoutCancel(cmd.Context()))
			}
			if end {
				if closed := c.Close(context.WithoutCancel(cmd.Context())); err == nil {
					err = closed
				}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", defaultPython, "name of the sandbox")
	cmd.Flags().BoolVar(&create, "create", false,
		"create a missing sandbox even if its name is similar to that of another")
	cmd.Flags().StringVar(&contextName, "context", wire.DefaultSession,
		"context that holds the variables of the code")
	cmd.Flags().StringVarP(&code, "code", "c", "", "code to run")
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false,
		"answer input() with lines of standard input")
	cmd.Flags().DurationVar(&timeout, "timeout", 0,
		"interrupt the code after this duration, such as 5m (default: key python.timeout)")
	cmd.Flags().BoolVar(&restart, "restart", false, "start a new kernel first")
	cmd.Flags().BoolVar(&end, "end", false, "end the context afterwards")
	cmd.Flags().BoolVar(&packages, "packages", false,
		"list the packages that code can import, and run no code")
	cmd.Flags().String("images", "",
		"format of images: auto, kitty, iterm2, sixel or none (default: key python.images)")
	cmd.Flags().String("save-images", "", "write each image to a new file in this directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as one object")
	cmd.Flags().BoolVar(&lines, "json-lines", false,
		"print each output as an object when it arrives, then the result")
	return cmd
}

// pythonSpec describes the sandbox that python creates.
func (env *Env) pythonSpec(name string) lifecycle.NewSpec {
	p := env.Python
	return lifecycle.NewSpec{Name: name, Reuse: true, Image: p.Image, Network: p.Network,
		Isolation: p.Isolation, Limits: sandbox.Limits{Memory: p.Memory},
		Options: p.DockerOptions, About: p.About}
}

func (env *Env) pythonClient(name string) *agent.Client {
	return agent.NewClient(name, nil, func(ctx context.Context) (*connect.Conn, error) {
		conn, err := env.Hub.Relay.Open(ctx, env.Principal, name, env.progress(false))
		if err != nil {
			return nil, env.public(err)
		}
		return conn, nil
	})
}

// packages prints the packages that code can import.
func (env *Env) packages(ctx context.Context, in *python.Interpreter, asJSON bool) error {
	list, err := in.Packages(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return env.printJSON(map[string]any{"packages": list})
	}
	for _, p := range list {
		fmt.Fprintf(env.Stdout, "%s %s\n", text.Line(p.Name, 200), text.Line(p.Version, 200))
	}
	return nil
}

// pythonCall is one call and how it is printed.
type pythonCall struct {
	env         *Env
	c           *python.Context
	name        string
	asJSON      bool
	lines       bool // --json-lines
	interactive bool
	piped       bool // the code was read from standard input
}

func (p *pythonCall) run(ctx context.Context, call python.Call) error {
	env := p.env
	ctx, cancel := context.WithCancel(ctx)
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() { // waits for the caller's ^C
		defer close(watched)
		select {
		case <-env.Interrupts:
			cancel()
		case <-ended:
		}
	}()
	defer func() { close(ended); <-watched; cancel() }()
	printer := NewPythonPrinter(env.Stdout, env.Stderr)
	switch { // the end of the call reports a writer that fails
	case p.lines:
		call.Output = func(o python.Output) { _ = env.printJSON(PythonLine{Output: &o}) }
	case !p.asJSON:
		call.Output = printer.Output
	}
	record := env.Hub.Relay.Recorder(env.Principal, p.name)
	res, err := p.c.Execute(ctx, call)
	for from := p.answers(printer); err == nil && res.Ended == agent.EndedWaiting && from != nil; {
		line, none := from.answer(ctx, res)
		if none != nil {
			break
		}
		res, err = p.c.Answer(ctx, line)
	}
	waits := res.Ended == agent.EndedWaiting
	if waits && ctx.Err() != nil { // the user pressed ^C instead of answering
		res.Ended = agent.EndedInterrupted
	}
	record(gateway.ExecEvent{Command: "python --context " + p.c.Name() + " -c " + call.Code,
		Exit: pythonStatus(res)})
	if err != nil && res.Ended == "" {
		return err
	}
	if waits { // there is no answer
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer done()
		_ = p.c.Interrupt(stop) // if it fails, the code ends with its context
	}
	switch {
	case p.lines:
		res.Outputs = []python.Output{}
		err = env.printJSON(PythonLine{Result: &res})
	case p.asJSON:
		err = env.printJSON(res)
	default:
		err = printer.Close(res)
	}
	if err != nil {
		return err
	}
	if code := pythonStatus(res); code != 0 {
		return exitError(code)
	}
	return nil
}

// answers returns the source of answers to input(), or nil if there is none.
func (p *pythonCall) answers(printer *PythonPrinter) answers {
	lines := bufio.NewReader(io.LimitReader(p.env.Stdin, maxScript))
	switch {
	case p.piped:
		return nil
	case p.lines && p.interactive:
		return prepared{lines, func(res python.Result) {
			_ = p.env.printJSON(PythonLine{Prompt: &PythonPrompt{res.Prompt, res.Password}})
		}}
	case p.env.Pty != nil && !p.asJSON && !p.lines:
		pty := p.env.Pty
		return &typist{PythonTypist{In: p.env.Stdin, Out: p.env.Stdout, Printer: printer,
			Size: func() (cols, rows int) {
				select {
				case w := <-p.env.Resized:
					pty.Cols, pty.Rows = w.Cols, w.Rows
				default:
				}
				return int(pty.Cols), int(pty.Rows)
			}}}
	case p.interactive && p.asJSON:
		return prepared{lines, func(python.Result) {}}
	case p.interactive:
		return prepared{lines, func(res python.Result) { printer.Prompt(res.Prompt) }}
	}
	return nil
}

// exitName is the exception of sys.exit.
const exitName = "SystemExit"

// exitText is what python prints for sys.exit(value): nothing for a status, else the value.
func exitText(value string) string {
	if _, err := strconv.Atoi(value); err == nil || value == "" || value == "None" {
		return ""
	}
	return value + "\n"
}

// pythonStatus returns the exit code for the result of a call.
func pythonStatus(res python.Result) int {
	switch res.Ended {
	case agent.EndedWaiting:
		return wire.ExitWaiting
	case agent.EndedDeadline:
		return wire.ExitDeadline
	case agent.EndedInterrupted:
		return wire.ExitInterrupt
	case agent.EndedDone:
		switch {
		case res.OK:
			return 0
		case res.Error != nil && res.Error.Name == exitName:
			if n, err := strconv.Atoi(res.Error.Value); err == nil {
				return n & 0xff
			}
			if res.Error.Value == "" || res.Error.Value == "None" {
				return 0
			}
		}
		return 1
	}
	return wire.ExitFailed
}
