package main

import (
	"context"
	"os/exec"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/attention"
)

// hookOptions returns the hooks that the configuration sets.
func hookOptions(c *config.Loaded) attention.HookOptions {
	// The program uses this daemon, even if the state directory is not the default one.
	env := []string{"SANDBOXD_STATE=" + string(c.State)}
	return attention.HookOptions{Exec: c.Hook.Exec, Env: env, URL: c.Hook.URL,
		Format: c.Hook.Format, Secret: c.Hook.Secret}
}

// checkHook checks that the program of hook.exec exists, if it is set.
func (d doctor) checkHook(context.Context) []finding {
	argv := hookOptions(d.cli.config).Exec
	if len(argv) == 0 {
		return nil
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return []finding{{Check: "hook", Found: "hook.exec: " + err.Error(),
			Fix: "set hook.exec to the path of an executable program"}}
	}
	return []finding{{Check: "hook", OK: true, Found: path}}
}
