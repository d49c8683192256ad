package main

import (
	"bytes"
	"context"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/gateway/command"
)

// questions asks the user at this terminal what code asks with input(), one question after the
// other. Between questions the terminal is in its normal mode.
type questions struct {
	answers *io.PipeReader // a line per answer
	to      *io.PipeWriter
	typist  command.PythonTypist
	end     func() // ends the pending question and waits for its end
}

// newQuestions returns questions whose first answer begins with typed.
func newQuestions(typed []byte, printer *command.PythonPrinter) *questions {
	q := &questions{end: func() {}}
	q.answers, q.to = io.Pipe()
	q.typist = command.PythonTypist{In: io.MultiReader(bytes.NewReader(typed), os.Stdin),
		Out: cooked{os.Stdout}, Printer: printer, Size: func() (cols, rows int) {
			if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil && cols > 0 {
				return cols, rows
			}
			return 80, 24
		}}
	return q
}

// ask returns at once. A question that is ended without an answer is the last one.
func (q *questions) ask(ctx context.Context, prompt command.PythonPrompt) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	q.end = func() { cancel(); <-done }
	go func() {
		defer close(done)
		restore, err := editLine(int(os.Stdin.Fd()))
		if err != nil { // the terminal is gone
			_ = q.to.CloseWithError(io.EOF)
			return
		}
		line, err := q.typist.Answer(ctx, prompt.Text, prompt.Password)
		restore()
		if err == nil {
			_, _ = io.WriteString(q.to, line+"\n") // fails only if the call has ended
		}
	}()
}

func (q *questions) close() {
	_ = q.answers.Close() // never fails
	q.end()
}

// cooked replaces the line ends of a raw terminal with those of a terminal that adds \r by itself.
type cooked struct{ w io.Writer }

func (c cooked) Write(p []byte) (int, error) {
	if _, err := c.w.Write(bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}
