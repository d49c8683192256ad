package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pythonOptions are what the section python of the configuration says.
func pythonOptions(c *config.Loaded) command.Python {
	p := &c.Python
	idle := time.Duration(p.Idle)
	if idle == 0 {
		idle = -1 // never
	}
	return command.Python{
		Image: p.Image, Isolation: p.Isolation, Network: p.Network.Mode, Memory: int64(p.Memory),
		DockerOptions: p.Options, About: p.About,
		Options: python.Options{Dir: string(p.Dir), Timeout: time.Duration(p.Timeout), Idle: idle},
	}
}

// pythonTool is the same for MCP.
func (d *daemon) pythonTool() mcp.PythonOptions {
	return mcp.PythonOptions{Options: d.python.Options, About: d.config.Python.About}
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
