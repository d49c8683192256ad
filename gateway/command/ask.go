package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandboxd/sandboxd/sandbox"
)

// maxSecret bounds what is read as a password.
const maxSecret = 4096

// asking lets what a call leads to ask the person at the caller's terminal. Without a terminal there is nobody to ask.
func (env *Env) asking(ctx context.Context, quiet bool) context.Context {
	if env.Pty == nil || quiet {
		return ctx
	}
	return sandbox.WithAsk(ctx, env.ask)
}

// ask prints a question and reads a line that nobody sees: the caller's terminal is raw, and we echo nothing.
func (env *Env) ask(ctx context.Context, question string) (string, error) {
	fmt.Fprint(env.Stderr, question)
	defer fmt.Fprintln(env.Stderr)
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() { // ends with a line, or with the caller's channel
		text, err := secret(env.Stdin)
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		return a.text, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// secret reads a line as it is typed at a raw terminal.
func secret(from io.Reader) (string, error) {
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
			line = line[:max(0, len(line)-1)]
		case 0x15: // ^U
			line = line[:0]
		case 0x04: // ^D
			if len(line) == 0 {
				return "", errors.New("none was typed")
			}
		default:
			line = append(line, b[0])
		}
	}
	return "", errors.New("too long")
}
