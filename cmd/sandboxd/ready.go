package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes"
	"github.com/sandboxd/sandboxd/sandbox/oci"
)

// enginePatience is the longest time that the ready line waits for the engine.
const enginePatience = 2 * time.Second

// newEngine returns a client of the configured engine.
func newEngine(c *config.Loaded) (*client.Client, error) {
	return docker.NewClient(cmp.Or(engineHost(c), docker.DefaultHost))
}

// noAccount is what the ready line says of a daemon whose sandboxes run on this machine.
const noAccount = "no account, nothing leaves this machine"

// account says, in the ready line, where the sandboxes of an engine run.
func account(host string) string {
	if host == "" || strings.HasPrefix(host, "unix://") {
		return noAccount
	}
	return fmt.Sprintf("no account, sandboxes run at %q", host)
}

// engineFacts describes the daemon's engine in the ready line, such as "docker 20.10.24, runc; "
// and account. note is what a user should know before the first sandbox, or "".
func engineFacts(ctx context.Context, c *config.Loaded) (facts, note string) {
	const silent = "engine: no answer, sandboxes cannot start; see: sandboxd doctor"
	ctx, cancel := context.WithTimeout(ctx, enginePatience)
	defer cancel()
	switch backendOf(c) {
	case kubernetes.Name:
		return clusterFacts(ctx, c)
	case oci.Name:
		return bundleFacts(ctx, c)
	}
	where := account(engineHost(c))
	engine, err := newEngine(c)
	if err != nil {
		return where, silent
	}
	defer engine.Close()
	got, err := engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return where, silent
	}
	facts = fmt.Sprintf("docker %s, %s; %s", got.Info.ServerVersion, got.Info.DefaultRuntime,
		where)
	if image := c.Image; !hasImage(ctx, engine, image) {
		note = fmt.Sprintf(
			"image %s is missing: the first sandbox builds or pulls it, which takes a minute or "+
				"more", image)
	}
	return facts, note
}

func hasImage(ctx context.Context, engine *client.Client, image string) bool {
	_, err := engine.ImageInspect(ctx, image)
	return err == nil
}

// printReady prints that the daemon is ready, and the keys that a first run trusts.
func printReady(w io.Writer, e endpoint, facts, note string, took time.Duration) {
	fmt.Fprintf(w, "sandboxd %s ready in %.2f s (%s)\n", e.Version, took.Seconds(), facts)
	if note != "" {
		fmt.Fprintf(w, "  note     %s\n", note)
	}
	for _, t := range e.Trusts {
		fmt.Fprintf(w, "  trusts   %s %s\n", t.Fingerprint, t.Why)
	}
}

// printPaste prints commands to try next. It lists only APIs that are enabled.
func printPaste(w io.Writer, e endpoint) {
	g := e.gateway()
	shell, shorter := g.SSHCommand("demo"), "; for a shorter command: "+self()+" ssh-config --write"
	if sshConfigIncluded(e) {
		shell, shorter = "ssh demo@"+sshConfigName, ""
	}
	fmt.Fprintf(w, "  shell    %s\n", shell)
	fmt.Fprintf(
		w, "           creates the sandbox, if yours is the only name in authorized_keys;\n"+
			"           Ctrl-] t takes the keyboard%s\n", shorter)
	fmt.Fprintf(
		w, "  run      %s run demo -- uname -a     returns its exit code; 123 means it waits for "+
			"input\n", self())
	fmt.Fprintf(w, "  agents   %s\n", g.URI("demo"))
	fmt.Fprintf(w, "  mcp      %s mcp-config claude     or codex, gemini, vscode\n", self())
	if e.HTTP != nil {
		fmt.Fprintf(w, "  api      %s    token in %s\n", *e.HTTP, *e.TokenFile)
	}
	in := ""
	if e.HTTP != nil {
		in = fmt.Sprintf(", or in a browser with %s page: %s/", self(), *e.HTTP)
	}
	fmt.Fprintf(w, "  watch    %s ls --watch%s\n", self(), in)
}

// self is the command with which the user's shell finds this program.
func self() string {
	if _, err := exec.LookPath("sandboxd"); err != nil {
		return os.Args[0]
	}
	return "sandboxd"
}
