package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pythonOptions returns the settings of the section python of the configuration.
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

// pythonTool returns these settings for MCP.
func (d *daemon) pythonTool() mcp.PythonOptions {
	return mcp.PythonOptions{Options: d.python.Options, About: d.config.Python.About}
}

// maxArgument is the longest code in the command line, in bytes: the limit of Linux for an
// argument.
const maxArgument = 128 << 10

// pythonFile reads a FILE among args. It passes the code as -c if a user may answer its questions,
// else as standard input. It returns the standard input and the arguments of the command.
func pythonFile(cmd *cobra.Command, args []string, terminal bool) (io.Reader, []string, error) {
	if len(args) != 1 || args[0] == "-" {
		return os.Stdin, args, nil
	}
	mistake := func(format string, args ...any) error {
		return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("python: "+format, args...),
			Hint: "or pass the code with -c CODE"}
	}
	if cmd.Flags().Changed("code") {
		return nil, nil, mistake("-c CODE and FILE are mutually exclusive")
	}
	file, err := os.Open(args[0]) // open until this program ends
	if err != nil {
		return nil, nil, mistake("%v", err)
	}
	code, err := io.ReadAll(io.LimitReader(file, maxArgument))
	if err != nil {
		return nil, nil, mistake("%v", err)
	}
	short := len(text.Quote(string(code))) < maxArgument
	switch {
	case flagSet(cmd, "interactive") && !short:
		return nil, nil, mistake("%s: too long for -i: copy it to the sandbox and import it",
			args[0])
	case short && (terminal && !flagSet(cmd, "json") || flagSet(cmd, "interactive")):
		return os.Stdin, nil, cmd.Flags().Set("code", string(code))
	}
	return io.MultiReader(bytes.NewReader(code), file), []string{"-"}, nil
}
