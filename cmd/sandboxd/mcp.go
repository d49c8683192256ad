package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func (c *cli) mcpCommand() *cobra.Command {
	var name, dir string
	cmd := &cobra.Command{
		Use:   "mcp [NAME[~SESSION]]",
		Short: "serve sandboxes to a coding agent over MCP",
		Long: "Serve the tools of the Model Context Protocol on standard input and output. A\n" +
			"coding agent starts this command from its configuration: see sandboxd\n" +
			"mcp-config.\n\n" +
			"The tools work in the sandbox NAME, or without NAME in the sandbox of the\n" +
			"current directory. The first tool call creates a missing sandbox as run does,\n" +
			"and starts the daemon if none runs.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && name == "" {
				name, args = args[0], nil
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := mcp.Options{Version: build.Version}
			if name != "" {
				t, err := wire.ParseTarget(name)
				if err != nil {
					return err
				}
				name, o.Session = t.Sandbox, t.Session
			}
			if name == "" && c.gateway == "" {
				dir = absolute(dir)
			}
			if name == "" && dir == "" {
				return usage("mcp: missing sandbox name", "with --gateway, name a sandbox: -n NAME")
			}
			if err := c.load(); err != nil {
				return err
			}
			p := pythonOptions(c.config)
			o.Python = mcp.PythonOptions{Options: p.Options, About: c.config.Python.About}
			g := &sshGateway{cli: c}
			o.Gateway = g
			o.Ensure = func(ctx context.Context) (string, error) { return g.ensure(ctx, name, dir) }
			s := mcp.New(o)
			defer s.Close()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			err := s.Serve(ctx, stdio{})
			if err != nil && ctx.Err() == nil {
				return usage("mcp: standard input is not MCP: "+err.Error(),
					"coding agents start this command; see: sandboxd mcp-config --help")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "",
		"sandbox or SANDBOX~SESSION for tool calls that name none (default: the sandbox of the "+
			"directory)")
	cmd.Flags().StringVar(&dir, "dir", "",
		"directory whose sandbox is used (default: the current directory, without -n)")
	return cmd
}

// stdio is this program's standard input and output. Closing it makes a pending Read return.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return os.Stdin.Close() }

// sshGateway gives MCP tools access to the daemon over SSH.
type sshGateway struct {
	cli      *cli
	said     io.Writer  // receives the messages of ensure; may be nil
	starting sync.Mutex // held while the daemon is started
}

// start starts the daemon if it belongs to this machine and does not run.
func (g *sshGateway) start(ctx context.Context) error {
	g.starting.Lock()
	defer g.starting.Unlock()
	_, _, err := g.cli.reach(ctx, true)
	return err
}

// ensure creates the sandbox with that name, or of that directory, if it does not exist.
func (g *sshGateway) ensure(ctx context.Context, name, dir string) (string, error) {
	words := []string{"ensure", "--json"}
	if name != "" {
		words = append(words, "--name="+name)
	} else {
		words = append(words, "--dir="+dir)
	}
	return g.ensureAs(ctx, words)
}

// ensureAs is ensure with the complete command.
func (g *sshGateway) ensureAs(ctx context.Context, words []string) (string, error) {
	out, err := g.Command(ctx, g.said, words...)
	if err != nil {
		return "", err
	}
	var answer agent.Sandbox
	if err := json.Unmarshal(out, &answer); err != nil {
		return "", fmt.Errorf("ensure: %w", err)
	}
	return answer.Name, nil
}

// Dial connects to a sandbox.
func (g *sshGateway) Dial(ctx context.Context, sandbox string) (*agent.Client, error) {
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	return g.cli.dial(ctx, sandbox, false)
}

// Command runs one command on the control host.
func (g *sshGateway) Command(ctx context.Context, progress io.Writer, words ...string) ([]byte,
	error) {
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	return g.cli.command(ctx, progress, words...)
}
