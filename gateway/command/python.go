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

// Python says how sandboxes are made that python makes, and how it runs code.
type Python struct {
	Image     string // empty is the hub's
	Network   sandbox.Network
	Memory    int64 // 0 is the default of all
	Isolation string

	DockerOptions []string // as lifecycle.NewSpec.Options
	About         string

	Options python.Options
}

// defaultPython is the sandbox of those who name none.
const defaultPython = "python"

func pythonCommand(env *Env) *cobra.Command {
	var name, contextName, code string
	var timeout time.Duration
	var asJSON, lines, interactive, restart, end, packages, create bool
	cmd := &cobra.Command{
		Use:   "python [NAME --] [--context C] [-c CODE | FILE | -]",
		Short: "run Python code in a kernel that keeps its variables",
		Long: "Run Python in a Jupyter kernel of a sandbox. What the code defines is there for the next call in the same context,\n" +
			"until the context was idle for long. A missing sandbox is made, of the image that the key python.image names.\n\n" +
			"FILE is one of this machine, - is standard input. What the code prints, the value of its last expression and its\n" +
			"exception are printed; with --json all of it is one object, with images.\n\n" +
			"At a terminal you are asked what the code asks by input() and getpass; ^D is the end of input. Elsewhere -i\n" +
			"answers with lines of standard input, and without it such code is interrupted.\n\n" +
			"Images are drawn where the terminal can: it is asked when the first one comes. --images says how instead, and is\n" +
			"obeyed where there is no terminal, too; else images are named. --save-images writes each, as it came, to a new file\n" +
			"of that directory: 1.png, or the next number that is free.\n\n" +
			"The exit code is 0, or 1 after an exception (that of SystemExit if it has one); 123 means that the code asked for\n" +
			"input and nobody was there to answer, 124 that its time was up and it was interrupted, 125 that it did not run or its kernel died.",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := NameFirst(cmd, args)
			if err != nil {
				return err
			}
			given := cmd.Flags().Changed("code")
			switch {
			case len(args) > 1:
				e := usage("python: %q is one argument too many", args[1])
				e.Hint = "usage: " + cmd.UseLine()
				return e
			case timeout < 0:
				return usage("--timeout %v: a call takes longer than that", timeout)
			case given && len(args) > 0, !given && len(args) == 0 && !restart && !end && !packages:
				e := usage("python: no code; give -c CODE, FILE, or - to read it from standard input")
				return e
			case len(args) > 0 && args[0] != "-":
				return &wire.Error{Code: wire.CodeUsage, Message: "python: files are read by the command line tool", Hint: "over ssh: python - < FILE"}
			case cmd.Flags().Changed("images"), cmd.Flags().Changed("save-images"):
				return &wire.Error{Code: wire.CodeUsage, Message: "python: images are drawn and saved by the command line tool", Hint: "over ssh: --json has them"}
			case asJSON && lines:
				return usage("python: --json prints one object, and --json-lines many")
			case lines && packages:
				return usage("python: --packages prints a list, in --json an object")
			case len(args) > 0 && interactive:
				return usage("python: - reads the code from standard input, and -i answers")
			}
			if len(args) > 0 {
				script, err := io.ReadAll(io.LimitReader(env.Stdin, maxScript+1))
				if err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				if len(script) > maxScript {
					return usage("the code is longer than %d bytes: copy it into the sandbox and import it", maxScript)
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
				p := &pythonCall{env: env, c: c, name: name, asJSON: asJSON, lines: lines, interactive: interactive, piped: len(args) > 0}
				err = p.run(cmd.Context(), python.Call{Code: code, Timeout: timeout})
				_ = c.Settle(context.WithoutCancel(cmd.Context())) // or the sandbox has gone, too
			}
			if end {
				if closed := c.Close(context.WithoutCancel(cmd.Context())); err == nil {
					err = closed
				}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", defaultPython, "sandbox")
	cmd.Flags().BoolVar(&create, "create", false, "make a missing sandbox also if its name is almost that of another")
	cmd.Flags().StringVar(&contextName, "context", wire.DefaultSession, "whose variables the code sees")
	cmd.Flags().StringVarP(&code, "code", "c", "", "code to run")
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false, "answer input() with lines of standard input")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "after which the code is interrupted (default the key python.timeout)")
	cmd.Flags().BoolVar(&restart, "restart", false, "begin with a new kernel")
	cmd.Flags().BoolVar(&end, "end", false, "end the context afterwards")
	cmd.Flags().BoolVar(&packages, "packages", false, "list the packages that code can import, instead")
	cmd.Flags().String("images", "", "how images are drawn: auto, kitty, iterm2, sixel, none (default the key python.images)")
	cmd.Flags().String("save-images", "", "write images to new files in this directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as one object")
	cmd.Flags().BoolVar(&lines, "json-lines", false, "print each output as an object as it comes, and then the result")
	return cmd
}

// pythonSpec is the sandbox that python makes.
func (env *Env) pythonSpec(name string) lifecycle.NewSpec {
	p := env.Python
	return lifecycle.NewSpec{Name: name, Reuse: true, Image: p.Image, Network: p.Network, Isolation: p.Isolation, Limits: sandbox.Limits{Memory: p.Memory},
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

// packages prints what code can import.
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

// pythonCall is one call, as the command line shows it.
type pythonCall struct {
	env         *Env
	c           *python.Context
	name        string
	asJSON      bool
	lines       bool // JSON as it comes
	interactive bool
	piped       bool // the code came by standard input
}

func (p *pythonCall) run(ctx context.Context, call python.Call) error {
	env := p.env
	ctx, cancel := context.WithCancel(ctx)
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() { // the caller's ^C
		defer close(watched)
		select {
		case <-env.Interrupts:
			cancel()
		case <-ended:
		}
	}()
	defer func() { close(ended); <-watched; cancel() }()
	printer := NewPythonPrinter(env.Stdout, env.Stderr)
	switch { // whom nobody reads any more the end of the call tells
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
	if waits && ctx.Err() != nil { // who would have answered pressed ^C
		res.Ended = agent.EndedInterrupted
	}
	record(gateway.ExecEvent{Command: "python --context " + p.c.Name() + " -c " + call.Code, Exit: pythonStatus(res)})
	if err != nil && res.Ended == "" {
		return err
	}
	if waits { // nobody is here to answer it
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer done()
		_ = p.c.Interrupt(stop) // else it ends with its context
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

// answers are nil where nobody is there to answer.
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
		return &typist{PythonTypist{In: p.env.Stdin, Out: p.env.Stdout, Printer: printer, Size: func() (cols, rows int) {
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

// exitText is what python prints of sys.exit with value: nothing of a status, and of anything else itself.
func exitText(value string) string {
	if _, err := strconv.Atoi(value); err == nil || value == "" || value == "None" {
		return ""
	}
	return value + "\n"
}

// pythonStatus is the exit code that a call's result means.
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
