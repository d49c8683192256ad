package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox/docker"
)

// enginePatience bounds the look at the engine for the ready line: a daemon is ready without one.
const enginePatience = 2 * time.Second

// newEngine is a client of the engine that the configuration names.
func newEngine(c *config.Loaded) (*client.Client, error) {
	return client.New(client.WithHost(cmp.Or(engineHost(c), docker.DefaultHost)))
}

// engineFacts says what boots sandboxes, such as "docker 20.10.24, runc", and what a newcomer has to know of it before the
// first sandbox: note is empty if that is nothing.
func engineFacts(ctx context.Context, c *config.Loaded) (facts, note string) {
	const silent = "no engine answers: sandboxes cannot start; see: sandboxd doctor"
	ctx, cancel := context.WithTimeout(ctx, enginePatience)
	defer cancel()
	engine, err := newEngine(c)
	if err != nil {
		return "", silent
	}
	defer engine.Close()
	got, err := engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", silent
	}
	facts = fmt.Sprintf("docker %s, %s", got.Info.ServerVersion, got.Info.DefaultRuntime)
	if image := c.Image; !hasImage(ctx, engine, image) {
		note = fmt.Sprintf("image %s is not here: the first sandbox builds or pulls it, which takes a minute or more", image)
	}
	return facts, note
}

func hasImage(ctx context.Context, engine *client.Client, image string) bool {
	_, err := engine.ImageInspect(ctx, image)
	return err == nil
}

// printReady prints the line that says that the daemon is ready, and whom a first run trusts.
func printReady(w io.Writer, e endpoint, facts, note string, took time.Duration) {
	if facts != "" {
		facts += "; "
	}
	fmt.Fprintf(w, "sandboxd %s ready in %.2f s (%sno account, nothing leaves this machine)\n", e.Version, took.Seconds(), facts)
	if note != "" {
		fmt.Fprintf(w, "  note     %s\n", note)
	}
	for _, t := range e.Trusts {
		fmt.Fprintf(w, "  trusts   %s %s\n", t.Fingerprint, t.Why)
	}
}

// printPaste prints what a newcomer types next. Only doors that exist are named.
func printPaste(w io.Writer, e endpoint) {
	g := e.gateway()
	shell, shorter := g.SSHCommand("demo"), "; shorter after: "+self()+" ssh-config --write"
	if sshConfigIncluded(e) {
		shell, shorter = "ssh demo@"+sshConfigName, ""
	}
	fmt.Fprintf(w, "  shell    %s\n", shell)
	fmt.Fprintf(w, "           creates it if missing; Ctrl-] t takes the keyboard%s\n", shorter)
	fmt.Fprintf(w, "  run      %s run -n demo -- uname -a     exit code passes through; 123 = it asks something\n", self())
	fmt.Fprintf(w, "  agents   %s\n", g.URI("demo"))
	fmt.Fprintf(w, "  mcp      %s mcp-config claude     or codex, gemini, vscode\n", self())
	if e.HTTP != nil {
		fmt.Fprintf(w, "  api      %s    token in %s\n", *e.HTTP, *e.TokenFile)
	}
	in := ""
	if e.HTTP != nil {
		in = fmt.Sprintf(", or in a browser by %s page: %s/", self(), *e.HTTP)
	}
	fmt.Fprintf(w, "  watch    %s ls --watch%s\n", self(), in)
}

// self is how the user's shell finds this program: by name, or as it was called now.
func self() string {
	if _, err := exec.LookPath("sandboxd"); err != nil {
		return os.Args[0]
	}
	return "sandboxd"
}

// sshConfigIncluded says whether the user's ssh configuration has the line that ssh-config --write puts there.
func sshConfigIncluded(e endpoint) bool {
	user, err := userSSHConfig()
	if err != nil {
		return false
	}
	text, err := os.ReadFile(user)
	return err == nil && bytes.Contains(text, []byte(includeLine(e)))
}

func userSSHConfig() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("ssh-config: %w", err)
	}
	return filepath.Join(home, ".ssh", "config"), nil
}

// sshConfigFile is the file that ssh-config --write makes, and that each daemon brings up to date.
func sshConfigFile(e endpoint) string { return filepath.Join(e.State, "ssh_config") }

func includeLine(e endpoint) string { return fmt.Sprintf("Include %q\n", sshConfigFile(e)) }

// refreshSSHConfig writes the file of ssh-config anew, if there is one: the daemon's port may be another than before.
func refreshSSHConfig(e endpoint) error {
	path := sshConfigFile(e)
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && string(before) == sshConfigBlock(e):
		return nil // nobody asked for one, or it is right
	case err != nil:
		return fmt.Errorf("ssh-config: %w", err)
	}
	if err := writeDurably(path, []byte(sshConfigBlock(e)), 0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	return nil
}
