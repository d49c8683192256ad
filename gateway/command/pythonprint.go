package command

import (
	"errors"
	"fmt"
	"io"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// PythonLine is a line of python --json-lines. One of its fields is set.
type PythonLine struct {
	Output *python.Output `json:"output,omitempty"` // as it comes
	Prompt *PythonPrompt  `json:"prompt,omitempty"` // which standard input answers
	Result *python.Result `json:"result,omitempty"` // the last line; its outputs have been told
}

// PythonPrompt is what code asks by input(), or getpass.
type PythonPrompt struct {
	Text     string `json:"text"`
	Password bool   `json:"password,omitempty"` // what is answered is not to be shown
}

// PythonPrinter prints for a person what a call of python does, as it comes. What code prints reaches no terminal as it is: see text.Stream.
type PythonPrinter struct {
	// Picture, if not nil, is given what code shows as a picture and returns what draws it, and what is said of it. Nil says what it is.
	Picture func(o python.Output) (drawn []byte, said string)

	stdout, stderr io.Writer
	out, said      *text.Stream
	err            error // of what was drawn
}

// NewPythonPrinter returns one that closes neither of the two.
func NewPythonPrinter(stdout, stderr io.Writer) *PythonPrinter {
	return &PythonPrinter{stdout: stdout, stderr: stderr, out: text.NewStream(stdout), said: text.NewStream(stderr)}
}

// Output prints o. Close tells of writers that fail.
func (p *PythonPrinter) Output(o python.Output) {
	switch {
	case o.Image != "" && p.Picture != nil:
		p.picture(o)
	case o.Type == python.Failure && o.Name == exitName:
		_, _ = io.WriteString(p.said, exitText(o.Value))
	case o.Type == python.Failure, o.Type == python.Stderr:
		_, _ = io.WriteString(p.said, o.String())
	default:
		_, _ = io.WriteString(p.out, o.String())
	}
}

// picture draws on a line of its own: what was held back of the last one goes before.
func (p *PythonPrinter) picture(o python.Output) {
	drawn, said := p.Picture(o)
	if len(drawn) > 0 {
		if rest := p.out.Take(); rest != "" && p.err == nil {
			_, p.err = io.WriteString(p.stdout, rest+"\n")
		}
		if p.err == nil {
			_, p.err = p.stdout.Write(drawn)
		}
	}
	_, _ = io.WriteString(p.out, said)
}

// Prompt prints what input() asks.
func (p *PythonPrinter) Prompt(prompt string) { _, _ = io.WriteString(p.out, prompt) }

// take is a prompt behind what was held back for it, on one line.
func (p *PythonPrinter) take(prompt string) string {
	p.Prompt(prompt)
	return p.said.Take() + p.out.Take()
}

// Close prints what was held back, and what a person should know of the call's end.
func (p *PythonPrinter) Close(res python.Result) error {
	if err := errors.Join(p.err, p.out.Close(), p.said.Close()); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	say := func(format string, args ...any) {
		fmt.Fprintln(p.stderr, "sandboxd: "+text.Line(fmt.Sprintf(format, args...), 400))
	}
	if res.Fresh {
		say("the code ran in a new kernel: what former calls made is gone")
	}
	switch res.Ended {
	case agent.EndedWaiting:
		say("the code asks for input: %s; it was interrupted; answer at a terminal, or with -i and standard input", res.Prompt)
	case agent.EndedDeadline:
		say("its time was up: the code was interrupted after %.1f s", float64(res.Millis)/1000)
	case agent.EndedDead:
		say("%s: the next call gets a new kernel", res.Why)
	}
	if res.Restart {
		say("no interrupt ended it: the next call gets a new kernel")
	}
	return nil
}
