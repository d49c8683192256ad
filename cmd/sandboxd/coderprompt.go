package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// promptPatience bounds the start of the program, and the time until it shows the prompt.
	promptPatience = 2 * time.Minute
	promptPoll     = 100 * time.Millisecond
	// After Enter the program works, and the call would wait for it.
	enterWithin = time.Second
)

// enterPrompt types a prompt when the program is ready for it, and presses Enter. Nothing is typed
// if the program asks something else.
func enterPrompt(ctx context.Context, sh *agent.Shell, a *agents.Agent, prompt string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, promptPatience,
		fmt.Errorf("%s does not become ready for it within %v", a.Title, promptPatience))
	defer cancel()
	if err := untilReady(ctx, sh, a); err != nil {
		return err
	}
	// Enter comes after the text: in one piece, programs treat it as part of a paste.
	if err := accepted(sh.Do(ctx, agent.Call{Text: prompt, Raw: true, Answer: true})); err != nil {
		return err
	}
	if err := untilShown(ctx, sh, prompt); err != nil {
		return err
	}
	if err := accepted(sh.Do(ctx, agent.Call{Keys: []string{"Enter"},
		Timeout: enterWithin})); err != nil {
		return err
	}
	return caused(ctx, sh.Give(ctx)) // the caller can type at once
}

// untilReady waits until the program is idle and takes a prompt.
func untilReady(ctx context.Context, sh *agent.Shell, a *agents.Agent) error {
	for {
		res, err := sh.Wait(ctx)
		if err != nil {
			return caused(ctx, err)
		}
		screen, err := sh.Screen(ctx)
		if err != nil {
			return caused(ctx, err)
		}
		asks := res.Phase == agent.PhaseWaiting || res.Attention == "likely"
		switch {
		case res.Phase == agent.PhaseDead:
			return &wire.Error{Code: wire.CodeUnavailable, Message: a.Title + " ended: " +
				text.Line(lastText(screen.Text), 200)}
		case asks && a.IsReady(screen.Text):
			return nil
		}
		if err := pause(ctx, promptPoll); err != nil {
			return fmt.Errorf("%w; its screen ends: %s", err, text.Line(lastText(screen.Text), 200))
		}
	}
}

// untilShown waits until the end of the prompt is on the screen, which may break its lines.
func untilShown(ctx context.Context, sh *agent.Shell, prompt string) error {
	want := []rune(strings.Join(strings.Fields(prompt), ""))
	want = want[max(0, len(want)-10):]
	for {
		screen, err := sh.Screen(ctx)
		if err != nil {
			return caused(ctx, err)
		}
		if strings.Contains(strings.Join(strings.Fields(screen.Text), ""), string(want)) {
			return nil
		}
		if pause(ctx, promptPoll) != nil {
			return &wire.Error{Code: wire.CodeUnavailable,
				Message: "it was typed and is not on the screen",
				Hint:    "attach to see, and press Enter"}
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

// caused returns why ctx has ended, or else err.
func caused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// pause waits for d, or returns why ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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

// attach runs ssh(1) on this terminal until the user detaches or the session ends.
func (k *coder) attach(ctx context.Context, target string) error {
	words, err := sshWords(ctx, k.cli, nil, target)
	if err != nil {
		return err
	}
	ssh := exec.CommandContext(ctx, words[0], words[1:]...)
	ssh.Stdin, ssh.Stdout, ssh.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = ssh.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil // the exit code of the program
	}
	return err
}

// sshWords returns the command line of ssh(1) that logs in as target, with more options.
func sshWords(ctx context.Context, c *cli, options []string, target string) ([]string, error) {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return nil, &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "ssh: not found on this machine",
			Hint:    "install openssh-client",
		}
	}
	address, o, err := c.reach(ctx, true)
	if err != nil {
		return nil, err
	}
	host, login := loginOptions(address, o, "-p")
	return slices.Concat([]string{path}, login, options, []string{target + "@" + host}), nil
}
