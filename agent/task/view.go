package task

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// View shows a task to a person while it goes on. What a model says and a program prints means nothing to their terminal, and each of its
// lines begins with what tells it from ours: two spaces a word of the model, $ a command, | what it printed, > another tool.
type View struct {
	mu     sync.Mutex
	out    io.Writer
	within string       // guarded by mu; what the line under way began with, empty between lines
	output *text.Stream // guarded by mu; of the command under way
	quiet  bool         // guarded by mu; the output of this tool was shown as it came
}

// NewView returns a View on out, which nothing else writes to meanwhile.
func NewView(out io.Writer) *View { return &View{out: out} }

// Words are for Options.Words.
func (v *View) Words(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.printLocked("  ", s)
}

// Write is for Options.Output.
func (v *View) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.output == nil {
		v.output = text.NewStream(lines{v, "| "})
	}
	v.quiet = true
	return v.output.Write(p)
}

// Tell is for Options.Tell.
func (v *View) Tell(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e.Event {
	case "words":
		v.endLocked() // they were shown as they came
	case "note":
		v.Sayf("%s", e.Text)
	case "call":
		v.callLocked(e)
	case "result":
		v.resultLocked(e)
	}
}

// Sayf prints a line of ours; what has several is indented, so that no part of it looks like another one of ours. It is not called at
// once with the other methods.
func (v *View) Sayf(format string, args ...any) {
	v.endLocked()
	said := strings.TrimRight(text.Lines(fmt.Sprintf(format, args...)), "\n")
	fmt.Fprintf(v.out, "sandboxd: %s\n", strings.ReplaceAll(said, "\n", "\n  "))
}

func (v *View) callLocked(e Event) {
	v.quiet = false
	var in map[string]any
	_ = json.Unmarshal([]byte(e.Arguments), &in) // else it is shown as it is
	switch command, ok := in["command"].(string); {
	case e.Tool == "run" && ok:
		v.printLocked("$ ", command)
	case e.Tool == toolDone || e.Tool == toolFail:
		return // the end says it
	default:
		v.printLocked("> ", text.Line(e.Tool, 40)+" "+text.Line(e.Arguments, 200))
	}
	v.endLocked()
}

func (v *View) resultLocked(e Event) {
	if v.output != nil {
		_ = v.output.Close() // to a terminal: nobody is left to be told
		v.output = nil
	}
	res, ok := e.Result.(agent.Result)
	switch {
	case !ok:
		first, _, _ := strings.Cut(e.Text, "\n")
		v.printLocked("| ", text.Line(first, 200))
	case !v.quiet:
		v.printLocked("| ", res.Output)
		fallthrough
	default:
		v.endLocked()
		said, _, _ := strings.Cut(e.Text, "\n")
		if code, known := res.Code(); res.Ended != agent.EndedDone || !known || code != 0 {
			v.printLocked("| ", "("+said+")")
		}
	}
	v.endLocked()
	v.quiet = false
}

// printLocked prints s, each of its lines behind mark.
func (v *View) printLocked(mark, s string) {
	if v.within != mark {
		v.endLocked()
	}
	for line := range strings.SplitAfterSeq(text.Lines(s), "\n") {
		if line == "" {
			continue
		}
		if v.within == "" {
			fmt.Fprint(v.out, mark)
			v.within = mark
		}
		fmt.Fprint(v.out, line)
		if strings.HasSuffix(line, "\n") {
			v.within = ""
		}
	}
}

// endLocked ends the line under way.
func (v *View) endLocked() {
	if v.within != "" {
		fmt.Fprintln(v.out)
		v.within = ""
	}
}

// lines prints to a View whose mu is held.
type lines struct {
	v    *View
	mark string
}

func (l lines) Write(p []byte) (int, error) {
	l.v.printLocked(l.mark, string(p))
	return len(p), nil
}

// Transcript writes events as JSON, one a line, without the endpoint's key.
type Transcript struct {
	out io.Writer
	key string
	err error
}

// NewTranscript returns a Transcript to out that leaves key out.
func NewTranscript(out io.Writer, key string) *Transcript {
	escaped, err := json.Marshal(key) // as it would stand in a line
	if err == nil {
		key = strings.Trim(string(escaped), `"`)
	}
	return &Transcript{out: out, key: key}
}

// Put writes one object.
func (t *Transcript) Put(v any) {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = io.WriteString(t.out, redact(string(line), t.key)+"\n")
	}
	if t.err == nil {
		t.err = err
	}
}

// Err is the first error.
func (t *Transcript) Err() error { return t.err }

// Start is the first object of a transcript.
type Start struct {
	Event   string    `json:"event"` // start
	Time    time.Time `json:"time"`
	Sandbox string    `json:"sandbox"`
	Session string    `json:"session"`
	SSH     string    `json:"ssh_command"` // joins the terminal that the task works in
	Model   string    `json:"model"`
	Task    string    `json:"task"`
}

// End is the last one.
type End struct {
	Event string    `json:"event"` // end
	Time  time.Time `json:"time"`
	Outcome
	ExitCode int `json:"exit_code"`
}
