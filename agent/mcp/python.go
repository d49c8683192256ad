package mcp

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxImages     = 4        // images of one call that the model receives
	maxImageBytes = 1 << 20  // of each image
	maxShown      = 20       // values, displays and exceptions of one call
	maxForm       = 16 << 10 // bytes of any other representation of a value
	maxPrinted    = 32 << 10 // bytes of text for the model
	maxListedPy   = 8 << 10  // bytes of a list of packages
)

// PythonOptions configure the tool python.
type PythonOptions struct {
	python.Options
	About string // additional text for the model, such as available packages and data
}

// addPython adds the tool that runs stateful Python.
func (s *Server) addPython() {
	type pythonIn struct {
		Code     string  `json:"code,omitempty" jsonschema:"Python code; the value of the last expression and plots are shown"`
		Input    *string `json:"input,omitempty" jsonschema:"instead of code: the line that input() waits for"`
		Context  string  `json:"context,omitempty" jsonschema:"name of the context whose variables the code uses; default main"`
		Restart  bool    `json:"restart,omitempty" jsonschema:"start a new kernel first"`
		Packages bool    `json:"packages,omitempty" jsonschema:"instead of code: list the installed packages"`
		TimeoutS float64 `json:"timeout_s,omitempty" jsonschema:"seconds after which the code is interrupted, 0.1 to 600; default 50"`
		Sandbox  string  `json:"sandbox,omitempty" jsonschema:"name of another sandbox; default this server's sandbox"`
	}
	about := "Run Python in a Jupyter kernel of the sandbox. Variables, imports and files are " +
		"kept for the next call. Write files for the user to " + python.DataDir + "."
	if more := s.options.Python.About; more != "" {
		about += " " + more
	}
	add(
		s,
		tool{name: "python", about: about},
		func(ctx context.Context, c *call, in pythonIn) (answer, error) {
			given := 0
			for _, is := range []bool{in.Code != "", in.Input != nil, in.Packages} {
				if is {
					given++
				}
			}
			if given > 1 || given == 0 && !in.Restart {
				return answer{}, &agent.Error{
					Code:    agent.CodeUsage,
					Message: "python: set exactly one of code, input and packages",
				}
			}
			timeout, _, err := bounds{TimeoutS: in.TimeoutS}.read()
			if err != nil {
				return answer{}, err
			}
			t, err := s.places.target(ctx, where{Sandbox: in.Sandbox})
			if err != nil {
				return answer{}, err
			}
			return s.python(ctx, t.Sandbox, func(py *python.Interpreter) (answer, error) {
				if in.Packages {
					return listPackages(ctx, py)
				}
				name := in.Context
				if name == "" {
					name = wire.DefaultSession
				}
				k, err := py.Context(ctx, name)
				if err != nil {
					return answer{}, err
				}
				if in.Restart {
					if err := k.Restart(ctx); err != nil {
						return answer{}, err
					}
				}
				var res python.Result
				switch {
				case in.Input != nil:
					res, err = k.Answer(ctx, *in.Input)
				case in.Code != "":
					res, err = k.Execute(ctx, python.Call{Code: in.Code, Timeout: timeout})
				default:
					res = python.Result{
						Context: name,
						Ended:   agent.EndedDone,
						OK:      true,
						Outputs: []python.Output{},
					}
				}
				if err != nil {
					return answer{}, err
				}
				return pythonAnswer(res), nil
			})
		},
	)
}

// python calls do with the Python of a sandbox, which calls share. If its connection breaks, later
// calls open a new one. Running calls keep theirs.
func (s *Server) python(
	ctx context.Context,
	name string,
	do func(*python.Interpreter) (answer, error),
) (answer, error) {
	at, release, err := s.places.open(ctx, name)
	if err != nil {
		return answer{}, err
	}
	py := s.places.lend(at.python)
	if py == nil {
		o := s.options.Python.Options
		o.Limits = python.Limits{
			Head:     maxPrinted / 2,
			Tail:     maxPrinted / 2,
			Displays: maxShown,
			Shown:    8 << 20,
			Images:   -1,
		}
		var in *python.Interpreter
		if in, err = python.Open(ctx, at.client, o); err == nil {
			at.python = &lent{Interpreter: in}
			py = s.places.lend(at.python)
		}
	}
	release()
	if err != nil {
		return answer{}, err
	}
	a, err := do(py.Interpreter)
	s.places.giveBack(py, err != nil && broke(err) && ctx.Err() == nil)
	return a, err
}

// lend counts a call that uses py until giveBack. It returns nil if py cannot be used.
func (p *places) lend(py *lent) *lent {
	p.mu.Lock()
	defer p.mu.Unlock()
	if py == nil || py.gone {
		return nil
	}
	py.users++
	return py
}

// giveBack ends the use of py. With gone, no later call uses it.
func (p *places) giveBack(py *lent, gone bool) {
	p.mu.Lock()
	py.users--
	py.gone = py.gone || gone
	last := py.gone && py.users == 0
	p.mu.Unlock()
	if last {
		_ = py.Close()
	}
}

func listPackages(ctx context.Context, py *python.Interpreter) (answer, error) {
	list, err := py.Packages(ctx)
	if err != nil {
		return answer{}, err
	}
	var b strings.Builder
	for _, p := range list {
		if b.Len() < maxListedPy {
			fmt.Fprintf(&b, "%s %s\n", text.Line(p.Name, 80), text.Line(p.Version, 40))
		}
	}
	return answer{
		object: map[string]any{"packages": list},
		text:   fence("packages", b.String()),
	}, nil
}

// pythonAnswer converts a result for the model: text without the bytes of images, and the images
// themselves. Everything from the sandbox is marked as untrusted and limited in size.
func pythonAnswer(res python.Result) answer {
	a := answer{failed: !res.OK && res.Ended == agent.EndedDone}
	said := happenedInPython(res)
	var b strings.Builder
	for i, o := range res.Outputs {
		b.WriteString(o.String())
		if mime, data := o.Picture(); mime != "image/svg+xml" && len(data) > 0 &&
			len(data) <= maxImageBytes &&
			len(a.images) < maxImages {
			a.images = append(a.images, &sdk.ImageContent{Data: data, MIMEType: mime})
		}
		for mime, raw := range o.Data {
			if strings.HasPrefix(mime, "image/") || len(raw) > maxForm {
				delete(res.Outputs[i].Data, mime)
			}
		}
		res.Outputs[i].Value, _ = text.Cut(o.Value, maxForm)
		if traceback := strings.Join(o.Traceback, "\n"); len(traceback) > maxForm {
			traceback, _ = text.Cut(traceback, maxForm)
			res.Outputs[i].Traceback = []string{traceback}
		}
	}
	res.Error = nil // it is one of the outputs
	a.object = res
	printed, _ := text.Render([]byte(b.String()), maxPrinted)
	a.text = said + "\n" + fence("output", printed)
	return a
}

// happenedInPython describes the end of a call for the model. Text from the sandbox is quoted and
// on one line.
func happenedInPython(res python.Result) string {
	said := string(res.Ended)
	switch res.Ended {
	case agent.EndedDone:
		if !res.OK {
			said = "raised"
			if res.Error != nil {
				said += fmt.Sprintf(" %q", text.Line(res.Error.Name, 80))
			}
		}
	case agent.EndedWaiting:
		said = fmt.Sprintf(
			"waiting: input() asks for a line, after %q\nnext: call python with input",
			text.Line(res.Prompt, 200),
		)
	case agent.EndedDeadline:
		said = "deadline: the code was interrupted"
	case agent.EndedDead:
		said = "dead: " + res.Why + "; the next call gets a new kernel"
	}
	if res.Fresh {
		said += "\nnote: this ran in a new kernel; variables of earlier calls are lost"
	}
	if res.Restart {
		said += "\nnote: the code ignored interrupts; the next call gets a new kernel"
	}
	return said
}
