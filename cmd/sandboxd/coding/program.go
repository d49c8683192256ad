package coding

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

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

// CheckPrompt returns an error of code usage for a prompt that cannot be typed: it has control
// characters besides tabs and newlines, or is no UTF-8.
func CheckPrompt(prompt string) error {
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	if utf8.ValidString(prompt) && !strings.ContainsFunc(prompt, control) {
		return nil
	}
	return &wire.Error{Code: wire.CodeUsage, Message: "the prompt has control characters",
		Hint: "write text, or name a file in it that --include copies"}
}

// Prompt types a prompt when the program is ready for it, and presses Enter. Several lines are
// pasted. Nothing is typed if the program asks something else, or if CheckPrompt fails. After an
// error the program runs.
func (p *Program) Prompt(ctx context.Context, prompt string) error {
	if err := CheckPrompt(prompt); err != nil {
		return err
	}
	return enterPrompt(ctx, p.shell, p.agent, prompt)
}

// Close closes the connection to the program, which continues.
func (p *Program) Close() error { return errors.Join(p.shell.Close(), p.client.Close()) }

// writeInside writes a file in a sandbox, for its user alone. A path with ~/ is in the home
// directory.
func writeInside(ctx context.Context, client *agent.Client, f agents.File) error {
	path := text.Quote(f.Path)
	if rest, ok := strings.CutPrefix(f.Path, "~/"); ok {
		path = `"$HOME"/` + text.Quote(rest)
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
