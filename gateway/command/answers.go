package command

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// answers are where code that calls input() has its lines from.
type answers interface {
	// answer is the line for what res asks; io.EOF says that there is none, and never will be.
	answer(ctx context.Context, res python.Result) (string, error)
}

// prepared are the lines of standard input. The prompts of what they answer are printed as output.
type prepared struct {
	lines  *bufio.Reader
	prompt io.Writer
}

func (p prepared) answer(_ context.Context, res python.Result) (string, error) {
	_, _ = io.WriteString(p.prompt, res.Prompt) // whom nobody reads any more the end of the call tells
	line, err := p.lines.ReadString('\n')
	if err != nil && line == "" {
		return "", io.EOF
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// typist is the person at the caller's terminal, who sees the prompt behind what was printed before it, and does not see what getpass asks for.
type typist struct {
	env       *Env
	out, said *text.Stream
	terminal  *term.Terminal // nil before the first question
}

// endOfInput has input() raise EOFError: the kernel takes it for ^D.
const endOfInput = "\x04"

func (t *typist) answer(ctx context.Context, res python.Result) (string, error) {
	_, _ = io.WriteString(t.out, res.Prompt) // the same
	prompt := t.said.Take() + t.out.Take()
	if t.terminal == nil {
		t.terminal = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t.env.Stdin, t.env.Stdout}, "")
		_ = t.terminal.SetSize(int(t.env.Pty.Cols), int(t.env.Pty.Rows)) // of a terminal that has gone
	}
	select {
	case w := <-t.env.Resized:
		_ = t.terminal.SetSize(int(w.Cols), int(w.Rows)) // the same
	default:
	}
	type typed struct {
		line string
		err  error
	}
	done := make(chan typed, 1)
	go func() { // ends with a line, or with the caller's channel
		var a typed
		if res.Password {
			a.line, a.err = t.terminal.ReadPassword(prompt)
		} else {
			t.terminal.SetPrompt(prompt)
			a.line, a.err = t.terminal.ReadLine()
		}
		done <- a
	}()
	select {
	case a := <-done:
		if errors.Is(a.err, io.EOF) {
			_, _ = io.WriteString(t.env.Stdout, "\n") // the same
			return endOfInput, nil
		}
		return a.line, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
