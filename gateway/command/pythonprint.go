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
	Output *python.Output `json:"output,omitempty"` // one output, when it arrives
	Prompt *PythonPrompt  `json:"prompt,omitempty"` // answered by a line of standard input
	// the last line; without the outputs printed before
	Result *python.Result `json:"result,omitempty"`
}

// PythonPrompt is the prompt of input() or getpass.
type PythonPrompt struct {
	Text     string `json:"text"`
	Password bool   `json:"password,omitempty"` // do not echo the answer
}

// PythonPrinter prints the outputs of a python call as text, when they arrive. It removes control
// sequences: see text.Stream.
type PythonPrinter struct {
	// Picture returns the bytes that draw an image output, and text to print with them. Without it,
	// the printer describes images.
	Picture func(o python.Output) (drawn []byte, said string)

	stdout, stderr io.Writer
	out, said      *text.Stream
	err            error // of writing an image
}

// NewPythonPrinter returns a printer that closes neither writer.
func NewPythonPrinter(stdout, stderr io.Writer) *PythonPrinter {
	return &PythonPrinter{stdout: stdout, stderr: stderr, out: text.NewStream(stdout),
		said: text.NewStream(stderr)}
}

// Output prints o. Close returns the errors of the writers.
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

// picture draws an image on a line of its own, after the rest of an unfinished line.
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

// Prompt prints the prompt of input().
func (p *PythonPrinter) Prompt(prompt string) { _, _ = io.WriteString(p.out, prompt) }

// take returns the unfinished line with the prompt after it.
func (p *PythonPrinter) take(prompt string) string {
	p.Prompt(prompt)
	return p.said.Take() + p.out.Take()
}

// Close prints the unfinished line, and how the call ended if that is unusual.
func (p *PythonPrinter) Close(res python.Result) error {
	if err := errors.Join(p.err, p.out.Close(), p.said.Close()); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	say := func(format string, args ...any) {
		fmt.Fprintln(p.stderr, "sandboxd: "+text.Line(fmt.Sprintf(format, args...), 400))
	}
	if res.Fresh {
		say("new kernel: variables of earlier calls are lost")
	}
	switch res.Ended {
	case agent.EndedWaiting:
		say("interrupted: the code asked for input: %s; run it on a terminal, or use -i and "+
			"standard input", res.Prompt)
	case agent.EndedDeadline:
		say("timeout: the code was interrupted after %.1f s", float64(res.Millis)/1000)
	case agent.EndedDead:
		say("%s: the next call gets a new kernel", res.Why)
	}
	if res.Restart {
		say("the code ignored the interrupt: the next call gets a new kernel")
	}
	return nil
}
