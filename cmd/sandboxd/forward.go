package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// forwarded makes cmd run on the daemon's control host.
func (c *cli) forwarded(cmd *cobra.Command) {
	if cmd.HasSubCommands() {
		for _, sub := range cmd.Commands() {
			c.forwarded(sub)
		}
		return
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		args := cmd.Flags().Args() // without the flags that type and keys parse after the name
		if cmd.Name() == "run" || cmd.Name() == "python" {
			var err error
			if args, err = command.NameFirst(cmd, args); err != nil {
				return err
			}
		}
		if err := c.localPaths(cmd); err != nil {
			return err
		}
		var images *pictures
		if cmd.Name() == "python" {
			var err error
			if images, err = c.pictures(cmd); err != nil {
				return err
			}
		}
		var stdin io.Reader = os.Stdin
		if commandName(cmd) == secretSet && len(args) > 0 {
			var err error
			if stdin, err = secretInput(cmd, args); err != nil {
				return err
			}
		}
		control, err := c.dial(cmd.Context(), wire.ControlHost, startsDaemon(cmd))
		if err != nil {
			return err
		}
		defer control.Close()
		terminal := isTerminal(os.Stdin) && isTerminal(os.Stdout)
		if cmd.Name() == "python" {
			terminal = terminal && isTerminal(os.Stderr) // a prompt there must be visible
			if stdin, args, err = pythonFile(cmd, args, terminal); err != nil {
				return err
			}
		}
		remote := agent.Cmd{Command: remoteLine(cmd, args), Stdout: os.Stdout, Stderr: os.Stderr}
		if readsInput(cmd, args) {
			remote.Stdin = stdin
		}
		if images != nil {
			return images.run(cmd.Context(), control, cmd, args, remote)
		}
		if terminal && wantsTerminal(cmd) {
			return throughTerminal(cmd.Context(), control, remote, cmd.Name() == "exec")
		}
		if drawsBars(cmd) {
			bars := newBars(os.Stderr)
			out := bars.before(shownOn(remote.Stdout))
			defer bars.Close()
			defer out.Close()
			remote.Stdout, remote.Stderr = out, bars
		}
		return c.otherBuild(lostResult(cmd, args, forward(cmd.Context(), control, remote)))
	}
}

// lostResult prints the Result of a call with --json whose connection to the daemon broke, so that
// clients always parse the same object. It returns other errors unchanged.
func lostResult(cmd *cobra.Command, args []string, err error) error {
	lost, ok := errors.AsType[*wire.Error](err)
	if !ok || lost.Reason != wire.LostGateway || !flagSet(cmd, "json") ||
		!slices.Contains([]string{"run", "type", "keys", "wait", "interrupt"}, cmd.Name()) {
		return err
	}
	named := ""
	if f := cmd.Flags().Lookup("name"); f != nil {
		named = f.Value.String()
	}
	if named == "" && len(args) > 0 && cmd.Name() != "run" {
		named = args[0]
	}
	t, _ := wire.ParseTarget(named) // only the daemon knows the sandbox of a directory
	res := wire.LostResult(t, lost)
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		return err
	}
	return exitCode(res.ExitStatus())
}

// startsDaemon reports whether cmd starts a missing daemon. Only the commands that users begin with
// do.
func startsDaemon(cmd *cobra.Command) bool {
	return slices.Contains([]string{"run", "new", "python"}, commandName(cmd))
}

// readsInput reports whether a command reads standard input. Other commands leave it to the
// caller's shell.
func readsInput(cmd *cobra.Command, args []string) bool {
	switch cmd.Name() {
	case "run":
		return len(args) == 1 && args[0] == "-"
	case "python":
		return len(args) == 1 && args[0] == "-" || flagSet(cmd, "interactive")
	case "exec":
		return flagSet(cmd, "interactive") || flagSet(cmd, "tty")
	case "type":
		return flagSet(cmd, "stdin")
	}
	return commandName(cmd) == secretSet
}

// wantsTerminal reports whether a command uses the caller's terminal.
func wantsTerminal(cmd *cobra.Command) bool {
	switch commandName(cmd) {
	case "watch":
		return true
	case "add", "start": // a host may ask for a password
		return !flagSet(cmd, "json")
	case "new":
		return cmd.Flags().Changed("host") && !flagSet(cmd, "json")
	case "rm": // it asks before it removes a running sandbox
		return !flagSet(cmd, "json") && !flagSet(cmd, "force")
	case "ls":
		return flagSet(cmd, "watch") && !flagSet(cmd, "json")
	case "replay":
		return !flagSet(cmd, "cast") && !flagSet(cmd, "json")
	}
	return cmd.Name() == "exec" && flagSet(cmd, "tty")
}

func flagSet(cmd *cobra.Command, name string) bool {
	f := cmd.Flags().Lookup(name)
	return f != nil && f.Value.String() == "true"
}

// remoteLine returns the command line for the daemon: the flags as --name=value, --, and the
// arguments.
func remoteLine(cmd *cobra.Command, args []string) string {
	words := strings.Fields(commandName(cmd))
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if cmd.InheritedFlags().Lookup(f.Name) != nil {
			return // only for this program, such as --gateway
		}
		if slices.Contains(localFlags[cmd.Name()], f.Name) {
			return // likewise
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				words = append(words, "--"+f.Name+"="+v)
			}
			return
		}
		words = append(words, "--"+f.Name+"="+f.Value.String())
	})
	return text.Quote(append(append(words, "--"), args...)...)
}

// forward runs a command on the daemon. The first ^C is sent to it, the second one ends this
// client. Output to a terminal is reduced to text.
func forward(ctx context.Context, control *agent.Client, remote agent.Cmd) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, to := range []*io.Writer{&remote.Stdout, &remote.Stderr} {
		shown := shownOn(*to)
		defer shown.Close()
		*to = shown
	}
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	signals := make(chan string)
	remote.Signals = signals
	go func() {
		first := true
		for {
			select {
			case <-interrupts:
				if !first {
					cancel()
					return
				}
				first = false
				select {
				case signals <- "INT":
				case <-ctx.Done():
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	exit, err := control.Exec(ctx, remote)
	switch {
	case errors.Is(err, context.Canceled):
		return exitCode(wire.ExitInterrupt)
	case errors.Is(err, &wire.Error{Code: wire.CodeLost}):
		return &wire.Error{
			Code: wire.CodeLost, Reason: wire.LostGateway,
			Message: "connection to the daemon lost during the call",
			Hint: "programs in terminals keep running, except on a host with tier marks or " +
				"screen; " +
				"when the daemon is back, see sandboxd ls and sandboxd log",
		}
	case err != nil:
		return err
	case exit.Code != 0:
		return exitCode(exit.Code)
	}
	return nil
}

// throughTerminal is forward with the caller's terminal in raw mode. raw passes standard output on
// unchanged, for a program that has a terminal of its own.
func throughTerminal(ctx context.Context, control *agent.Client, remote agent.Cmd, raw bool) error {
	cols, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return fmt.Errorf("terminal size: %w", err)
	}
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), before) }() // fails only if it is gone
	drawn := view.NewFilter(os.Stdout)
	defer drawn.Close()
	remote.Stdout = drawn
	if raw {
		remote.Stdout = asItIs{os.Stdout}
	}
	if isTerminal(os.Stderr) {
		said := view.NewFilter(os.Stderr)
		defer said.Close()
		remote.Stderr = said
	}
	resized := make(chan agent.Size)
	changes := make(chan os.Signal, 1)
	notifyResize(changes)
	ctx, cancel := context.WithCancel(ctx)
	defer signal.Stop(changes)
	defer cancel()
	go func() {
		for {
			select {
			case <-changes:
				if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
					select {
					case resized <- agent.Size{Cols: cols, Rows: rows}:
					case <-ctx.Done():
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	remote.Stdin = os.Stdin
	remote.Pty = &agent.Pty{Term: os.Getenv("TERM"), Cols: cols, Rows: rows}
	remote.Resized = resized
	return forward(ctx, control, remote)
}

// dial connects to the daemon as user: the name of the control host, or of a sandbox. If start is
// set it starts a daemon on this machine if none answers.
func (c *cli) dial(ctx context.Context, user string, start bool) (*agent.Client, error) {
	host, o, err := c.reach(ctx, start)
	if err != nil {
		return nil, err
	}
	client, err := agent.Dial(ctx, "ssh://"+user+"@"+host, o)
	return client, c.notReached(err, host, o)
}

// notReached returns err, with a hint if the daemon at host does not answer.
func (c *cli) notReached(err error, host string, o agent.Options) error {
	// another program has its process ID
	if errors.Is(err, syscall.ECONNREFUSED) && c.gateway == "" {
		return &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: fmt.Sprintf("the daemon of %s does not answer at %s", o.State, host),
			Hint:    "start it: sandboxd up",
		}
	}
	return err
}

// reach returns the daemon's address and the options for the login.
func (c *cli) reach(ctx context.Context, start bool) (string, agent.Options, error) {
	o := agent.Options{Kind: agent.KindGateway, State: string(c.config.State)}
	if c.gateway != "" {
		u, err := url.Parse(c.gateway)
		if err != nil || u.Scheme != "ssh" || u.Hostname() == "" {
			return "", o, usage(fmt.Sprintf("--gateway %q: not an ssh URI", c.gateway),
				"write ssh://HOST:PORT")
		}
		// The key says who logs in.
		if name := u.User.String(); name != "" && name != wire.ControlHost {
			return "", o, usage(fmt.Sprintf("--gateway %q: it takes no user name", c.gateway),
				"write ssh://HOST:PORT; -n names the sandbox")
		}
		if u.Port() == "" {
			return u.Hostname(), o, nil
		}
		return u.Host, o, nil
	}
	e, err := c.daemon()
	if err != nil && start {
		e, err = c.startDaemon(ctx, os.Stderr, false)
	}
	if err != nil {
		return "", o, err
	}
	o.KnownHosts, o.Identity = []string{e.KnownHosts}, e.Identity
	return e.address(), o, nil
}

// daemon returns the endpoint of the daemon that serves the state directory, if one runs. It does
// not connect.
func (c *cli) daemon() (endpoint, error) {
	state := string(c.config.State)
	e, err := readEndpoint(state)
	if err != nil || !store.Runs(state, e.PID) {
		if err := runsDaemon(); err != nil {
			return e, err
		}
		return e, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("no daemon runs for %s", state), Hint: "start it: sandboxd up"}
	}
	return e, nil
}

// absolute resolves a path of this machine against the working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// loginName returns the user's login name, or "" if the system does not know it.
func loginName() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}
