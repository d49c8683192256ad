// Command sandboxd is the SSH-gateway sandbox daemon and its command line.
//
// The command line is an SSH client of the daemon. Commands for sandboxes are parsed here, for help
// and completion, and run there. Commands that use this machine are local: serve, up, down, demo,
// agent, config, cp, fetch, diff, port, ssh, doctor, ssh-config, mcp, mcp-config, task,
// conformance, version, completion. new --clone, fork, stop and rm also use git
// repositories of this machine.
//
// Without a built sandboxd-guest, the same program is also the guest of sandboxes: see runAsGuest.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func main() {
	runAsGuest(os.Args)
	os.Exit(run())
}

func run() int {
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1) ignores it
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

// public converts an error to the one that is printed.
func public(err error) *wire.Error {
	var known *wire.Error
	if errors.As(err, &known) {
		if known.Message == err.Error() {
			return known
		}
		said := err.Error()
		if known.Hint != "" {
			said = strings.TrimSuffix(said, "; "+known.Hint) // some errors include their hint
		}
		return &wire.Error{Code: known.Code, Message: said, Hint: known.Hint, Reason: known.Reason}
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: err.Error()}
}

// cli is one invocation of the program: its flags, and the configuration.
type cli struct {
	state, configFile, gateway string
	json                       bool
	settings                   map[string]string // values of flags, by configuration key
	config                     *config.Loaded    // loaded before any command runs
}

// tree returns all commands: those of the daemon, forwarded to it, and the local ones.
func (c *cli) tree() *cobra.Command {
	root := command.Tree(&command.Env{})
	root.Version = build.Version
	root.Short = "Run and manage sandboxes for agents over SSH"
	root.Long = `sandboxd runs sandboxes for agents. Agents drive their terminals over SSH; users attach with ssh.

  sandboxd up                          start the daemon in the background
  sandboxd new demo                    create a sandbox
  sandboxd run demo -- CMD…            run a command in its terminal
  sandboxd ssh demo                    attach to that terminal`
	root.SetVersionTemplate("sandboxd {{.Version}} " + build.Platform + "\n")
	// Usage errors exit with 2.
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.Flags().Lookup("json") != nil {
			c.json = command.WantsJSON(os.Args[1:]) // flags after the wrong one are not parsed
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
			// this program has its own port, and users do not need hidden ones
			root.RemoveCommand(cmd)
		default:
			c.forwarded(cmd)
		}
		switch cmd.Name() {
		case "new":
			repositories{c}.cloning(cmd)
		case "fork":
			repositories{c}.forking(cmd)
		case "rm":
			repositories{c}.fetching(cmd)
		case "stop":
			repositories{c}.fetchingFirst(cmd)
		}
		if slices.Contains([]string{"new", "add", "fork", "rm"}, cmd.Name()) {
			sshHosts{c}.following(cmd)
		}
	}
	p := root.PersistentFlags()
	p.StringVar(&c.state, "state", "", "state directory (SANDBOXD_STATE)")
	p.StringVar(&c.configFile, "config", environ("CONFIG"), "configuration file (SANDBOXD_CONFIG)")
	p.StringVar(&c.gateway, "gateway", environ("GATEWAY"),
		"remote daemon, such as ssh://host:2222 (SANDBOXD_GATEWAY)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if f := cmd.Flags().Lookup("json"); f != nil {
			c.json = f.Value.String() == "true"
		}
		if cmd.DisableFlagParsing {
			return nil // ssh loads it after its own flags
		}
		return c.load()
	}
	root.AddGroup(&cobra.Group{ID: "machine", Title: "On this machine:"})
	for _, cmd := range []*cobra.Command{c.serveCommand(), c.upCommand("up"),
		c.downCommand("down"), daemonCommand(c),
		demoCommand(c), c.configCommand(), c.copyCommand(), repositories{c}.fetchCommand(),
		repositories{c}.diffCommand(), c.portCommand(),
		c.sshCommand(), sshHosts{c}.command(), doctorCommand(c),
		bundleImages{c}.command(), c.mcpCommand(),
		mcpConfigCommand(c), repositories{c}.agentCommand(), c.conformanceCommand(),
		c.taskCommand(), versionCommand(c), completionCommand(root)} {
		cmd.GroupID = "machine"
		root.AddCommand(cmd)
	}
	root.SetHelpCommandGroupID("machine")
	root.AddCommand(filterProbeCommand(), manCommand(root))
	command.AddHelp(root)
	completer{c}.addTo(root)
	return root
}

// commandName returns the path of a command without the program, with which every error begins.
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
				return usage("completion: missing shell", "use bash, zsh or fish")
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
			return usage(fmt.Sprintf("completion: unknown shell %q", args[0]),
				"use bash, zsh or fish")
		},
	}
}

// noArgs is cobra.NoArgs with a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Sprintf("%s: unexpected argument %q", commandName(cmd), args[0]),
			"see: "+cmd.CommandPath()+" --help")
	}
	return nil
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
