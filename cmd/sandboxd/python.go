package main

import (
	"fmt"

	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox"
)

// python is what the keys python.* say.
func (c config) python() (p command.Python, err error) {
	p.Image, p.Isolation = c.value("python.image"), c.value("python.isolation")
	p.Options = python.Options{Dir: c.value("python.dir")}
	if network := c.value("python.network"); network != "" {
		if p.Network, _, err = command.ParseNetwork(network); err != nil {
			return p, fmt.Errorf("python.network: %w", err)
		}
	}
	if p.Memory, err = sandbox.ParseSize(c.value("python.memory")); err != nil {
		return p, fmt.Errorf("python.memory: %w", err)
	}
	if p.Options.Timeout, err = command.ParseAge(c.value("python.timeout")); err != nil {
		return p, fmt.Errorf("python.timeout: %w", err)
	}
	if p.Options.Idle, err = command.ParseAge(c.value("python.idle")); err != nil {
		return p, fmt.Errorf("python.idle: %w", err)
	}
	if p.Options.Idle == 0 {
		p.Options.Idle = -1 // for ever
	}
	return p, nil
}

// pythonTool is the same for MCP.
func (d *daemon) pythonTool() mcp.PythonOptions {
	return mcp.PythonOptions{Options: d.python.Options, About: d.config.value("python.about")}
}
