package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// logIn are the arguments of log.
type logIn struct {
	From  uint64 `json:"from,omitempty" jsonschema:"offset of the first byte; default 0"`
	Bytes int    `json:"bytes,omitempty" jsonschema:"number of bytes of the log, at most 262144; default 32768"`
	where
}

// logOut is the reply of log, which is the JSON of the command log.
type logOut struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`     // exclusive; pass it as from of the next call
	End     uint64 `json:"end"`    // length of the log
	Output  string `json:"output"` // text without escape sequences
}

const maxLog = 256 << 10

func readLog(ctx context.Context, c *call, in logIn) (answer, error) {
	if in.Bytes < 0 || in.Bytes > maxLog {
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("log: bytes %d is not in 1 to %d", in.Bytes, maxLog),
			Hint:    "read the log in parts",
		}
	}
	if in.Bytes == 0 {
		in.Bytes = 32 << 10
	}
	t, err := c.server.places.target(ctx, in.where)
	if err != nil {
		return answer{}, err
	}
	out, err := c.server.logged(ctx, t, in.From, in.From+uint64(in.Bytes))
	if err != nil {
		return answer{}, err
	}
	said := fmt.Sprintf(
		"bytes %d to %d of the log of %s~%s, which has %d\n",
		out.From,
		out.To,
		t.Sandbox,
		t.Session,
		out.End,
	)
	return answer{object: out, text: said + fence("log", out.Output)}, nil
}

// logged reads bytes from to to (exclusive) of a session's log, as far as they exist.
func (s *Server) logged(ctx context.Context, t wire.Target, from, to uint64) (logOut, error) {
	var out logOut
	text, err := s.gateway.Command(
		ctx,
		nil,
		"log",
		"--json",
		fmt.Sprintf("--from=%d", from),
		fmt.Sprintf("--to=%d", to),
		"--",
		t.String(),
	)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("log: %w", err)
	}
	return out, nil
}
