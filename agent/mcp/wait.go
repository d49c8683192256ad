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
	Until   []string `json:"until,omitempty" jsonschema:"states to wait for: prompt, waiting, continuation, opaque, dead; or only keyboard, until no person holds it; or only pattern. Default: any state but running"`
	Pattern string   `json:"pattern,omitempty" jsonschema:"regular expression (RE2) to find in the output, with until=[pattern]; lines end with \\r\\n"`
	From    *uint64  `json:"from,omitempty" jsonschema:"offset in the log at which to begin the search, such as to of an earlier result; default the begin of the newest command"`
	where
	bounds
}

// read returns what to wait for, without the pattern itself.
func (in waitIn) read() (w waitFor, err error) {
	if in.Pattern != "" || in.From != nil || slices.Contains(in.Until, "pattern") {
		if len(in.Until) > 1 || len(in.Until) == 1 && in.Until[0] != "pattern" || in.Pattern == "" {
			return w, &agent.Error{
				Code:    agent.CodeUsage,
				Message: "wait: pattern cannot be combined with states",
				Hint:    `set until=["pattern"], and pattern to a regular expression`,
			}
		}
		w.pattern = true
		return w, nil
	}
	for _, until := range in.Until {
		switch p := agent.Phase(until); p {
		case agent.PhasePrompt,
			agent.PhaseWaiting,
			agent.PhaseContinuation,
			agent.PhaseOpaque,
			agent.PhaseDead:
			w.phases = append(w.phases, p)
		case "keyboard":
			w.keyboard = true
		default:
			return w, &agent.Error{
				Code:    agent.CodeUsage,
				Message: fmt.Sprintf("wait: unknown state %q", until),
				Hint: "set until to prompt, waiting, continuation, opaque or dead, or only to " +
					"keyboard or only to pattern",
			}
		}
	}
	if w.keyboard && len(w.phases) > 0 {
		return w, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "wait: keyboard cannot be combined with states",
			Hint:    `set until=["keyboard"] alone`,
		}
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
	// With parentheses, a pattern is never the name of a state.
	words := []string{
		"wait",
		"--json",
		"--timeout=" + timeout.String(),
		"--screen=" + string(show),
		"--for=(" + in.Pattern + ")",
	}
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
	// err only repeats the Result's exit code
	case unread == nil && res.Ended != "":
		return resultAnswer(res), nil
	case err != nil:
		return answer{}, err
	default:
		return answer{}, fmt.Errorf("wait: the gateway returned no Result: %.100q", out)
	}
}
