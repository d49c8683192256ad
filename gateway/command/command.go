// Package command is the command table: what `ssh sandboxd@gateway CMD` and `sandboxd CMD` mean. The command line tool is
// an SSH client of it, so each command exists once, here, and acts as the principal that logged in.
//
// It knows the hub and the words of the protocol, and no SSH: a door hands it an Env and the words of the command line.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Env is what a command runs with. Hub, Stdin, Stdout and Stderr are required to run one; Tree needs none.
type Env struct {
	Hub       *gateway.Hub
	Principal gateway.Principal
	Stdin     io.Reader
	Stdout    io.Writer
	Stderr    io.Writer

	Pty        *wire.PtyReq             // the caller's terminal, nil without one
	Resized    <-chan wire.WindowChange // its changes
	Interrupts <-chan struct{}          // the caller's ^C; nil when it cannot send one

	Gateway Gateway         // where the caller reaches the gateway, for what is printed
	Tokens  *token.Registry // of the HTTP door
	HTTP    string          // its address, as http://127.0.0.1:8022; empty where there is none
	Python  Python          // of python

	done  <-chan struct{}   // closed when the command has ended
	watch func(wire.Target) // told what watch is asked for; see Watches
	// Draw shows recorded bytes on the caller's terminal as they are played; nil where the door cannot.
	Draw func(cols, rows int) (player.Screen, error)
}

// Gateway is where clients reach the gateway.
type Gateway struct {
	Host       string `json:"host"`
	Port       string `json:"port"`
	KnownHosts string `json:"known_hosts"` // file that pins its key
	Identity   string `json:"identity"`    // key file of the daemon's own user
}

// URI is the ssh URI of target.
func (g Gateway) URI(target string) string {
	return fmt.Sprintf("ssh://%s@%s:%s", target, g.Host, g.Port)
}

// SSHCommand is the ssh command that joins target and asks no question.
func (g Gateway) SSHCommand(target string) string {
	args := []string{"ssh"}
	if g.KnownHosts != "" {
		args = append(args, "-o", "UserKnownHostsFile="+g.KnownHosts)
	}
	if g.Identity != "" {
		args = append(args, "-i", g.Identity)
	}
	return shellquote.Join(append(args, "-p", g.Port, target+"@"+g.Host)...)
}

// LobbyCommand is how line is run in the lobby, for those with this program and for those with ssh alone.
func (g Gateway) LobbyCommand(line string) string {
	return fmt.Sprintf("sandboxd %s, or ssh -p %s %s@%s %s", line, g.Port, wire.Lobby, g.Host, line)
}

// exitError ends a command with a status and prints nothing.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Run runs one command of the table and returns its exit code. args are its words, the name first.
func Run(ctx context.Context, env *Env, args []string) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	env.done = ctx.Done()
	root := Tree(env)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	return Fail(env.Stdout, env.Stderr, WantsJSON(args), hinted(cmd, env.public(err)))
}

// helpHint is the hint of a mistake that has no better one.
const helpHint = "see: sandboxd help"

// hinted is e with a hint that fits the command which it ended.
func hinted(cmd *cobra.Command, e *wire.Error) *wire.Error {
	name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	if e.Hint == helpHint && cmd.HasParent() {
		better := *e
		better.Hint += " " + name
		return &better
	}
	if slices.Contains(ofOld, name) {
		return notNew(e)
	}
	return e
}

// ofOld are the commands that mean a sandbox for what it has been. Those that take several names report each by themselves.
var ofOld = []string{"fork", "kick", "log", "replay", "rescue", "snapshot", "unshare"}

// notNew is e for a command that has no use for a new sandbox: of one that is not there it says how to find the right name.
func notNew(e *wire.Error) *wire.Error {
	if e.Code != wire.CodeNotFound || !strings.HasPrefix(e.Hint, lifecycle.HintCreate) {
		return e
	}
	better := *e
	better.Hint = "sandboxd ls lists yours"
	return &better
}

// public is what the caller may see of an error: ours as they are, others as the hub says.
func (env *Env) public(err error) *wire.Error {
	var known *wire.Error
	if errors.As(err, &known) {
		return known
	}
	if env.Hub == nil {
		return usage("%v", err)
	}
	return env.Hub.Public(err)
}

// Fail reports an error that ended a command, and returns the exit code: 2 for a mistake of usage, else 125.
func Fail(stdout, stderr io.Writer, asJSON bool, e *wire.Error) int {
	if asJSON {
		_ = text.WriteJSON(stdout, map[string]*wire.Error{"error": e})
	} else {
		said := e.Message
		if e.Hint != "" {
			said += "; " + e.Hint
		}
		fmt.Fprintf(stderr, "sandboxd: %s\n", text.Lines(said))
	}
	if e.Code == wire.CodeUsage {
		return wire.ExitUsage
	}
	return wire.ExitFailed
}

func usage(format string, args ...any) *wire.Error {
	e := wire.Errorf(wire.CodeUsage, format, args...)
	e.Hint = helpHint
	return e
}

// WantsJSON reports whether a command line asks for JSON, also one that cannot be read as a whole.
func WantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// Tree is the command table. Without a Hub it can be listed and parsed, for help and completion, not run.
func Tree(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxd",
		Short:         "Sandboxes for agents, over SSH",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknown(cmd, args[0])
		},
	}
	root.SetHelpCommand(helpCommand(root))
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		message, hint := FlagMistake(cmd, err)
		e := usage("%s", message)
		if hint != "" {
			e.Hint = hint
		}
		return e
	})
	group := func(id, title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, c := range commands {
			c.GroupID = id
		}
		root.AddCommand(commands...)
	}
	root.AddGroup(&cobra.Group{ID: firstGroup, Title: "Most used:"})
	group("sandboxes", "Sandboxes:", sandboxCommands(env)...)
	group("work", "Sessions and commands:", append(shellCommands(env), execCommand(env), pythonCommand(env))...)
	group("people", "People, sharing and access:", peopleCommands(env)...)
	group("records", "Records:", recordCommands(env)...)
	root.AddCommand(ensureCommand(env))
	AddHelp(root)
	for _, c := range root.Commands() {
		c.SuggestFor, c.Aliases = guesses[c.Name()], Aliases[c.Name()]
		for _, c := range append(c.Commands(), c) {
			if c.Args != nil {
				c.Args = asUsage(c.Args)
			}
		}
		if strings.Contains(c.Use, "NAME") && c.Flags().Lookup("name") == nil {
			ByName(c)
		}
	}
	return root
}

// FlagMistake says what is wrong with a flag that could not be read, and what would be right where more than the command's help is known: the
// packages that read values say what they did.
func FlagMistake(cmd *cobra.Command, err error) (message, hint string) {
	message = err.Error()
	if before, _, ok := strings.Cut(message, ": time: "); ok {
		return before, "write a time as 5s, 2m or 1h30m"
	}
	if before, _, ok := strings.Cut(message, ": strconv."); ok {
		return before, "write a number"
	}
	return message, hint
}

// Aliases are other names of commands. They are shown in the help of the command alone.
var Aliases = map[string][]string{
	"describe": {"inspect"},
	"log":      {"logs"},
	"ls":       {"ps"},
	"new":      {"create"},
	"port":     {"port-forward"},
	"ssh":      {"attach", "join"}, // of the command line tool
	"stop":     {"kill"},
}

// guesses are names in other tools of commands. An unknown one is answered with the name here.
var guesses = map[string][]string{
	"describe": {"info", "show"},
	"log":      {"history"},
	"ls":       {"list", "status"},
	"quota":    {"limits", "usage"},
	"rm":       {"delete", "destroy", "remove"},
	"type":     {"answer", "send"},
	"watch":    {"attach", "join"},
}

// unknown is the error for a command that the table does not have.
func unknown(root *cobra.Command, name string) error {
	e := usage("unknown command %q", name)
	root.SuggestionsMinimumDistance = min(2, len(name)/2)                 // two letters off, foo is log
	if near := slices.Compact(root.SuggestionsFor(name)); len(near) > 0 { // one that is near and guessed comes twice
		e.Hint = "did you mean: " + strings.Join(near, ", ")
	}
	return e
}

// helpCommand is cobra's, but a topic that does not exist is a mistake: the root command takes any argument.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show how to use a command",
		RunE: func(_ *cobra.Command, args []string) error {
			topic, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 || topic.Hidden {
				return unknown(root, strings.Join(args, " "))
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// asUsage makes a wrong number of arguments a mistake of usage.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if known, ok := errors.AsType[*wire.Error](err); ok {
				return known // it says itself what would be right
			}
			said := "an argument is missing"
			if len(args) > 0 && check(cmd, make([]string, len(args)+1)) != nil { // nor would one more be right
				said = fmt.Sprintf("%q is one argument too many", args[len(args)-1])
			}
			e := usage("%s: %s", strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" "), said)
			e.Hint = "usage: " + cmd.UseLine()
			return e
		}
		return nil
	}
}

// printJSON writes one object and a newline.
func (env *Env) printJSON(v any) error {
	return text.WriteJSON(env.Stdout, v)
}
