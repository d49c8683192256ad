package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// python is what the keys python.* say.
func (c config) python() (p command.Python, err error) {
	p.Image, p.Isolation = c.value("python.image"), c.value("python.isolation")
	p.DockerOptions, p.About = strings.Fields(c.value("python.options")), c.value("python.about")
	p.Options = python.Options{Dir: c.value("python.dir")}
	if network := c.value("python.network"); network != "" {
		if p.Network, _, err = command.ParseNetwork(network); err != nil {
			return p, fmt.Errorf("python.network: %w", err)
		}
	}
	if err := cmp.Or(
		read(c, sandbox.ParseSize, map[string]*int64{"python.memory": &p.Memory}),
		read(c, command.ParseAge, map[string]*time.Duration{
			"python.timeout": &p.Options.Timeout, "python.idle": &p.Options.Idle,
		}),
	); err != nil {
		return p, err
	}
	if p.Options.Idle == 0 {
		p.Options.Idle = -1 // indefinitely
	}
	return p, nil
}

// pythonTool is the same for MCP.
func (d *daemon) pythonTool() mcp.PythonOptions {
	return mcp.PythonOptions{Options: d.python.Options, About: d.config.value("python.about")}
}

// maxArgument is the longest code that goes in the command line: Linux takes no longer argument either.
const maxArgument = 128 << 10

// pythonFile has the code of a FILE among args go to the daemon: as code of the command line where somebody may answer it, else as standard
// input. It returns what is the command's standard input then, and its arguments.
func pythonFile(cmd *cobra.Command, args []string, terminal bool) (io.Reader, []string, error) {
	if len(args) != 1 || args[0] == "-" {
		return os.Stdin, args, nil
	}
	mistake := func(format string, args ...any) error {
		return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("python: "+format, args...), Hint: "code is given by -c CODE"}
	}
	if cmd.Flags().Changed("code") {
		return nil, nil, mistake("-c CODE and FILE are two codes")
	}
	file, err := os.Open(args[0]) // open until this program ends
	if err != nil {
		return nil, nil, mistake("%v", err)
	}
	code, err := io.ReadAll(io.LimitReader(file, maxArgument))
	if err != nil {
		return nil, nil, mistake("%v", err)
	}
	short := len(shellquote.Join(string(code))) < maxArgument
	switch {
	case flagSet(cmd, "interactive") && !short:
		return nil, nil, mistake("%s is too long for -i: copy it into the sandbox and import it", args[0])
	case short && (terminal && !flagSet(cmd, "json") || flagSet(cmd, "interactive")):
		return os.Stdin, nil, cmd.Flags().Set("code", string(code))
	}
	return io.MultiReader(bytes.NewReader(code), file), []string{"-"}, nil
}
