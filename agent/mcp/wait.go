package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// waitIn are the arguments of wait.
type waitIn struct {
	Until   []string `json:"until,omitempty" jsonschema:"what to wait for: prompt, waiting, continuation, opaque, dead; or keyboard alone, which is until no person holds it; or pattern alone. Default: until the program no longer works by itself"`
	Pattern string   `json:"pattern,omitempty" jsonschema:"regular expression (RE2) that the program is to print, with until=[pattern]; lines end with \\r\\n"`
	From    *uint64  `json:"from,omitempty" jsonschema:"offset of the log at which the pattern begins to match, such as to of an earlier answer; default where the newest command began"`
	where
	bounds
}

// read is what a wait waits for, but for the pattern itself.
func (in waitIn) read() (w waitFor, err error) {
	if in.Pattern != "" || in.From != nil || slices.Contains(in.Until, "pattern") {
		if len(in.Until) > 1 || len(in.Until) == 1 && in.Until[0] != "pattern" || in.Pattern == "" {
			return w, &agent.Error{Code: agent.CodeUsage, Message: "wait: a pattern stands alone", Hint: `until=["pattern"] and pattern, a regular expression`}
		}
		w.pattern = true
		return w, nil
	}
	for _, until := range in.Until {
		switch p := agent.Phase(until); p {
		case agent.PhasePrompt, agent.PhaseWaiting, agent.PhaseContinuation, agent.PhaseOpaque, agent.PhaseDead:
			w.phases = append(w.phases, p)
		case "keyboard":
			w.keyboard = true
		default:
			return w, &agent.Error{Code: agent.CodeUsage, Message: fmt.Sprintf("wait: nobody can wait for %q", until), Hint: "until takes prompt, waiting, continuation, opaque, dead, or keyboard or pattern alone"}
		}
	}
	if w.keyboard && len(w.phases) > 0 {
		return w, &agent.Error{Code: agent.CodeUsage, Message: "wait: keyboard stands alone", Hint: `until=["keyboard"]`}
	}
	return w, nil
}

func wait(ctx context.Context, c *call, in waitIn) (answer, error) {
	w, err := in.read()
	if err != nil {
		return answer{}, err
	}
	if err := c.lives(ctx, in.where); err != nil {
		return answer{}, err
	}
	if w.pattern {
		return c.waitPattern(ctx, in)
	}
	return c.do(ctx, sessionCall{where: in.where, bounds: in.bounds, wait: &w})
}

// waitPattern has the gateway wait: it has the whole log, and the client's shell what was printed
// since it was attached.
func (c *call) waitPattern(ctx context.Context, in waitIn) (answer, error) {
	t, err := c.server.places.target(ctx, in.where)
	if err != nil {
		return answer{}, err
	}
	timeout, output, err := in.bounds.read()
	if err != nil {
		return answer{}, err
	}
	show, err := wire.ParseShowScreen(in.Screen)
	if err != nil {
		return answer{}, err
	}
	// In parentheses no pattern is the name of a state.
	words := []string{"wait", "--json", "--timeout=" + timeout.String(), "--screen=" + string(show), "--for=(" + in.Pattern + ")"}
	if output != 0 {
		words = append(words, fmt.Sprintf("--max-output=%d", output))
	}
	if in.From != nil {
		words = append(words, fmt.Sprintf("--from=%d", *in.From))
	}
	done := c.progress(ctx)
	defer done()
	var res agent.Result
	out, err := c.server.gateway.Command(ctx, nil, append(words, "--", t.String())...)
	switch unread := json.Unmarshal(out, &res); {
	case unread == nil && res.Ended != "": // err is about the exit code, which says what the Result does
		return resultAnswer(res), nil
	case err != nil:
		return answer{}, err
	default:
		return answer{}, fmt.Errorf("wait: the gateway answers with no Result: %.100q", out)
	}
}
