package programs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

const (
	// workTime is how long model.mjs answers, thinks, and lets a tool run.
	workTime = 6 * time.Second

	// restTime is how long a program may be quiet before its caller is told that it has come to rest. A second is promised;
	// the rest is for machines that have a lot to do.
	restTime = 3 * time.Second

	// callTime bounds one call: the work, and all that a program does around it.
	callTime = 45 * time.Second

	// startTime bounds the start of a program, lookEvery is how often its screen is looked at meanwhile.
	startTime = 2 * time.Minute
	lookEvery = 100 * time.Millisecond
)

func idle(ctx context.Context, w conformance.World, p program) error {
	sh, err := start(ctx, w, p)
	if err != nil {
		return err
	}
	// The start says nothing of how soon it was known: nobody waited for it. What is typed does, and is not sent.
	return errors.Join(write(ctx, sh, "hello"), end(ctx, sh))
}

func answering(ctx context.Context, w conformance.World, p program) error {
	return works(ctx, w, p, "script:talk", "word23")
}

func thinking(ctx context.Context, w conformance.World, p program) error {
	return works(ctx, w, p, "script:think", "thought.")
}

func asking(ctx context.Context, w conformance.World, p program) error {
	sh, err := asked(ctx, w, p)
	if err != nil {
		return err
	}
	return end(ctx, sh)
}

func tool(ctx context.Context, w conformance.World, p program) error {
	sh, err := asked(ctx, w, p)
	if err != nil {
		return err
	}
	// Leave is what all of them have chosen when they ask.
	if err := enter(ctx, sh, "after leave to run the tool", workTime, "finished."); err != nil {
		return errors.Join(err, end(ctx, sh))
	}
	return end(ctx, sh)
}

// start runs the program in a session of its own until it takes the first task, which must not go unnoticed.
func start(ctx context.Context, w conformance.World, p program) (*agent.Shell, error) {
	sh, err := w.Attach(ctx, w.Client)
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, w, sh, p); err != nil {
		return nil, errors.Join(err, end(ctx, sh))
	}
	return sh, nil
}

func ready(ctx context.Context, w conformance.World, sh *agent.Shell, p program) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errors.New("the program does not start"))
	defer cancel()
	call := agent.Call{Command: p.command, Timeout: callTime}
	if !w.Tier.Marks() {
		call = agent.Call{Text: p.command, Timeout: callTime}
	}
	// A program may rest while it starts; what counts is that it is known to rest when it is ready.
	if _, err := sh.Do(ctx, call); err != nil {
		return err
	}
	if err := shows(ctx, sh, p.ready); err != nil {
		return err
	}
	res, err := sh.Wait(ctx)
	if err != nil {
		return err
	}
	return rests(ctx, sh, res, "at its prompt", p.ready, startTime)
}

// works gives the program a task that takes workTime, after which text is on its screen and it wants attention.
func works(ctx context.Context, w conformance.World, p program, task, text string) error {
	sh, err := start(ctx, w, p)
	if err != nil {
		return err
	}
	err = write(ctx, sh, task)
	if err == nil {
		err = enter(ctx, sh, "after "+task, workTime, text)
	}
	return errors.Join(err, end(ctx, sh))
}

// asked gives the program a task for which it has to ask.
func asked(ctx context.Context, w conformance.World, p program) (*agent.Shell, error) {
	sh, err := start(ctx, w, p)
	if err != nil {
		return nil, err
	}
	err = write(ctx, sh, "script:run")
	if err == nil {
		err = enter(ctx, sh, "after script:run", 0, p.asks)
	}
	if err != nil {
		return nil, errors.Join(err, end(ctx, sh))
	}
	return sh, nil
}

// write types a task. Enter comes by itself, since it would be text in what the program takes for a paste.
func write(ctx context.Context, sh *agent.Shell, task string) error {
	res, err := sh.Do(ctx, agent.Call{Text: task, Raw: true, Timeout: callTime})
	if err != nil {
		return err
	}
	if err := rests(ctx, sh, res, "with "+task+" typed", "", restTime); err != nil {
		return err
	}
	// A program that has only just started may be slow to read it.
	ctx, cancel := context.WithTimeoutCause(ctx, callTime, fmt.Errorf("%s is not on the screen", task))
	defer cancel()
	return shows(ctx, sh, task)
}

// shows returns when text is on the screen.
func shows(ctx context.Context, sh *agent.Shell, text string) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		screen, err := sh.Screen(ctx)
		if err != nil {
			return err
		}
		if strings.Contains(screen.Text, text) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; its screen: %q", context.Cause(ctx), tail(screen.Text))
		}
	}
}

// enter presses Enter. The call must come back when text is on the screen, and it takes at least that long.
func enter(ctx context.Context, sh *agent.Shell, when string, atLeast time.Duration, text string) error {
	began := time.Now()
	res, err := sh.Do(ctx, agent.Call{Keys: []string{"Enter"}, Timeout: callTime})
	if err != nil {
		return err
	}
	if took := time.Since(began); took < atLeast {
		return fmt.Errorf("%s: came back after %v, as %s, in the middle of the work%s", when, took.Round(time.Millisecond), said(res), shown(ctx, sh))
	}
	return rests(ctx, sh, res, when, text, restTime)
}

// rests checks that a call came back because the program has come to rest, with that text on its screen, and not later than
// within after its last output.
func rests(ctx context.Context, sh *agent.Shell, res agent.Result, when, text string, within time.Duration) error {
	screen, err := sh.Screen(ctx)
	if err != nil {
		return err
	}
	quiet := time.Duration(res.QuietMS) * time.Millisecond
	var wrong string
	switch {
	case res.Ended != agent.EndedAttention || res.Phase != agent.PhaseRunning || !res.Listens || res.Attention != "likely":
		wrong = "want attention of a running program that listens"
	case quiet > within:
		wrong = fmt.Sprintf("only when it had been quiet for %v", quiet)
	case !strings.Contains(screen.Text, text):
		wrong = fmt.Sprintf("without %q on its screen", text)
	default:
		return nil
	}
	return fmt.Errorf("%s: got %s, %s; its screen: %q", when, said(res), wrong, tail(screen.Text))
}

// said is what matters of a Result.
func said(res agent.Result) string {
	s := fmt.Sprintf("%s, phase %s", res.Ended, res.Phase)
	if res.Error != nil {
		return s + ": " + res.Error.Message
	}
	return s + fmt.Sprintf(", listens %t, attention %s, quiet for %d ms, basis %v", res.Listens, res.Attention, res.QuietMS, res.Basis)
}

// shown adds the screen to an error.
func shown(ctx context.Context, sh *agent.Shell) string {
	screen, err := sh.Screen(ctx)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("; its screen: %q", tail(screen.Text))
}

// tail is the end of what a screen shows, without the empty space.
func tail(screen string) string {
	var lines []string
	for line := range strings.Lines(screen) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// end ends the session and the program with it.
func end(ctx context.Context, sh *agent.Shell) error {
	defer sh.Close()
	return sh.End(ctx)
}
