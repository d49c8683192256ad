package main

import (
	"bytes"
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/gateway/command"
)

// questions are what code asks the person at this program's terminal, one after the other. Between them the terminal is as it was.
type questions struct {
	answers *io.PipeReader // a line for each
	to      *io.PipeWriter
	typist  command.PythonTypist
	end     func() // ends the question at hand, and returns when it has ended
}

// newQuestions begin with what was typed already.
func newQuestions(typed []byte, printer *command.PythonPrinter) *questions {
	q := &questions{end: func() {}}
	q.answers, q.to = io.Pipe()
	q.typist = command.PythonTypist{In: io.MultiReader(bytes.NewReader(typed), os.Stdin), Out: cooked{os.Stdout}, Printer: printer, Size: func() (cols, rows int) {
		if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil && cols > 0 {
			return cols, rows
		}
		return 80, 24
	}}
	return q
}

// ask comes back at once. A question that nobody answered before its end is the last.
func (q *questions) ask(ctx context.Context, prompt command.PythonPrompt) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	q.end = func() { cancel(); <-done }
	go func() {
		defer close(done)
		restore, err := lineByUs(int(os.Stdin.Fd()))
		if err != nil { // the terminal has gone
			_ = q.to.CloseWithError(io.EOF)
			return
		}
		line, err := q.typist.Answer(ctx, prompt.Text, prompt.Password)
		restore()
		if err == nil {
			_, _ = io.WriteString(q.to, line+"\n") // who does not read it any more has ended
		}
	}()
}

func (q *questions) close() {
	_ = q.answers.Close() // never fails
	q.end()
}

// cooked is for what ends lines as a raw terminal wants it, on one that goes to the left by itself.
type cooked struct{ w io.Writer }

func (c cooked) Write(p []byte) (int, error) {
	if _, err := c.w.Write(bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// lineByUs has a terminal leave the editing of lines to this program. ^C is a signal as ever; ^Z would leave the terminal like that to the shell.
// What is shown goes on to begin each line at the left: a question may have several.
func lineByUs(fd int) (restore func(), err error) {
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	restore = func() { _ = term.Restore(fd, before) } // nobody is left to be told
	modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		modes.Lflag |= unix.ISIG
		modes.Oflag |= unix.OPOST
		modes.Cc[unix.VSUSP] = 0
		err = unix.IoctlSetTermios(fd, unix.TCSETS, modes)
	}
	if err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}
