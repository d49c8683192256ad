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

// answers provides the lines for code that calls input().
type answers interface {
	// answer returns the line for the prompt of res. io.EOF means that there are no more lines.
	answer(ctx context.Context, res python.Result) (string, error)
}

// prepared answers with the lines of standard input.
type prepared struct {
	lines  *bufio.Reader
	prompt func(res python.Result) // prints the prompt that a line answers
}

func (p prepared) answer(ctx context.Context, res python.Result) (string, error) {
	p.prompt(res)
	done := make(chan string, 1)
	go func() { // ends with a line, or at the end of standard input
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

// typist answers with what the user at the caller's terminal types.
type typist struct{ PythonTypist }

func (t *typist) answer(ctx context.Context, res python.Result) (string, error) {
	return t.Answer(ctx, res.Prompt, res.Password)
}

// PythonTypist reads answers to input() from a terminal. The prompt follows the output before it on
// the same line. Answers to getpass are not echoed.
type PythonTypist struct {
	In      io.Reader // the terminal, in raw mode
	Out     io.Writer // the same terminal
	Size    func() (cols, rows int)
	Printer *PythonPrinter

	terminal *term.Terminal // nil before the first question
}

// endOfInput makes input() raise EOFError: the kernel reads it as ^D.
const endOfInput = "\x04"

// Answer prints the prompt and returns the line that the user types. If ctx ends first, it returns
// its cause; the goroutine that reads In then ends with the next line or the end of In.
func (t *PythonTypist) Answer(ctx context.Context, prompt string, password bool) (string, error) {
	prompt = t.Printer.take(prompt)
	if t.terminal == nil {
		t.terminal = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t.In, t.Out}, "")
	}
	_ = t.terminal.SetSize(t.Size()) // it fails only if the terminal is gone
	type typed struct {
		line string
		err  error
	}
	done := make(chan typed, 1)
	go func() { // ends with a line, or at the end of In
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
			// the end of the call reports a terminal that is gone
			_, _ = io.WriteString(t.Out, "\r\n")
			return endOfInput, nil
		}
		return a.line, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
