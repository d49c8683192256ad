// Package command implements the commands of `ssh sbx CMD` and `sandboxd CMD`. The command line
// tool is an SSH client, so each command exists once, here, and acts as the principal that logged
// in.
//
// It knows the hub and the protocol, but not SSH: a server passes it an Env and the arguments.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Env is the environment of one command. Hub, Stdin, Stdout and Stderr are required to run it. Tree
// needs none of them.
type Env struct {
	Hub       *gateway.Hub
	Principal gateway.Principal
	Stdin     io.Reader
	Stdout    io.Writer
	Stderr    io.Writer

	Pty        *wire.PtyReq             // the caller's terminal; nil without one
	Resized    <-chan wire.WindowChange // its changes of size
	Interrupts <-chan struct{}          // the caller's ^C; nil if the server cannot receive it

	Gateway Gateway         // where clients reach the gateway; commands print it
	Tokens  *token.Registry // tokens of the HTTP API
	// address of the HTTP API, such as http://127.0.0.1:8022; empty without one
	HTTP   string
	Python Python // settings of the python command

	done  <-chan struct{}   // closed when the command has ended
	watch func(wire.Target) // receives the session that watch names; see Watches
	// Draw shows recorded bytes on the caller's terminal as they are played; nil if the server
	// cannot.
	Draw func(cols, rows int) (player.Screen, error)
}

// Gateway is where clients reach the gateway.
type Gateway struct {
	Host       string `json:"host"`
	Port       string `json:"port"`
	KnownHosts string `json:"known_hosts"` // file with its host key
	Identity   string `json:"identity"`    // private key file of the admin
}

// URI returns the ssh URI of target.
func (g Gateway) URI(target string) string {
	return "ssh://" + target + "@" + net.JoinHostPort(g.Host, g.Port)
}

// SSHCommand returns the ssh command that attaches to target. With KnownHosts and Identity, ssh
// asks for nothing.
func (g Gateway) SSHCommand(target string) string {
	args := []string{"ssh"}
	if g.KnownHosts != "" {
		args = append(args, "-o", KnownHostsOption(g.KnownHosts))
	}
	if g.Identity != "" {
		args = append(args, "-i", g.Identity)
	}
	return text.Quote(append(args, "-p", g.Port, target+"@"+g.Host)...)
}

// KnownHostsOption returns the value of ssh's -o that names the file of known hosts. ssh splits a
// list of files at blanks outside of quotes (ssh_config(5)).
func KnownHostsOption(path string) string {
	if strings.ContainsAny(path, " \t") {
		path = `"` + path + `"`
	}
	return "UserKnownHostsFile=" + path
}

// ControlCommand returns how to run line on the control host: with this program, or with ssh alone.
func (g Gateway) ControlCommand(line string) string {
	return fmt.Sprintf("sandboxd %s, or ssh -p %s %s@%s %s", line, g.Port, wire.ControlHost, g.Host,
		line)
}

// exitError ends a command with a status and prints nothing.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Run runs one command and returns its exit code. args are its name and its arguments.
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
	return Fail(env.Stdout, env.Stderr, WantsJSON(args), env.hinted(cmd, err))
}

// helpHint is the hint of a usage error that has no better one.
const helpHint = "see: sandboxd help"

// hinted returns what the caller may see of err, with a hint that fits the command that it ended.
func (env *Env) hinted(cmd *cobra.Command, err error) *wire.Error {
	name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	e := env.public(err)
	if e.Hint == helpHint && cmd.HasParent() {
		better := *e
		better.Hint += " " + name
		return &better
	}
	if slices.Contains(needExisting, name) {
		return env.publicExisting(cmd.Context(), err)
	}
	return env.didYouMean(cmd.Context(), err, e)
}

// needExisting are the commands that make no sense on a new sandbox. Commands that take several
// names call publicExisting themselves.
var needExisting = []string{"fork", "kick", "log", "replay", "rescue", "snapshot", "unshare"}

// publicExisting returns what the caller may see of err in a command that has no use for a new
// sandbox. For a missing one the hint says how to find the right name, in place of how to create
// it.
func (env *Env) publicExisting(ctx context.Context, err error) *wire.Error {
	e := env.public(err)
	if !errors.Is(err, lifecycle.ErrUnknown) {
		return e
	}
	better := *e
	better.Hint = "to list your sandboxes: sandboxd ls"
	return env.didYouMean(ctx, err, &better)
}

// didYouMean returns e, what the caller may see of err. If err is about a missing sandbox with a
// name that is similar to that of another one, the hint names that one.
func (env *Env) didYouMean(ctx context.Context, err error, e *wire.Error) *wire.Error {
	name := lifecycle.Missing(err)
	if name == "" {
		return e
	}
	near, err := env.similar(ctx, name)
	if err != nil || near == "" {
		return e // the hint is only a help
	}
	better := *e
	better.Hint = fmt.Sprintf("did you mean %s?", near)
	return &better
}

// public returns the error that the caller may see. A *wire.Error is returned as it is.
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

// Fail prints the error that ended a command, and returns the exit code: 2 for a usage error, else
// 125.
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

// WantsJSON reports whether a command line asks for JSON. The command line may be invalid.
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

// Tree returns all commands. Without a Hub they can be listed and parsed, for help and completion,
// but not run.
func Tree(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxd",
		Short:         "Run and manage sandboxes for agents over SSH",
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
	group("work", "Sessions and commands:", append(shellCommands(env), execCommand(env),
		pythonCommand(env))...)
	group("people", "Users, sharing and access:", peopleCommands(env)...)
	group("records", "Recordings:", recordCommands(env)...)
	root.AddCommand(ensureCommand(env), prepareCommand(env))
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
		if name := c.Name(); name == "type" || name == "keys" {
			flagsAfterName(c)
		}
	}
	return root
}

// FlagMistake returns the message and the hint for a flag that cannot be parsed. The hint is empty
// if the help of the command is the best one. It removes the names of Go packages from the message.
func FlagMistake(cmd *cobra.Command, err error) (message, hint string) {
	message = err.Error()
	if before, _, ok := strings.Cut(message, ": time: "); ok {
		return before, "write a duration such as 5s, 2m or 1h30m"
	}
	if before, _, ok := strings.Cut(message, ": strconv."); ok {
		return before, "write a number"
	}
	return message, hint
}

// Aliases are other names of commands. Only the help of the command itself shows them.
var Aliases = map[string][]string{
	"describe": {"inspect"},
	"kick":     {"disconnect"},
	"log":      {"logs"},
	"ls":       {"ps"},
	"new":      {"create"},
	"page":     {"dashboard"},
	"port":     {"port-forward"},
	"ssh":      {"attach", "join"}, // of the command line tool
	"stop":     {"kill"},
}

// guesses are the names that other tools use. The error for such a command suggests ours.
var guesses = map[string][]string{
	"describe": {"info", "show"},
	"log":      {"history"},
	"ls":       {"list", "status"},
	"quota":    {"limits", "usage"},
	"rm":       {"delete", "destroy", "remove"},
	"type":     {"answer", "send"},
	"watch":    {"attach", "join"},
}

// unknown returns the error for a command that does not exist.
func unknown(root *cobra.Command, name string) error {
	e := usage("unknown command %q", name)
	root.SuggestionsMinimumDistance = min(2, len(name)/2) // with two letters, foo would match log
	// A command that is both similar and in guesses is listed twice.
	if near := slices.Compact(root.SuggestionsFor(name)); len(near) > 0 {
		e.Hint = "did you mean: " + strings.Join(near, ", ")
	}
	return e
}

// helpCommand replaces cobra's, which accepts a topic that does not exist.
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

// asUsage turns the error for a wrong number of arguments into a usage error.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if known, ok := errors.AsType[*wire.Error](err); ok {
				return known // it has a hint of its own
			}
			said := "missing argument"
			// one more is wrong, too
			if len(args) > 0 && check(cmd, make([]string, len(args)+1)) != nil {
				said = fmt.Sprintf("unexpected argument %q", args[len(args)-1])
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
