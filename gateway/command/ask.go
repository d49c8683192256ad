package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// maxSecret is the longest password, in bytes.
const maxSecret = 4096

// asking returns a ctx with which calls may ask the user at the caller's terminal, if there is one.
func (env *Env) asking(ctx context.Context, quiet bool) context.Context {
	if env.Pty == nil || quiet {
		return ctx
	}
	return sandbox.WithAsk(ctx, func(ctx context.Context, question string) (string, error) {
		return answerTo(ctx, env, question, io.Discard) // such as a password
	})
}

// confirm asks a question at the caller's terminal. Only y and yes confirm.
func (env *Env) confirm(ctx context.Context, question string) (bool, error) {
	answer, err := answerTo(ctx, env, question+" [y/N] ", env.Stderr)
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", err
}

// answerTo prints a question at the caller's terminal and reads a line. The terminal is in raw
// mode, so it writes what the user types to echo.
func answerTo(ctx context.Context, env *Env, question string, echo io.Writer) (string, error) {
	fmt.Fprint(env.Stderr, question)
	defer fmt.Fprintln(env.Stderr)
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() { // ends with a line, or when the caller's channel closes
		text, err := typedLine(env.Stdin, echo)
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		return a.text, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// typedLine reads a line from a terminal in raw mode, and writes to echo what the terminal shows.
func typedLine(from io.Reader, echo io.Writer) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) <= maxSecret; {
		n, err := from.Read(b)
		if n == 0 && err != nil {
			return "", errors.New("the terminal was closed")
		}
		if n == 0 {
			continue
		}
		switch b[0] {
		case '\r', '\n':
			return string(line), nil
		case 0x7f, '\b':
			if len(line) > 0 {
				line = line[:len(line)-1]
				fmt.Fprint(echo, "\b \b")
			}
		case 0x15: // ^U
			fmt.Fprint(echo, strings.Repeat("\b \b", len(line)))
			line = line[:0]
		case 0x03: // ^C
			return "", errors.New("interrupted")
		case 0x04: // ^D
			if len(line) == 0 {
				return "", errors.New("no answer")
			}
		default:
			line = append(line, b[0])
			_, _ = echo.Write(b)
		}
	}
	return "", errors.New("too long")
}
