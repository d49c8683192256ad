package coding

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Program is a program that Start started.
type Program struct {
	Sandbox agent.Sandbox // the one that it runs in

	shell  *agent.Shell
	client *agent.Client
	agent  *agents.Agent
}

// Prompt types a prompt when the program is ready for it, and presses Enter. Nothing is typed if
// the program asks something else. After an error the program runs.
func (p *Program) Prompt(ctx context.Context, prompt string) error {
	return enterPrompt(ctx, p.shell, p.agent, prompt)
}

// Close closes the connection to the program, which continues.
func (p *Program) Close() error { return errors.Join(p.shell.Close(), p.client.Close()) }

// writeInside writes a file in a sandbox, for its user alone. A path with ~/ is in the home
// directory.
func writeInside(ctx context.Context, client *agent.Client, f agents.File) error {
	path := shellquote.Join(f.Path)
	if rest, ok := strings.CutPrefix(f.Path, "~/"); ok {
		path = `"$HOME"/` + shellquote.Join(rest)
	}
	said := &text.Head{Limit: 1 << 10}
	exit, err := client.Exec(ctx, agent.Cmd{Stdin: strings.NewReader(f.Text), Stderr: said,
		Command: "umask 077; p=" + path + `; mkdir -p -- "$(dirname -- "$p")" && cat >"$p"`})
	if err == nil && exit.Code != 0 {
		err = &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("write %s in the sandbox: %s", f.Path,
				text.Line(said.String(), 200))}
	}
	return err
}
