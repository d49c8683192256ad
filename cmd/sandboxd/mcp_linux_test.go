package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"
)

// toolsCmd is an MCP client. It starts a program, makes the tool calls in FILE, one tool and its
// arguments per line, over its standard input and output, and prints the texts of the answers.
//
//	        tools FILE COMMAND [ARGUMENT…]
//		tools FILE COMMAND [ARGUMENT…]
func toolsCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: tools FILE COMMAND [ARGUMENT…]")
	}
	path, err := exec.LookPath(args[1])
	if args[1] == "sandboxd" {
		path, err = lookIn(ts.Getenv("PATH"), args[1])
	}
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Stderr = ts.Stderr()
	for _, name := range []string{"PATH", "HOME", "XDG_CONFIG_HOME", "SANDBOXD_STATE",
		"SANDBOXD_GUEST_DIR", "SANDBOXD_SSH", "SANDBOXD_TEST_GUESTS", "DOCKER_HOST"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "story", Version: "1"},
		nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	ts.Check(err)
	defer session.Close()
	for lines := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0]))); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name,
			Arguments: json.RawMessage(text)})
		ts.Check(err)
		for _, c := range res.Content {
			if c, ok := c.(*mcp.TextContent); ok {
				fmt.Fprintf(ts.Stdout(), "%s\n", c.Text)
			}
		}
	}
	if err := session.Close(); err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
}
