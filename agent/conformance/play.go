package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// play is one running case.
type play struct {
	Case
	tier   Tier
	slow   float64
	client *agent.Client

	mu     sync.Mutex
	shells map[string]*agent.Shell // guarded by mu; by Step.Shell
	out    *Outcome                // guarded by mu while steps run
}

// prepare writes the files of the case and runs its setup.
func (p *play) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setupTime, errors.New("setup did not end"))
	defer cancel()
	for _, f := range p.Files {
		path := text.Quote(f.Path)
		script := `mkdir -p "$(dirname ` + path + `)" && cat >` + path
		if f.Mode != "" {
			script += " && chmod " + f.Mode + " " + path
		}
		if exit, err := p.client.Exec(ctx, agent.Cmd{Command: script,
			Stdin: strings.NewReader(f.Text)}); err != nil {
			return err
		} else if exit.Code != 0 {
			return fmt.Errorf("%s: exit code %d", f.Path, exit.Code)
		}
	}
	if p.Setup == "" {
		return nil
	}
	_, err := quiet(ctx, p.client, p.Setup)
	return err
}

// clean ends the sessions of the case and runs its cleanup.
func (p *play) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	for _, sh := range p.shells {
		// The session may have ended already. If it cannot be ended, a later case fails.
		_ = sh.End(ctx)
		sh.Close()
	}
	if p.Cleanup == "" {
		return
	}
	if _, err := quiet(ctx, p.client, p.Cleanup); err != nil && p.out.Pass {
		p.out.Pass, p.out.Reason = false, "clean up: "+err.Error()
	}
}

// shell returns the session of that name. The first use starts it.
func (p *play) shell(ctx context.Context, name string) (*agent.Shell, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sh := p.shells[name]; sh != nil {
		return sh, nil
	}
	sh, err := p.client.Attach(
		ctx,
		agent.ShellOptions{Session: wire.NewSession, Fresh: true, Start: agent.Start{
			Argv: p.Start.Argv, Env: p.Start.Env, Cols: p.Start.Cols, Rows: p.Start.Rows,
			Without: p.tier.Without()}},
	)
	if err == nil {
		p.shells[name] = sh
	}
	return sh, err
}

// steps makes the steps in order, up to the first that fails.
func (p *play) steps(ctx context.Context, steps []Step, within string) error {
	for i, s := range steps {
		name := fmt.Sprintf("%s%d %s", within, i+1, s.Do)
		for n := range max(s.Times, 1) {
			if s.Times > 1 {
				name = fmt.Sprintf("%s%d %s, time %d", within, i+1, s.Do, n+1)
			}
			if err := p.step(ctx, s, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// grace is the time after its own timeout that a call may take before the runner cancels it.
const grace = 15 * time.Second

func (p *play) step(ctx context.Context, s Step, name string) error {
	call, cancel := context.WithTimeoutCause(
		ctx,
		s.timeout()+grace,
		errors.New("the call did not return at its own timeout"),
	)
	defer cancel()
	beside := make(chan error, 1)
	if len(s.Meanwhile) > 0 {
		if s.Do != Exec { // AfterMS begins at the call, not at the start of the session
			if _, err := p.shell(call, s.Shell); err != nil {
				return fmt.Errorf("step %s: %w", name, err)
			}
		}
		go func() {
			timer := time.NewTimer(time.Duration(s.AfterMS) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
				beside <- p.steps(call, s.Meanwhile, name+", meanwhile ")
			case <-call.Done():
				beside <- context.Cause(call)
			}
		}()
	} else {
		beside <- nil
	}
	a, err := p.call(call, s)
	if meanwhile := <-beside; meanwhile != nil {
		return meanwhile
	}
	if err != nil {
		return fmt.Errorf("step %s: %w", name, err)
	}
	got, want, failed := s.want(p.tier).check(a, p.slow)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(a.result.Basis) > 0 {
		p.out.Basis = a.result.Basis
	}
	if len(want) > 0 {
		p.out.Got, p.out.Want = got, want
	}
	if len(failed) > 0 {
		return fmt.Errorf(
			"step %s: %s: got %v, want %v%s",
			name,
			failed[0],
			plain(got[failed[0]]),
			plain(want[failed[0]]),
			seen(a, failed[0]),
		)
	}
	return nil
}

// seen returns details for the error of a failed step.
func seen(a answer, failed string) string {
	var b strings.Builder
	if failed != "output" && a.result.Output != "" {
		fmt.Fprintf(&b, "; output %q", short(a.result.Output))
	}
	if failed != "error" && a.result.Error != nil {
		fmt.Fprintf(&b, "; error %s: %s", a.result.Error.Code, a.result.Error.Message)
	}
	if failed == "ended" && a.result.Prompt != "" {
		fmt.Fprintf(&b, "; prompt %q", short(a.result.Prompt))
	}
	return b.String()
}

// call makes the call of a step.
func (p *play) call(ctx context.Context, s Step) (a answer, err error) {
	if s.Do == Exec {
		return p.exec(ctx, s)
	}
	sh, err := p.shell(ctx, s.Shell)
	if err != nil {
		return a, err
	}
	timed, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	began := time.Now()
	switch s.Do {
	case Run:
		call := agent.Call{Command: s.Text, Timeout: s.timeout(), Kill: s.Kill, Adopt: s.Adopt,
			MaxOutput: -1}
		if !p.tier.Marks() {
			call = agent.Call{Text: s.Text, Timeout: s.timeout(), MaxOutput: -1}
			a.result, err = sh.Do(ctx, call)
			break
		}
		var out bytes.Buffer
		call.Stdout = &out
		a.result, err = sh.Do(ctx, call)
		a.bytes = out.String()
	case Type:
		a.result, err = sh.Do(ctx, agent.Call{Text: s.Text, Timeout: s.timeout()})
	case Raw:
		a.result, err = sh.Do(ctx, agent.Call{Text: s.Text, Raw: true, Timeout: s.timeout()})
	case Keys:
		a.result, err = sh.Do(ctx, agent.Call{Keys: s.Keys, Timeout: s.timeout()})
	case Wait:
		a.result, err = sh.Wait(timed, s.For...)
	case Interrupt:
		a.result, err = sh.Interrupt(timed)
	case Screen:
		var shown agent.Screen
		shown, err = sh.Screen(timed)
		a.result.Output, a.result.Basis = shown.Text, []agent.Basis{agent.BasisScreen}
	case End:
		err = sh.End(timed)
		sh.Close()
		p.mu.Lock()
		delete(p.shells, s.Shell)
		p.mu.Unlock()
	default:
		err = fmt.Errorf("unknown step %q", s.Do)
	}
	a.elapsed = time.Since(began)
	// cases can expect it: the result has the reason
	if a.result.Ended == agent.EndedLost {
		err = nil
	}
	return a, err
}

// exec runs a command without a terminal.
func (p *play) exec(ctx context.Context, s Step) (a answer, err error) {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		s.timeout(),
		errors.New("the command did not end"),
	)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := agent.Cmd{Command: s.Text, Stdout: &stdout, Stderr: &stderr}
	if s.Stdin != "" {
		cmd.Stdin = strings.NewReader(s.Stdin)
	}
	began := time.Now()
	exit, err := p.client.Exec(ctx, cmd)
	a.elapsed = time.Since(began)
	if err != nil {
		return a, err
	}
	a.result = agent.Result{
		Ended:    agent.EndedDone,
		ExitCode: &exit.Code,
		Output:   stdout.String(),
		Basis:    []agent.Basis{agent.BasisExit},
	}
	if exit.Signal != "" {
		a.result.Signal = &exit.Signal
	}
	a.stderr = stderr.String()
	return a, nil
}

// plain dereferences pointers for the report.
func plain(v any) any {
	switch v := v.(type) {
	case *int:
		if v == nil {
			return "none"
		}
		return *v
	case *string:
		if v == nil {
			return "none"
		}
		return *v
	case string:
		return fmt.Sprintf("%q", v)
	case *agent.Receipt:
		if v == nil {
			return "none"
		}
		return fmt.Sprintf("%+v", *v)
	}
	return v
}
