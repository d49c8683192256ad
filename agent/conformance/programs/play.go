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
	// workTime is how long model.mjs replies, thinks, and runs a tool.
	workTime = 6 * time.Second

	// restTime is how long a program may be quiet before attention must be reported. The documented
	// time is a second; the rest allows for loaded machines.
	restTime = 3 * time.Second

	// callTime bounds one call: workTime and the program's own work.
	callTime = 45 * time.Second

	// startTime bounds the start of a program. lookEvery is the interval of checks of its screen.
	startTime = 2 * time.Minute
	lookEvery = 100 * time.Millisecond
)

func idle(ctx context.Context, w conformance.World, p program) error {
	sh, err := start(ctx, w, p)
	if err != nil {
		return err
	}
	// Typing without Enter measures how soon attention is reported. The start cannot, because no
	// call waits for it.
	return errors.Join(write(ctx, w, sh, "hello"), end(ctx, sh))
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
	// All programs preselect the answer that allows the command.
	if err := enter(ctx, w, sh, "after leave to run the tool", workTime, "finished."); err != nil {
		return errors.Join(err, end(ctx, sh))
	}
	return end(ctx, sh)
}

// start runs the program in a new session until it accepts the first task. The session must report
// that.
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
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		startTime,
		errors.New("the program did not start"),
	)
	defer cancel()
	call := agent.Call{Command: p.command, Timeout: callTime}
	if !w.Tier.Marks() {
		call = agent.Call{Text: p.command, Timeout: callTime}
	}
	// A program may be idle during its start. The check is that it is reported as idle when it is
	// ready.
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

// works gives the program a task that takes workTime. Then text must be on its screen, and
// attention must be likely.
func works(ctx context.Context, w conformance.World, p program, task, text string) error {
	sh, err := start(ctx, w, p)
	if err != nil {
		return err
	}
	err = write(ctx, w, sh, task)
	if err == nil {
		err = enter(ctx, w, sh, "after "+task, workTime, text)
	}
	return errors.Join(err, end(ctx, sh))
}

// asked gives the program a task for which it must ask for permission.
func asked(ctx context.Context, w conformance.World, p program) (*agent.Shell, error) {
	sh, err := start(ctx, w, p)
	if err != nil {
		return nil, err
	}
	err = write(ctx, w, sh, "script:run")
	if err == nil {
		err = enter(ctx, w, sh, "after script:run", 0, p.asks)
	}
	if err != nil {
		return nil, errors.Join(err, end(ctx, sh))
	}
	return sh, nil
}

// write types a task without Enter: programs would treat the whole as a paste, with Enter as text.
func write(ctx context.Context, w conformance.World, sh *agent.Shell, task string) error {
	res, err := sh.Do(ctx, agent.Call{Text: task, Raw: true, Timeout: callTime})
	if err != nil {
		return err
	}
	if err := rests(ctx, sh, res, "with "+task+" typed", "", w.Within(restTime)); err != nil {
		return err
	}
	// A program that has just started may read it slowly.
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		callTime,
		fmt.Errorf("%s is not on the screen", task),
	)
	defer cancel()
	return shows(ctx, sh, task)
}

// shows waits until text is on the screen.
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

// enter presses Enter. The call must return when text is on the screen, and not before atLeast.
func enter(
	ctx context.Context,
	w conformance.World,
	sh *agent.Shell,
	when string,
	atLeast time.Duration,
	text string,
) error {
	began := time.Now()
	res, err := sh.Do(ctx, agent.Call{Keys: []string{"Enter"}, Timeout: callTime})
	if err != nil {
		return err
	}
	if took := time.Since(began); took < atLeast {
		return fmt.Errorf(
			"%s: returned after %v, as %s, in the middle of the work%s",
			when,
			took.Round(time.Millisecond),
			said(res),
			shown(ctx, sh),
		)
	}
	return rests(ctx, sh, res, when, text, w.Within(restTime))
}

// rests checks that a call returned because the program is idle, with text on its screen, and at
// most within after its last output.
func rests(
	ctx context.Context,
	sh *agent.Shell,
	res agent.Result,
	when, text string,
	within time.Duration,
) error {
	screen, err := sh.Screen(ctx)
	if err != nil {
		return err
	}
	quiet := time.Duration(res.QuietMS) * time.Millisecond
	var wrong string
	switch {
	case res.Ended != agent.EndedAttention || res.Phase != agent.PhaseRunning || !res.Listens ||
		res.Attention != "likely":
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

// said formats the main fields of a Result.
func said(res agent.Result) string {
	s := fmt.Sprintf("%s, phase %s", res.Ended, res.Phase)
	if res.Error != nil {
		return s + ": " + res.Error.Message
	}
	return s + fmt.Sprintf(
		", listens %t, attention %s, quiet for %d ms, basis %v",
		res.Listens,
		res.Attention,
		res.QuietMS,
		res.Basis,
	)
}

// shown returns the screen as details of an error.
func shown(ctx context.Context, sh *agent.Shell) string {
	screen, err := sh.Screen(ctx)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("; its screen: %q", tail(screen.Text))
}

// tail returns the last lines of a screen that are not empty.
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
