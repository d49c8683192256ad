package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpRun: a command by MCP over standard input and output, as a coding agent has it run.
func mcpRun(ctx context.Context, b *bench) ([]row, error) {
	cmd := b.daemon.Line(ctx, "mcp", "-n", "bench~mcp")
	c, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(
		ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	run := func() error {
		res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "run",
			Arguments: map[string]any{"command": "true"}})
		if err != nil {
			return err
		}
		if result, _ := res.StructuredContent.(map[string]any); result["ended"] != "done" ||
			result["exit_code"] != 0.0 {
			return errors.New(fmt.Sprint("true ended otherwise: ", res.StructuredContent))
		}
		return nil
	}
	if err := run(); err != nil { // it connects
		return nil, err
	}
	samples, err := times(ctx, 300, run)
	if err != nil {
		return nil, err
	}
	return []row{{What: "MCP tool run of true, over stdio", Unit: "ms", Ours: samples[0],
		Goal: "≤ 10 ms", Passes: samples[0].Median <= 10}}, nil
}
