package main

import (
	"context"
	"os/exec"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/attention"
)

// hookOptions says whom the configuration wants to be told of what sessions need.
func hookOptions(c *config.Loaded) attention.HookOptions {
	// The program reaches this daemon, whichever way its state directory was named.
	env := []string{"SANDBOXD_STATE=" + string(c.State)}
	return attention.HookOptions{Exec: c.Hook.Exec, Env: env, URL: c.Hook.URL}
}

// checkHook looks whether the program of hook.exec is there. Without one there is nothing to say.
func (d doctor) checkHook(context.Context) []finding {
	argv := hookOptions(d.cli.config).Exec
	if len(argv) == 0 {
		return nil
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return []finding{{Check: "hook", Found: "hook.exec: " + err.Error(), Fix: "name a program that can be run, by its path: sandboxd config show"}}
	}
	return []finding{{Check: "hook", OK: true, Found: path}}
}
