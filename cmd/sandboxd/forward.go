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

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// forwarded makes cmd, of the daemon's table, run there.
func (c *cli) forwarded(cmd *cobra.Command) {
	if cmd.HasSubCommands() {
		for _, sub := range cmd.Commands() {
			c.forwarded(sub)
		}
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
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
		lobby, err := c.dial(cmd.Context(), wire.Lobby, startsDaemon(cmd))
		if err != nil {
			return err
		}
		defer lobby.Close()
		var stdin io.Reader = os.Stdin
		terminal := isTerminal(os.Stdin) && isTerminal(os.Stdout)
		if cmd.Name() == "python" {
			terminal = terminal && isTerminal(os.Stderr) // else what the code says there would go elsewhere
			if stdin, args, err = pythonFile(cmd, args, terminal); err != nil {
				return err
			}
		}
		remote := agent.Cmd{Command: remoteLine(cmd, args), Stdout: os.Stdout, Stderr: os.Stderr}
		if readsInput(cmd, args) {
			remote.Stdin = stdin
		}
		if images != nil {
			return images.run(cmd.Context(), lobby, cmd, args, remote)
		}
		if terminal && wantsTerminal(cmd) {
			return throughTerminal(cmd.Context(), lobby, remote, cmd.Name() == "exec")
		}
		if drawsBars(cmd) {
			bars := newBars(os.Stderr)
			out := bars.before(shownOn(remote.Stdout))
			defer bars.Close()
			defer out.Close()
			remote.Stdout, remote.Stderr = out, bars
		}
		return lostResult(cmd, args, forward(cmd.Context(), lobby, remote))
	}
}

// lostResult prints the Result of a call in a session whose connection to the daemon broke, where its caller reads JSON: that is the
// shape which they read. Other errors are returned as they are.
func lostResult(cmd *cobra.Command, args []string, err error) error {
	lost, ok := errors.AsType[*wire.Error](err)
	if !ok || lost.Reason != wire.LostGateway || !flagSet(cmd, "json") || !slices.Contains([]string{"run", "type", "keys", "wait", "interrupt"}, cmd.Name()) {
		return err
	}
	named := ""
	if f := cmd.Flags().Lookup("name"); f != nil {
		named = f.Value.String()
	}
	if named == "" && len(args) > 0 && cmd.Name() != "run" {
		named = args[0]
	}
	t, _ := wire.ParseTarget(named) // that of a directory is the daemon's to say
	res := wire.LostResult(t, lost)
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		return err
	}
	return exitCode(res.ExitStatus())
}

// startsDaemon says for which commands a missing daemon is started: those with which people begin.
func startsDaemon(cmd *cobra.Command) bool {
	return slices.Contains([]string{"run", "new", "python"}, commandName(cmd))
}

// readsInput says whether a command reads standard input; the others leave it to the caller's shell.
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
	return false
}

// wantsTerminal says whether a command draws on the caller's terminal.
func wantsTerminal(cmd *cobra.Command) bool {
	switch cmd.Name() {
	case "watch":
		return true
	case "add", "start": // a host may want a password
		return !flagSet(cmd, "json")
	case "new":
		return cmd.Flags().Changed("host") && !flagSet(cmd, "json")
	case "rm": // it asks before it removes what runs
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

// remoteLine is the command line as the daemon reads it: flags in one form, then the arguments untouched.
func remoteLine(cmd *cobra.Command, args []string) string {
	words := strings.Fields(commandName(cmd))
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if cmd.InheritedFlags().Lookup(f.Name) != nil {
			return // of this program: where the daemon is
		}
		if cmd.Name() == "python" && (f.Name == "images" || f.Name == "save-images") {
			return // likewise: see pictures
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				words = append(words, "--"+f.Name+"="+v)
			}
			return
		}
		words = append(words, "--"+f.Name+"="+f.Value.String())
	})
	return shellquote.Join(append(append(words, "--"), args...)...)
}

// forward runs a command in the daemon. ^C goes there once; a second one ends the client. Of what the
// daemon says a terminal gets the text alone.
func forward(ctx context.Context, lobby *agent.Client, remote agent.Cmd) error {
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
	exit, err := lobby.Exec(ctx, remote)
	switch {
	case errors.Is(err, context.Canceled):
		return exitCode(wire.ExitInterrupt)
	case errors.Is(err, &wire.Error{Code: wire.CodeLost}):
		return &wire.Error{Code: wire.CodeLost, Reason: wire.LostGateway, Message: "the connection to the daemon ended in the middle of the call",
			Hint: "what runs in a terminal goes on, but on a host of tier marks or screen; when the daemon is back, sandboxd ls and sandboxd log show it"}
	case err != nil:
		return err
	case exit.Code != 0:
		return exitCode(exit.Code)
	}
	return nil
}

// throughTerminal is forward with the caller's terminal in raw mode. raw passes standard output as it
// is: to a program that the caller gave a terminal of its own.
func throughTerminal(ctx context.Context, lobby *agent.Client, remote agent.Cmd, raw bool) error {
	cols, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return fmt.Errorf("terminal size: %w", err)
	}
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), before) }() // nobody is left to be told
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
	signal.Notify(changes, syscall.SIGWINCH)
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
	return forward(ctx, lobby, remote)
}

// dial connects to the daemon as user: the lobby's name, or a sandbox's. It starts a daemon on this machine if start is
// set and none answers.
func (c *cli) dial(ctx context.Context, user string, start bool) (*agent.Client, error) {
	host, o, err := c.reach(ctx, start)
	if err != nil {
		return nil, err
	}
	client, err := agent.Dial(ctx, "ssh://"+user+"@"+host, o)
	return client, c.notReached(err, host, o)
}

// notReached returns err, for which the daemon at host was not reached, with what to do.
func (c *cli) notReached(err error, host string, o agent.Options) error {
	if errors.Is(err, syscall.ECONNREFUSED) && c.gateway == "" { // its process is another's by now
		return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("the daemon of %s does not answer at %s", o.State, host), Hint: "start it: sandboxd up"}
	}
	return err
}

// reach says where the daemon answers and how to log in.
func (c *cli) reach(ctx context.Context, start bool) (string, agent.Options, error) {
	o := agent.Options{Kind: agent.KindGateway, State: string(c.config.State)}
	if c.gateway != "" {
		u, err := url.Parse(c.gateway)
		if err != nil || u.Scheme != "ssh" || u.Hostname() == "" {
			return "", o, usage(fmt.Sprintf("--gateway %q is no ssh URI", c.gateway), "write ssh://HOST:PORT")
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
	return e.SSH, o, nil
}

// daemon returns the endpoint of the daemon that serves the state directory, if it runs. It does not connect: whoever
// does finds out more.
func (c *cli) daemon() (endpoint, error) {
	state := string(c.config.State)
	e, err := readEndpoint(state)
	if err != nil || e.PID <= 0 || errors.Is(syscall.Kill(e.PID, 0), syscall.ESRCH) {
		return e, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("no daemon runs for %s", state), Hint: "start it: sandboxd up"}
	}
	return e, nil
}

// absolute resolves a path against the working directory. Paths are those of this machine.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// loginName is the user's own, empty if the system does not know it.
func loginName() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}
