package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The phases: when the fault comes.
type phase string

const (
	before  phase = "before"  // within 50 ms of the calls
	running phase = "running" // while each command sleeps
	ended   phase = "ended"   // as soon as a command, which ends at once, has done what it does
)

var phases = []phase{before, running, ended}

const (
	// after the fault, or after the end of the command if it survives the fault
	answerWithin = 5 * time.Second
	answerTime   = 45 * time.Second // longest wait for an answer
	outlives     = 2 * time.Second  // how long a command runs that may outlive the fault
	// longest time between the calls and the fault, in the phase before
	firstMoments = 50 * time.Millisecond
	shortly      = 200 * time.Millisecond // how long a command of the phase before runs
)

// fault is what happens to a sandbox during calls.
type fault struct {
	name     string
	cause    func(r *faultRound) error // returns when it has happened
	after    func(r *faultRound) error // before the sandbox is used again; nil starts it
	survives bool                      // commands go on
	gone     bool                      // nothing can be run in the sandbox afterwards
	restarts bool                      // the fault itself starts the sandbox again
	alone    bool                      // it happens to all sandboxes of the daemon
	holds    []string                  // callers whose calls wait for the end of the fault
	within   time.Duration             // in which callers have an answer; 0 is answerWithin
	relayed  time.Duration             // in which those without a session have one; 0 is within
}

// sandboxFaults are the faults on the usual engine.
var sandboxFaults = []fault{
	{name: "stop", cause: func(r *faultRound) error { return r.control("stop " + r.sandbox) }},
	{name: "docker kill", cause: func(r *faultRound) error {
		return r.docker("kill", r.container())
	}},
	{name: "docker restart", cause: func(r *faultRound) error {
		return r.docker("restart", "-t", "0", r.container())
	}, restarts: true,
		// later calls wait until the new guest has given up waiting for its keys
		within: 20 * time.Second},
	{name: "docker rm -f", cause: func(r *faultRound) error {
		return r.docker("rm", "-f", r.container())
	}, gone: true},
	{name: "guest killed", cause: func(r *faultRound) error { return r.signal("KILL") }},
	{name: "pause", cause: func(r *faultRound) error { return r.control("pause " + r.sandbox) },
		after: func(r *faultRound) error {
			return r.control("resume " + r.sandbox)
		}, survives: true,
		holds: []string{"exec", "e2b"}}, // they have no session without their caller
	{name: "guest frozen", cause: func(r *faultRound) error { return r.signal("STOP") },
		after: func(r *faultRound) error {
			return errors.Join(r.signal("CONT"), r.answers())
		}, survives: true,
		// their commands end with the connection, so it has twice the time
		relayed: 10 * time.Second},
	{name: "paused outside the daemon", cause: func(r *faultRound) error {
		return r.docker("pause", r.container())
	},
		after: func(r *faultRound) error {
			return r.docker("unpause", r.container())
		}, survives: true,
		holds: []string{"exec", "e2b"}}, // as after a pause
	{name: "daemon killed", cause: func(r *faultRound) error {
		if err := r.f.m.cmd.Process.Kill(); err != nil {
			return err
		}
		<-r.f.m.ended
		return r.f.m.tryStart("--http", r.f.http)
	}, after: func(*faultRound) error { return nil }, survives: true, alone: true},
}

// faultMatrix counts the outcomes of the calls of all rounds.
type faultMatrix struct {
	t    *testing.T
	m    *machine
	http string // where the daemon answers

	mu    *sync.Mutex
	tally map[[2]string]*faultTally // guarded by mu; by fault and caller
	texts map[string]int            // guarded by mu; what callers read
}

type faultTally struct {
	trials, done, lost, refused, other int
	repeated, afterRefused, late       int
	latest                             time.Duration
}

func newFaultMatrix(t *testing.T) *faultMatrix {
	return &faultMatrix{t: t, mu: new(sync.Mutex), tally: make(map[[2]string]*faultTally),
		texts: make(map[string]int)}
}

// on returns a matrix for the daemon of another machine, which it starts. It counts in the same
// table.
func (f *faultMatrix) on(t *testing.T, m *machine) *faultMatrix {
	t.Helper()
	m.start("--http", "127.0.0.1:0")
	return &faultMatrix{t: t, m: m, http: strings.TrimPrefix(*m.at.HTTP, "http://"), mu: f.mu,
		tally: f.tally, texts: f.texts}
}

// faultRound is one sandbox, one call of each caller at the same time, and one fault.
type faultRound struct {
	f       *faultMatrix
	fault   fault
	phase   phase
	sandbox string
	id      string // of the sandbox
	file    string // to which calls append their tags
}

func (r *faultRound) tag(caller string) string    { return r.sandbox + "-" + caller }
func (r *faultRound) target(caller string) string { return r.sandbox + "~" + caller }
func (r *faultRound) container() string           { return "sandboxd-" + r.id }

// command appends the caller's tag.
func (r *faultRound) command(caller string) string {
	return "echo " + r.tag(caller) + " >>" + r.file + r.then()
}

func (r *faultRound) then() string {
	switch {
	case r.phase == before:
		return fmt.Sprintf("; sleep %v", shortly.Seconds())
	case r.phase == running && r.fault.survives:
		return fmt.Sprintf("; sleep %v", outlives.Seconds())
	case r.phase == running:
		return "; sleep 1000"
	}
	return ""
}

// secret is what a caller types into a program that does not echo it. Run as a command, it would
// leave a line.
func (r *faultRound) secret(caller string) string {
	return "echo secret-" + r.tag(caller) + " >>" + r.file
}

// presses are the keys of a secret.
func (r *faultRound) presses(caller string) []string {
	var keys []string
	for _, c := range r.secret(caller) {
		keys = append(keys, strings.ReplaceAll(string(c), " ", "Space"))
	}
	return append(keys, "Enter")
}

// shell is a shell whose read supports -s.
func (r *faultRound) shell() string {
	if strings.HasPrefix(r.fault.name, "host") {
		return "bash"
	}
	return "sh"
}

// asks starts a program that waits for a secret in the caller's session. It appends the tag for
// each line that it reads.
func (r *faultRound) asks(ctx context.Context, caller string) error {
	program := "while read -s x; do echo " + r.tag(caller) + " >>" + r.file + r.then() + "; done"
	s, err := r.ask(ctx, text.Quote("run", "--json", "-n", r.target(caller), "--", r.shell(),
		"-c", program))
	if err != nil || s.code != wire.ExitWaiting {
		return fmt.Errorf("%s asks for nothing: %w, %+v", program, err, s)
	}
	return nil
}

func (r *faultRound) ask(ctx context.Context, command string) (said, error) {
	c, err := r.f.m.client(ctx, "sandboxd")
	if err != nil {
		return said{}, err
	}
	defer c.Close()
	return ask(ctx, c, command)
}

// control runs a command, which must succeed.
func (r *faultRound) control(command string) error {
	ctx, cancel := context.WithTimeout(r.f.t.Context(), patience)
	defer cancel()
	if s, err := r.ask(ctx, command); err != nil || s.code != 0 {
		return fmt.Errorf("%s: %w, %+v", command, err, s)
	}
	return nil
}

func (r *faultRound) docker(args ...string) error {
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+r.f.m.docker)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %v: %w: %s", args, err, out)
	}
	return nil
}

// signal sends a signal to the sandbox's PID 1 from outside.
func (r *faultRound) signal(name string) error {
	return exec.Command("sh", "-c",
		"kill -"+name+" $(docker inspect -f '{{.State.Pid}}' "+r.container()+")").Run()
}

// answers waits until the daemon has detected that the frozen sandbox answers again.
func (r *faultRound) answers() error {
	ctx, cancel := context.WithTimeout(r.f.t.Context(), patience)
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		s, err := r.ask(ctx, "exec "+r.sandbox+" -- true")
		if err != nil || s.code == 0 {
			return err
		}
		<-look.C
	}
}

// make creates the sandbox.
func (r *faultRound) make() error {
	dir := filepath.Join(r.f.m.dir, r.sandbox)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	r.file = filepath.Join(dir, "ran")
	if err := r.control("new " + small + "--mount " + dir + " " + r.sandbox); err != nil {
		return err
	}
	return r.identify()
}

func (r *faultRound) identify() error {
	ctx, cancel := context.WithTimeout(r.f.t.Context(), patience)
	defer cancel()
	s, err := r.ask(ctx, "describe --json "+r.sandbox)
	if err != nil {
		return err
	}
	var d lifecycle.Description
	err = json.Unmarshal([]byte(s.out), &d)
	r.id = d.ID
	return err
}

// counts returns how often each line is in the file.
func (r *faultRound) counts() map[string]int {
	text, _ := os.ReadFile(r.file) // none yet: no lines
	n := make(map[string]int)
	for _, line := range strings.Fields(string(text)) {
		n[line]++
	}
	return n
}

// play makes the calls, causes the fault and checks the outcome.
func (r *faultRound) play(callers []caller) error {
	ctx, cancel := context.WithTimeout(r.f.t.Context(), patience)
	defer cancel()
	calls := make([]func(context.Context) answer, len(callers))
	failed := make([]error, len(callers))
	dones := make([]func(), len(callers))
	var ready sync.WaitGroup
	for i, c := range callers {
		ready.Go(func() { calls[i], dones[i], failed[i] = c.prepare(ctx, r) })
	}
	ready.Wait()
	defer func() {
		for _, done := range dones {
			if done != nil {
				done()
			}
		}
	}()
	for i, err := range failed {
		if err != nil {
			return fmt.Errorf("%s: %w", callers[i].name, err)
		}
	}

	answers := make([]answer, len(callers))
	var all, held sync.WaitGroup
	ctx, cancel = context.WithTimeout(r.f.t.Context(), answerTime)
	defer cancel()
	for i, c := range callers {
		group := &all
		if slices.Contains(r.fault.holds, c.name) {
			group = &held
		}
		group.Go(func() { answers[i] = calls[i](ctx) })
	}
	began, err := r.moment(ctx, callers)
	if err != nil {
		return err
	}
	if err := r.fault.cause(r); err != nil {
		return err
	}
	happened := time.Now()
	all.Wait()

	if err := r.unstarted(); err != nil {
		r.f.t.Errorf("%s, %s: %v", r.fault.name, r.phase, err)
	}
	released, err := r.again(callers)
	if err != nil {
		return err
	}
	held.Wait()
	for i, c := range callers {
		due := happened
		if slices.Contains(r.fault.holds, c.name) {
			due = released
		}
		if end := began.Add(outlives); r.fault.survives && r.phase == running && end.After(due) {
			due = end
		}
		if slices.Contains(r.fault.holds, c.name) && r.phase == running {
			due = due.Add(outlives) // none may have passed
		}
		answers[i].late = answers[i].at.Sub(due)
	}
	r.judge(callers, answers)
	return nil
}

// moment waits until it is time for the fault, and returns when the commands started.
func (r *faultRound) moment(ctx context.Context, callers []caller) (time.Time, error) {
	if r.phase == before {
		timer := time.NewTimer(rand.N(firstMoments))
		defer timer.Stop()
		<-timer.C
		return time.Now(), nil
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		n := r.counts()
		if r.phase == ended && len(n) > 0 || len(n) >= len(callers) {
			return time.Now(), nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("some commands do not begin: %v", n)
		}
	}
}

// unstarted returns an error if the sandbox was started again although no call was made since the
// fault.
func (r *faultRound) unstarted() error {
	if r.phase != running || r.fault.survives || r.fault.restarts || r.fault.gone {
		return nil
	}
	cmd := exec.Command("docker", "inspect", "-f", "{{.State.Running}}", r.container())
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+r.f.m.docker)
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) != "false" {
		return fmt.Errorf("sandbox %s was started again without a call", r.sandbox)
	}
	return nil
}

// again uses the sandbox again: a call that waits to be repeated would now be repeated.
func (r *faultRound) again(callers []caller) (time.Time, error) {
	if r.fault.gone {
		return time.Now(), nil
	}
	ctx, cancel := context.WithTimeout(r.f.t.Context(), patience)
	defer cancel()
	after := r.fault.after
	if after == nil {
		after = func(r *faultRound) error { return r.control("start " + r.sandbox) }
	}
	if err := after(r); err != nil {
		return time.Time{}, err
	}
	from := time.Now()
	var all sync.WaitGroup
	for _, c := range callers {
		command := text.Quote("exec", r.sandbox, "--", "true")
		if c.session { // rejected while a program asks
			command = text.Quote("run", "--json", "-n", r.target(c.name), "--", "true")
		}
		all.Go(func() {
			s, err := r.ask(ctx, command)
			// a guest that was started without its keys ends, and the next use starts it with them
			for range 3 {
				if err == nil && s.code == 0 {
					break
				}
				s, err = r.ask(ctx, command)
			}
			if err != nil || s.code != 0 && !strings.Contains(s.out, `"not_prompt"`) {
				r.f.t.Errorf("%s, %s: afterwards: %s: %v, %+v", r.fault.name, r.phase, command, err,
					s)
			}
		})
	}
	all.Wait()
	return from, nil
}

// TestFaultMatrix causes each fault during the call of each caller, and counts what was done. A
// call is made once or not at all, a rejected one is not made, text for a program reaches no other
// program, and every caller has an answer soon.
func TestFaultMatrix(t *testing.T) {
	const few = 63
	trials := times(t, "SANDBOXD_TEST_FAULTS", few)
	rounds := (trials + len(callers) - 1) / len(callers)
	f := newFaultMatrix(t)
	defer f.print()
	t.Run("sandbox", func(t *testing.T) {
		m := newMachine(t)
		m.env = []string{"SANDBOXD_MAX_SANDBOXES=1000"}
		f.on(t, m).rounds(rounds)
	})
	others := 1 // in the short run
	if trials > few {
		others = 6
	}
	t.Run("host", func(t *testing.T) {
		h := newFaultHost(t)
		m := newMachine(t)
		f.on(t, m).hosts(h, 2*others)
	})
	t.Run("engine", func(t *testing.T) {
		d := newDockerd(t)
		m := newMachine(t)
		m.docker = d.host()
		f.on(t, m).engine(d, others)
	})
}

// atOnce is the number of rounds that run at the same time, unless a fault affects all sandboxes.
const atOnce = 3

// rounds plays n rounds.
func (f *faultMatrix) rounds(count int) {
	var alone sync.RWMutex
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range count {
		fault := sandboxFaults[i%len(sandboxFaults)]
		if only := os.Getenv("SANDBOXD_TEST_FAULT"); only != "" && only != fault.name {
			continue
		}
		r := &faultRound{f: f, fault: fault, phase: phases[(i+i/len(sandboxFaults))%len(phases)],
			sandbox: "f" + strconv.Itoa(i)}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if fault.alone {
				alone.Lock()
				defer alone.Unlock()
			} else {
				alone.RLock()
				defer alone.RUnlock()
			}
			if err := r.make(); err != nil {
				f.t.Errorf("%s, %s: %v", fault.name, r.phase, err)
				return
			}
			if err := r.play(callers); err != nil {
				f.t.Errorf("%s, %s: %v", fault.name, r.phase, err)
			}
			if err := r.control("rm -f " + r.sandbox); err != nil {
				f.t.Errorf("%s: %v", fault.name, err)
			}
		})
	}
	all.Wait()
}
