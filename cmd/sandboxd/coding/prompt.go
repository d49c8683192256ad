package coding

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// promptPatience bounds the start of the program, and the time until it shows the prompt.
	promptPatience = 2 * time.Minute
	// After Enter the program works, and the call would wait for it.
	enterWithin = time.Second
)

// promptShell is the session of a program that gets a prompt. *agent.Shell implements it.
type promptShell interface {
	Wait(ctx context.Context, phases ...agent.Phase) (agent.Result, error)
	Screen(ctx context.Context) (agent.Screen, error)
	Do(ctx context.Context, call agent.Call) (agent.Result, error)
	Give(ctx context.Context) error
}

// enterPrompt types a prompt when the program is ready for it, and presses Enter. A prompt of
// several lines is a paste, as from a terminal: the program must have switched bracketed paste mode
// on. Nothing is typed if it has not, or if it asks something else.
func enterPrompt(ctx context.Context, sh promptShell, a *agents.Agent, prompt string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, promptPatience,
		fmt.Errorf("%s does not become ready for it within %v", a.Title, promptPatience))
	defer cancel()
	// Enter comes after the text: in one piece, programs treat it as part of a paste.
	typed, ready := prompt, untilReady
	if strings.ContainsFunc(prompt, unicode.IsControl) {
		typed, ready = pasteBegin+strings.ReplaceAll(prompt, "\n", "\r")+pasteEnd, untilPastes
	}
	err := whenIdle(ctx, sh, agent.Call{Text: typed, Raw: true},
		func() error { return ready(ctx, sh, a) })
	if err != nil {
		return err
	}
	err = whenIdle(ctx, sh, agent.Call{Keys: []string{"Enter"}, Timeout: enterWithin},
		func() error { return untilShown(ctx, sh, a, prompt) })
	if err != nil {
		return err
	}
	_ = sh.Give(ctx) // the caller can type at once, and not only after the Shell is closed
	return nil
}

// whenIdle makes a call when before has returned and the program is idle.
func whenIdle(ctx context.Context, sh promptShell, call agent.Call, before func() error) error {
	call.Answer = true
	for {
		if err := before(); err != nil {
			return err
		}
		err := accepted(sh.Do(ctx, call))
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.CodeNotWaiting {
			return caused(ctx, err)
		}
		if err := pause(ctx); err != nil { // it works again, and nothing was typed
			return err
		}
	}
}

// untilReady waits until the program is idle and takes a prompt.
func untilReady(ctx context.Context, sh promptShell, a *agents.Agent) error {
	var screen agent.Screen
	for {
		res, err := sh.Wait(ctx)
		if err == nil {
			var now agent.Screen
			if now, err = sh.Screen(ctx); err == nil {
				screen = now
			}
		}
		asks := res.Phase == agent.PhaseWaiting || res.Attention == AttentionLikely
		switch {
		case err != nil:
		case res.Phase == agent.PhaseDead:
			return &wire.Error{Code: wire.CodeUnavailable, Message: a.Title + " ended: " +
				text.Line(lastText(screen.Text), 200)}
		case asks && a.IsReady(screen.Text):
			return nil
		default:
			err = pause(ctx)
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w; its screen ends: %s", context.Cause(ctx),
				text.Line(lastText(screen.Text), 200))
		}
		if err != nil {
			return err
		}
	}
}

// The brackets around a paste in bracketed paste mode. Terminals end its lines with a carriage
// return.
const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// pasteWithin is how long a program that is ready may take to switch bracketed paste mode on.
const pasteWithin = 5 * time.Second

// untilPastes is untilReady for a paste.
func untilPastes(ctx context.Context, sh promptShell, a *agents.Agent) error {
	var first time.Time
	for {
		began := time.Now()
		if err := untilReady(ctx, sh, a); err != nil {
			return err
		}
		if time.Since(began) > pasteWithin/2 {
			first = time.Time{} // it was not ready yet
		}
		screen, err := sh.Screen(ctx)
		if err == nil && screen.BracketedPaste {
			return nil
		}
		if first.IsZero() {
			first = time.Now()
		}
		if err == nil && time.Since(first) > pasteWithin {
			return &wire.Error{Code: wire.CodeUnavailable,
				Message: a.Title + " does not take a prompt of several lines: it has not switched " +
					"bracketed paste mode on",
				Hint: "write one line, or name a file in it that --include copies"}
		}
		if err == nil {
			err = pause(ctx)
		}
		if err != nil {
			return caused(ctx, err)
		}
	}
}

// untilShown waits until the input line is not empty any more, or the end of the prompt is on the
// screen, which may break its lines. Programs show a long text as a placeholder.
func untilShown(ctx context.Context, sh promptShell, a *agents.Agent, prompt string) error {
	want := []rune(strings.Join(strings.Fields(prompt), ""))
	want = want[max(0, len(want)-10):]
	for {
		screen, err := sh.Screen(ctx)
		shown := strings.Join(strings.Fields(screen.Text), "")
		switch {
		case err != nil:
		case a.Ready != "" && !a.IsReady(screen.Text), strings.Contains(shown, string(want)):
			return nil
		default:
			err = pause(ctx)
		}
		if err != nil && ctx.Err() != nil {
			err = &wire.Error{Code: wire.CodeUnavailable,
				Message: "it was typed and is not on the screen",
				Hint:    "attach to see, and press Enter"}
		}
		if err != nil {
			return err
		}
	}
}

// accepted returns an error for a call that was rejected or lost.
func accepted(res agent.Result, err error) error {
	if err == nil && res.Error != nil {
		err = res.Error
	}
	return err
}

// lastText returns the last lines of a screen that have text, on one line.
func lastText(screen string) string {
	var lines []string
	for line := range strings.Lines(screen) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-4):], " / ")
}
