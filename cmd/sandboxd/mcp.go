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
		Long: "Serve sandboxes as tools of the Model Context Protocol on standard input and output, for coding agents: they start this\n" +
			"program by their configuration, which sandboxd mcp-config prints. What the tools do is done in a sandbox, by the daemon, which\n" +
			"is started if none runs: the one of that name, or else that of the current directory, made as run would make it when a\n" +
			"tool first needs it.",
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
				return usage("mcp: no sandbox named", "name one of that daemon: -n NAME")
			}
			if err := c.load(); err != nil {
				return err
			}
			p := pythonOptions(c.config)
			o.Python = mcp.PythonOptions{Options: p.Options, About: c.config.Python.About}
			g := &lobbyGateway{cli: c}
			o.Gateway = g
			o.Ensure = func(ctx context.Context) (string, error) { return g.ensure(ctx, name, dir) }
			s := mcp.New(o)
			defer s.Close()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			err := s.Serve(ctx, stdio{})
			if err != nil && ctx.Err() == nil {
				return usage("mcp: standard input is no MCP: "+err.Error(), "it is for coding agents, not for people; see: sandboxd mcp-config --help")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION, of calls that name none (default that of the directory)")
	cmd.Flags().StringVar(&dir, "dir", "", "directory whose sandbox it is (default the current one, without -n)")
	return cmd
}

// stdio is this program's standard input and output. Closing it makes a Read return.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return os.Stdin.Close() }

// lobbyGateway is the daemon as MCP tools use it: by SSH, as every command of this program does.
type lobbyGateway struct {
	cli      *cli
	said     io.Writer  // gets what ensure says beside its answer; nil is nobody
	starting sync.Mutex // held while the daemon is started, if it has to be
}

// start starts the daemon if it is this machine's and does not run.
func (g *lobbyGateway) start(ctx context.Context) error {
	g.starting.Lock()
	defer g.starting.Unlock()
	_, _, err := g.cli.reach(ctx, true)
	return err
}

// ensure makes the sandbox of that name, else of that directory, if it is missing.
func (g *lobbyGateway) ensure(ctx context.Context, name, dir string) (string, error) {
	words := []string{"ensure", "--json"}
	if name != "" {
		words = append(words, "--name="+name)
	} else {
		words = append(words, "--dir="+dir)
	}
	return g.ensureAs(ctx, words)
}

// ensureAs is ensure with all words of the command.
func (g *lobbyGateway) ensureAs(ctx context.Context, words []string) (string, error) {
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
func (g *lobbyGateway) Dial(ctx context.Context, sandbox string) (*agent.Client, error) {
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	return g.cli.dial(ctx, sandbox, false)
}

// Command runs one command of the command table.
func (g *lobbyGateway) Command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error) {
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	return g.cli.command(ctx, progress, words...)
}
