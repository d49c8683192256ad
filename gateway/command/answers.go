package command

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent/python"
)

// answers are where code that calls input() has its lines from.
type answers interface {
	// answer is the line for what res asks; io.EOF says that there is none, and never will be.
	answer(ctx context.Context, res python.Result) (string, error)
}

// prepared are the lines of standard input.
type prepared struct {
	lines *bufio.Reader
	told  func(res python.Result) // of what each answers
}

func (p prepared) answer(ctx context.Context, res python.Result) (string, error) {
	p.told(res)
	done := make(chan string, 1)
	go func() { // ends with a line, or with standard input
		line, err := p.lines.ReadString('\n')
		if err == nil || line != "" {
			done <- line
		}
		close(done)
	}()
	select {
	case line, ok := <-done:
		if !ok {
			return "", io.EOF
		}
		return strings.TrimRight(line, "\r\n"), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// typist is the person at the caller's terminal.
type typist struct{ PythonTypist }

func (t *typist) answer(ctx context.Context, res python.Result) (string, error) {
	return t.Answer(ctx, res.Prompt, res.Password)
}

// PythonTypist is the person at a terminal whom code asks: who sees the prompt behind what was printed before it, and does not see what getpass asks for.
type PythonTypist struct {
	In      io.Reader // the terminal in raw mode
	Out     io.Writer // likewise
	Size    func() (cols, rows int)
	Printer *PythonPrinter

	terminal *term.Terminal // nil before the first question
}

// endOfInput has input() raise EOFError: the kernel takes it for ^D.
const endOfInput = "\x04"

// Answer is the line that is typed after the prompt. When ctx ends first it comes back with its cause; what reads In goes on until somebody
// types or In ends.
func (t *PythonTypist) Answer(ctx context.Context, prompt string, password bool) (string, error) {
	prompt = t.Printer.take(prompt)
	if t.terminal == nil {
		t.terminal = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t.In, t.Out}, "")
	}
	_ = t.terminal.SetSize(t.Size()) // of a terminal that has gone
	type typed struct {
		line string
		err  error
	}
	done := make(chan typed, 1)
	go func() { // ends with a line, or with In
		var a typed
		if password {
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
			_, _ = io.WriteString(t.Out, "\r\n") // whom nobody reads any more the end of the call tells
			return endOfInput, nil
		}
		return a.line, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
