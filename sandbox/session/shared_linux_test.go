package session_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func op(n int) string { return fmt.Sprintf("%032x", n) }

// watch collects what a party receives.
type watch struct {
	mu     sync.Mutex
	output []byte
	events []wire.Event
	more   chan struct{}
}

func newWatch() *watch { return &watch{more: make(chan struct{}, 1)} }

func (w *watch) handler() wire.Handler {
	wake := func() {
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
	return wire.Handler{
		Output: func(off uint64, p []byte) {
			w.mu.Lock()
			w.output = append(w.output, p...)
			w.mu.Unlock()
			wake()
		},
		Event: func(e wire.Event) {
			w.mu.Lock()
			w.events = append(w.events, e)
			w.mu.Unlock()
			wake()
		},
	}
}

func (w *watch) until(
	t *testing.T,
	what string,
	cond func(output string, events []wire.Event) bool,
) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		w.mu.Lock()
		ok := cond(string(w.output), w.events)
		tail := w.output[max(0, len(w.output)-300):]
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.more:
		case <-late:
			t.Fatalf("%s does not come; output ends in %q", what, tail)
		}
	}
}

func (w *watch) text(t *testing.T, want string) {
	t.Helper()
	w.until(t, want, func(out string, _ []wire.Event) bool { return strings.Contains(out, want) })
}

// TestOnce sends the same op on a second stream after the first broke during the call.
func TestOnce(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	first := agentClient(t, set)
	run(t, first, "n=0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lost := make(chan error, 1)
	go func() {
		_, err := first.Request(
			ctx,
			wire.Request{Verb: wire.VerbRun, Text: "n=$((n+1)); sleep 4; echo n is $n", Op: op(1)},
		)
		lost <- err
	}()
	w := newWatch()
	watcher := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), From: wire.Offset{Word: wire.FromStart}},
		w.handler(),
	)
	w.text(t, "sleep 4")
	first.Close()
	if err := <-lost; err == nil {
		t.Fatal("a reply on a closed stream")
	}
	again := dial(
		t,
		set,
		wire.Attach{Resume: first.Attached().Resume, Party: agentParty("alice")},
		wire.Handler{},
	)
	for range 3 {
		res := do(
			t,
			again,
			wire.Request{Verb: wire.VerbRun, Text: "n=$((n+1)); sleep 4; echo n is $n", Op: op(1)},
		)
		if res.Ended != wire.Done || res.Output != "n is 1\n" {
			t.Errorf("repeated: %s, %q", res.Ended, res.Output)
		}
	}
	if res := run(t, again, "echo $n"); res.Output != "1\n" {
		t.Errorf("it ran %s times", res.Output)
	}
	if _, err := again.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "true",
		Op: "short"}); err == nil {
		t.Error("an op that is none")
	}
	w.text(t, "n is 1\r\n")
	watcher.Close()
}

func TestTakenOver(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	result := make(chan *wire.Result, 1)
	go func() {
		r, _ := alice.Request(
			t.Context(),
			wire.Request{Verb: wire.VerbRun, Text: "echo begun; sleep 4; read x; echo got $x"},
		)
		result <- r.Result
	}()
	w := newWatch()
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), From: wire.Offset{Word: wire.FromStart}},
		w.handler(),
	)
	w.text(t, "begun\r\n")
	if err := bob.Input(t.Context(), []byte("x")); err == nil ||
		!strings.Contains(err.Error(), "agent:alice holds the keyboard") {
		t.Errorf("input while the agent has it: %v", err)
	}
	if r, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil ||
		r.Keyboard != "person:bob" {
		t.Fatalf("take: %+v, %v", r, err)
	}
	res := <-result
	if res.Ended != wire.TakenOver || res.Keyboard != "person:bob" || res.Output != "begun\n" {
		t.Errorf("the call in flight: %s, %q, %q", res.Ended, res.Keyboard, res.Output)
	}
	if res := do(t, alice, wire.Request{Verb: wire.VerbType, Text: "y"}); res.Error == nil ||
		res.Error.Code != wire.CodeKeyboardHeld {
		t.Errorf("type meanwhile: %s, %v", res.Ended, res.Error)
	}
	n := 0
	w.until(
		t,
		"the events so far",
		func(_ string, events []wire.Event) bool { n = prompts(events); return true },
	)
	if err := bob.Input(t.Context(), []byte("hello\r")); err != nil {
		t.Fatal(err)
	}
	w.text(t, "got hello\r\n")
	w.until(
		t,
		"the next prompt",
		func(_ string, events []wire.Event) bool { return prompts(events) > n },
	)

	// With hold, the agent waits until the keyboard is back.
	go func() {
		r, _ := alice.Request(
			t.Context(),
			wire.Request{Verb: wire.VerbRun, Text: "echo at last", Hold: true},
		)
		result <- r.Result
	}()
	select {
	case res := <-result:
		t.Fatalf("did not wait: %s, %v", res.Ended, res.Error)
	case <-time.After(50 * time.Millisecond):
	}
	// A call that is cancelled while it waits does not run later.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := alice.Request(ctx, wire.Request{Verb: wire.VerbRun, Text: "echo too late",
		Hold: true}); err == nil {
		t.Error("did not wait")
	}
	// The reply to this request comes after the cancellation was read.
	if _, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbScreen}); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	if res := <-result; res.Ended != wire.Done || res.Output != "at last\n" {
		t.Errorf("after give: %s, %q, %v", res.Ended, res.Output, res.Error)
	}
	run(t, alice, "echo the end")
	w.text(t, "the end\r\n")
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(string(w.output), "too late") {
		t.Error("a cancelled run was done")
	}
}

// TestRunAsThePromptComes gives the keyboard back while the command of its holder ends. The prompt
// frees the keyboard of a call, but the call that just received it is not the one that ended.
func TestRunAsThePromptComes(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	w := newWatch()
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), From: wire.Offset{Word: wire.FromStart}},
		w.handler(),
	)
	var done int
	for i := range 60 {
		if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
			t.Fatal(err)
		}
		result := make(chan *wire.Result, 1)
		go func() {
			r, _ := alice.Request(
				t.Context(),
				wire.Request{Verb: wire.VerbRun, Text: "echo at last", Hold: true},
			)
			result <- r.Result
		}()
		begun := fmt.Sprintf("by hand %d", i)
		if err := bob.Input(t.Context(), []byte(
			"echo by hand $((1*"+strconv.Itoa(i)+"))\r")); err != nil {
			t.Fatal(err)
		}
		w.text(t, begun+"\r\n")
		<-time.After(time.Duration(i%20) * 100 * time.Microsecond)
		if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
			t.Fatal(err)
		}
		switch res := <-result; {
		case res.Ended == wire.Done && res.Output == "at last\n":
			done++
		// Before its end.
		case res.Error != nil && strings.Contains(res.Error.Message, " runs in session main"):
		default:
			t.Fatalf("round %d: %s, %q, %v", i, res.Ended, res.Output, res.Error)
		}
		do(t, alice, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt}})
	}
	if done == 0 {
		t.Error("no run was done")
	}
}

// TestEvents checks the events that a record consists of.
func TestEvents(t *testing.T) {
	set := newSet(t, "/bin/bash")
	w := newWatch()
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		w.handler(),
	)
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo hi; (exit 3)", Op: op(7)})
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for _, e := range w.events {
		switch e.Kind {
		case wire.EventCommand:
			got = append(got, "command "+e.Text+" "+e.Op[31:])
		case wire.EventResult:
			got = append(got, fmt.Sprintf("result %d %s %s", *e.ExitCode, e.Why, e.Op[31:]))
		case wire.EventState:
			got = append(got, "state "+string(e.State.Phase))
		case wire.EventKeyboard:
			got = append(got, "keyboard "+e.Keyboard)
		}
	}
	// If the command takes long, the prober reports again that a program runs, and which.
	got = slices.Compact(got)
	want := "state prompt, keyboard agent:alice, command echo hi; (exit 3) 7, state running, " +
		"result 3 done 7, state prompt, keyboard "
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("events\n%s\nwant\n%s", s, want)
	}
	// The log has what a terminal would show, without the typed line and without marks.
	if s := string(w.output); !regexp.MustCompile(
		`\$ echo hi; \(exit 3\)\r\n(\x1b\[\?2004l)?hi\r\n(\x1b\[\?2004h)?\$ $`).
		MatchString(s) {
		t.Errorf("output %q", s)
	}
	if s := string(w.output); strings.Contains(s, "7337") || strings.Contains(s, "__sbx") {
		t.Errorf("marks or the typed line in the log: %q", s)
	}
}

// TestBackgroundOutput runs commands while a job of the same shell prints. None of its output
// counts as an echo.
func TestBackgroundOutput(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh"} {
		t.Run(filepath.Base(shell), func(t *testing.T) { backgroundOutput(t, shell) })
	}
}

func backgroundOutput(t *testing.T, shell string) {
	set := newSet(t, shell)
	w := newWatch()
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		w.handler(),
	)
	const n = 300
	run(
		t,
		c,
		fmt.Sprintf(
			`bash -c 'for i in $(seq 1 %d); do echo "<$i>"; sleep 0.003; done; echo "<end>"' &`,
			n,
		),
	)
	commands := 0
	for over := false; !over; commands++ {
		if res := run(t, c, "true"); res.Ended != wire.Done {
			t.Fatalf("%s, %v", res.Ended, res.Error)
		}
		w.mu.Lock()
		over = strings.Contains(string(w.output), "<end>\r\n")
		tail := w.output[max(0, len(w.output)-300):]
		w.mu.Unlock()
		if commands > 100*n {
			t.Fatalf("the job's last line does not come: %q", tail)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The terminal may pass a line on in two pieces, with the next command between them.
	line := regexp.MustCompile(`<(\d+)>(?:true\r\n(?:\x1b\[\?2004l\r?)?)?\r\n`)
	found := line.FindAllStringSubmatch(string(w.output), -1)
	missing := n
	seen := map[int]bool{}
	for _, m := range found {
		i, _ := strconv.Atoi(m[1])
		if !seen[i] {
			seen[i] = true
			missing--
		}
	}
	if missing > 0 || len(found) != n {
		t.Errorf(
			"%d of %d lines are missing, %d found, %d commands",
			missing,
			n,
			len(found),
			commands,
		)
		for i := 1; i <= n; i++ {
			if before := bytes.Index(w.output, fmt.Appendf(nil, "<%d>\r\n", i-1)); !seen[i] &&
				before >= 0 {
				t.Errorf("for <%d>: %.600q", i, w.output[before:])
			}
		}
	}
}

// TestQueries sends terminal queries: the session answers them, with any number of watchers.
func TestQueries(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	res := run(
		t,
		c,
		`stty -echo raw; printf '\033[6n'; IFS= read -r -d R -t 5 a; stty sane; printf '%q\n' "$a"`,
	)
	if !regexp.MustCompile(`\[[0-9]+;1`).MatchString(res.Output) {
		t.Errorf("answer %q (%s)", res.Output, res.Ended)
	}
}

func TestLineTooLong(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "cat > /dev/null")
	res := do(t, c, wire.Request{Verb: wire.VerbType, Text: strings.Repeat("x", 4096)})
	if res.Error == nil || res.Error.Code != wire.CodeLineTooLong {
		t.Errorf("4096 bytes: %s, %v", res.Ended, res.Error)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbType, Text: strings.Repeat("x", 4000)})
	if res.Ended != wire.Waiting {
		t.Errorf("4000 bytes: %s, %v", res.Ended, res.Error)
	}
}

// TestLongLineTypedEarly types a long line to a program shortly before it leaves canonical mode.
func TestLongLineTypedEarly(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	start := filepath.Join(t.TempDir(), "start")
	res := leave(t, c, "until [ -e "+start+" ]; do sleep 0.01; done; stty raw -echo; "+
		"head -c 5001 | wc -c; stty sane")
	if res.Ended != wire.Deadline {
		t.Fatalf("before: %s", res.Ended)
	}
	typed := make(chan *wire.Result, 1)
	go func() {
		reply, err := c.Request(
			t.Context(),
			wire.Request{Verb: wire.VerbType, Text: strings.Repeat("x", 5000), TimeoutMS: 60_000},
		)
		if err != nil {
			t.Error(err)
		}
		typed <- reply.Result
	}()
	// The line has probably arrived by then; if not, nothing is shown.
	defer time.AfterFunc(50*time.Millisecond, func() { _ = os.WriteFile(start, nil, 0o600) }).Stop()
	if res := <-typed; res != nil &&
		(res.Ended != wire.Done || !strings.Contains(res.Output, "5001")) {
		t.Errorf("typed: %s %+v, %.200q", res.Ended, res.Error, res.Output)
	}
}

func TestWaitingIsSoon(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "true")
	var took []time.Duration
	for range 20 {
		began := time.Now()
		res := run(t, c, `read -p "ready? " x`)
		took = append(took, time.Since(began))
		if res.Ended != wire.Waiting || res.Prompt != "ready? " {
			t.Fatalf("%s, %q", res.Ended, res.Prompt)
		}
		if res := do(t, c, wire.Request{Verb: wire.VerbType, Text: "y"}); res.Ended != wire.Done {
			t.Fatalf("typed: %s", res.Ended)
		}
	}
	t.Logf("question to answer: %v", took)
}

func TestPassword(t *testing.T) {
	set := newSet(t, "/bin/bash")
	w := newWatch()
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		w.handler(),
	)
	res := run(t, c, `read -s -p "Password: " p; echo; echo ${#p}`)
	if res.Ended != wire.Waiting || res.Want != wire.WantPassword || res.Prompt != "Password: " {
		t.Fatalf("%s, %s, %q", res.Ended, res.Want, res.Prompt)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "hunter2"})
	if res.Ended != wire.Done || res.Output != "\n7\n" {
		t.Errorf("%s, %q", res.Ended, res.Output)
	}
	if w.knows(t, "hunter2") {
		t.Error("the password was reported")
	}

	// No event has a password or its length, for any party, in one piece or in many.
	run(t, c, `read -s -p "Password: " p; echo; echo ${#p}`)
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), Quiet: true},
		newWatch().handler(),
	)
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Split("correct-horse\r", "") {
		if err := bob.Input(t.Context(), []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	w.text(t, "13\r\n")
	if err := bob.Input(t.Context(), []byte("echo shown\r")); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the inputs", func(_ string, events []wire.Event) bool {
		return slices.ContainsFunc(
			events,
			func(e wire.Event) bool {
				return e.Kind == wire.EventInput && e.By == "person:bob" &&
					e.Bytes > 0
			},
		)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	hidden := map[string]int{}
	for _, e := range w.events {
		switch {
		case e.Kind != wire.EventInput:
		case e.Text == wire.Hidden && e.Bytes == 0:
			hidden[e.By]++
		case e.Text != "" || e.By == "person:bob" && e.Bytes != len("echo shown\r"):
			t.Errorf("input event %+v", e)
		}
	}
	if hidden["agent:alice"] != 1 || hidden["person:bob"] == 0 {
		t.Errorf("hidden inputs: %v", hidden)
	}
}
