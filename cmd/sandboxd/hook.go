package main

import (
	"context"
	"errors"
	"net/url"
	"os/exec"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/gateway/attention"
)

// hookEnv are the variables that a hook's program gets; it may call sandboxd, to which they mean nothing.
var hookEnv = []string{"SANDBOXD_HOOK_SANDBOX", "SANDBOXD_HOOK_SESSION", "SANDBOXD_HOOK_NEEDS", "SANDBOXD_HOOK_WANT", "SANDBOXD_HOOK_WAS", "SANDBOXD_HOOK_OWNER"}

// hookOptions says whom the configuration wants to be told of what sessions need.
func hookOptions(c config) attention.HookOptions {
	argv, _ := shellquote.Split(c.value("hook.exec")) // checked when it was set
	// The program reaches this daemon, whichever way its state directory was named.
	return attention.HookOptions{Exec: argv, Env: []string{"SANDBOXD_STATE=" + c.value("state")}, URL: c.value("hook.url")}
}

func isProgramOrEmpty(s string) error {
	if s == "" {
		return nil
	}
	argv, err := shellquote.Split(s)
	switch {
	case err != nil:
		return err
	case len(argv) == 0 || argv[0] == "":
		return errors.New("names no program")
	}
	return nil
}

func isHTTPOrEmpty(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("is no http or https URL")
	}
	return nil
}

// checkHook looks whether the program of hook.exec is there. Without one there is nothing to say.
func (d doctor) checkHook(context.Context) []finding {
	argv := hookOptions(d.cli.config).Exec
	if len(argv) == 0 {
		return nil
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return []finding{{Check: "hook", Found: "hook.exec: " + err.Error(), Fix: "name a program that can be run, by its path: sandboxd config show --origin"}}
	}
	return []finding{{Check: "hook", OK: true, Found: path}}
}
