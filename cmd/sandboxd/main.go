// Command sandboxd is the SSH-gateway sandbox daemon and its command line.
//
// The command line is an SSH client of the daemon: what concerns sandboxes is parsed here, for help and completion, and
// carried out there. Only what touches things on this machine is local: serve, up, down, demo, config, cp, ssh, doctor,
// ssh-config, mcp, mcp-config, task, conformance, version, completion.
//
// The same program is the guest of sandboxes where no sandboxd-guest was built: see runsAsGuest.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/guest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func main() {
	if args, ok := runsAsGuest(os.Args); ok {
		os.Exit(guest.Main(args))
	}
	os.Exit(run())
}

func run() int {
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // else by nohup(1), which asks us to go on
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	c := &cli{}
	root := c.tree()
	root.SetArgs(os.Args[1:])
	err := root.ExecuteContext(ctx)
	var exit exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	return command.Fail(os.Stdout, os.Stderr, c.json, public(err))
}

// exitCode ends the program with a status and prints nothing.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// public gives every error the shape that is printed. On this machine nothing needs hiding.
func public(err error) *wire.Error {
	var known *wire.Error
	if errors.As(err, &known) {
		if known.Message == err.Error() {
			return known
		}
		said := err.Error()
		if known.Hint != "" {
			said = strings.TrimSuffix(said, "; "+known.Hint) // which some errors say themselves
		}
		return &wire.Error{Code: known.Code, Message: said, Hint: known.Hint, Reason: known.Reason}
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: err.Error()}
}

// cli is one invocation: what its flags say, and how the daemon is reached.
type cli struct {
	state, configFile, gateway string
	json                       bool
	settings                   map[string]string // of flags, by key
	config                     *config.Loaded    // loaded before any command runs
}

// tree is the whole command line: the commands of the daemon's table, forwarded, and the local ones.
func (c *cli) tree() *cobra.Command {
	root := command.Tree(&command.Env{})
	root.Version = build.Version
	root.Short = "an SSH-gateway sandbox daemon"
	root.Long = `sandboxd runs sandboxes that agents drive over SSH, and that people join with plain ssh.

  sandboxd up                          start the daemon in the background
  sandboxd new demo                    make a sandbox
  sandboxd run demo -- CMD…            run a command in its terminal
  sandboxd ssh demo                    join that terminal`
	root.SetVersionTemplate("sandboxd {{.Version}} " + build.Platform + "\n")
	// The command line's own mistakes end with 2, as everywhere.
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.Flags().Lookup("json") != nil {
			c.json = command.WantsJSON(os.Args[1:]) // what comes after the mistake has not been read
		}
		message, hint := command.FlagMistake(cmd, err)
		if hint == "" {
			hint = "see: " + cmd.CommandPath() + " --help"
		}
		return usage(commandName(cmd)+": "+message, hint)
	})
	for _, cmd := range root.Commands() {
		switch {
		case cmd.Name() == "port", cmd.Hidden:
			root.RemoveCommand(cmd) // the lobby's: this program listens itself, and asks for the hidden ones by itself
		default:
			c.forwarded(cmd)
		}
	}
	p := root.PersistentFlags()
	p.StringVar(&c.state, "state", "", "state directory (SANDBOXD_STATE)")
	p.StringVar(&c.configFile, "config", environ("CONFIG"), "configuration file (SANDBOXD_CONFIG)")
	p.StringVar(&c.gateway, "gateway", environ("GATEWAY"), "daemon elsewhere, as ssh://[user@]host[:port] (SANDBOXD_GATEWAY)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if f := cmd.Flags().Lookup("json"); f != nil {
			c.json = f.Value.String() == "true"
		}
		return c.load()
	}
	root.AddGroup(&cobra.Group{ID: "machine", Title: "On this machine:"})
	for _, cmd := range []*cobra.Command{c.serveCommand(), c.upCommand("up"), c.downCommand("down"), c.daemonCommand(), demoCommand(c), c.configCommand(), c.copyCommand(), c.portCommand(),
		c.sshCommand(), c.sshConfigCommand(), doctorCommand(c), c.mcpCommand(), mcpConfigCommand(c), c.conformanceCommand(), c.taskCommand(), versionCommand(c), completionCommand(root)} {
		cmd.GroupID = "machine"
		root.AddCommand(cmd)
	}
	root.SetHelpCommandGroupID("machine")
	root.AddCommand(filterProbeCommand(), manCommand(root))
	command.AddHelp(root)
	completer{c}.addTo(root)
	return root
}

// commandName is a command without the program in front: every error begins with that already.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

func completionCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "print a completion script for a shell",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("completion: name one shell", "use bash, zsh or fish")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(os.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(os.Stdout)
			case "fish":
				return root.GenFishCompletion(os.Stdout, true)
			}
			return usage(fmt.Sprintf("completion: no script for %q", args[0]), "use bash, zsh or fish")
		},
	}
}

// noArgs is cobra.NoArgs as a mistake of usage.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Sprintf("%s: %q is one argument too many", commandName(cmd), args[0]), "see: "+cmd.CommandPath()+" --help")
	}
	return nil
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
