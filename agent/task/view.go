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

// View prints a running task for a person. It removes escape sequences of models and programs, and
// marks each line by its origin: two spaces for text of the model, $ for a command, | for output, >
// for another tool.
type View struct {
	mu     sync.Mutex
	out    io.Writer
	within string       // guarded by mu; mark of the unfinished line; empty between lines
	output *text.Stream // guarded by mu; output of the running command
	quiet  bool         // guarded by mu; the output was printed as it arrived
}

// NewView returns a View that prints to out. Nothing else may write to out meanwhile.
func NewView(out io.Writer) *View { return &View{out: out} }

// Words prints text of the model. It is for Options.Words.
func (v *View) Words(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.printLocked("  ", s)
}

// Write prints output of a command. It is for Options.Output.
func (v *View) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.output == nil {
		v.output = text.NewStream(lines{v, "| "})
	}
	v.quiet = true
	return v.output.Write(p)
}

// Tell prints an event. It is for Options.Tell.
func (v *View) Tell(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e.Event {
	case "words":
		v.endLocked() // they were printed as they arrived
	case "note":
		v.Sayf("%s", e.Text)
	case "call":
		v.callLocked(e)
	case "result":
		v.resultLocked(e)
	}
}

// Sayf prints a message of sandboxd. Further lines are indented, so that they do not look like
// other messages. It must not be called concurrently with other methods.
func (v *View) Sayf(format string, args ...any) {
	v.endLocked()
	said := strings.TrimRight(text.Lines(fmt.Sprintf(format, args...)), "\n")
	fmt.Fprintf(v.out, "sandboxd: %s\n", strings.ReplaceAll(said, "\n", "\n  "))
}

func (v *View) callLocked(e Event) {
	v.quiet = false
	var in map[string]any
	_ = json.Unmarshal([]byte(e.Arguments), &in) // invalid JSON is printed as it is
	switch command, ok := in["command"].(string); {
	case e.Tool == "run" && ok:
		v.printLocked("$ ", command)
	case e.Tool == toolDone || e.Tool == toolFail:
		return // the end of the task prints it
	default:
		v.printLocked("> ", text.Line(e.Tool, 40)+" "+text.Line(e.Arguments, 200))
	}
	v.endLocked()
}

func (v *View) resultLocked(e Event) {
	if v.output != nil {
		_ = v.output.Close() // an error of the terminal cannot be reported
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

// printLocked prints s with mark before each line.
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

// endLocked ends an unfinished line.
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

// Transcript writes events as JSON lines. It redacts the endpoint's key.
type Transcript struct {
	out io.Writer
	key string
	err error
}

// NewTranscript returns a Transcript that writes to out and redacts key.
func NewTranscript(out io.Writer, key string) *Transcript {
	escaped, err := json.Marshal(key) // as it appears in a line
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

// Err returns the first error.
func (t *Transcript) Err() error { return t.err }

// Start is the first object of a transcript.
type Start struct {
	Event   string    `json:"event"` // start
	Time    time.Time `json:"time"`
	Sandbox string    `json:"sandbox"`
	Session string    `json:"session"`
	SSH     string    `json:"ssh_command"` // command that joins the terminal of the task
	Model   string    `json:"model"`
	Task    string    `json:"task"`
}

// End is the last object of a transcript.
type End struct {
	Event string    `json:"event"` // end
	Time  time.Time `json:"time"`
	Outcome
	ExitCode int `json:"exit_code"`
}
