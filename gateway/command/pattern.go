package command

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent/expect"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// words matches values of --for that are names of states and not a regular expression.
var words = regexp.MustCompile(`^[a-z,]*$`)

// readFor parses the values of wait --for. It sets states in r, or returns the regular expression.
func readFor(values []string, r *wire.Request) (pattern *regexp.Regexp, err error) {
	for _, value := range values {
		if !words.MatchString(value) {
			if pattern != nil {
				return nil, usage(
					"--for: more than one regular expression; write A|B to match either")
			}
			if pattern, err = regexp.Compile(value); err != nil {
				return nil, usage("--for %q: %v", value, err)
			}
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			switch phase := wire.Phase(name); phase {
			case "keyboard":
				r.Keyboard = true
			case wire.PhasePrompt, wire.PhaseRunning, wire.PhaseWaiting, wire.PhaseContinuation,
				wire.PhaseOpaque, wire.PhaseDead:
				r.For = append(r.For, phase)
			default:
				e := usage(
					"--for %q: must be prompt, running, waiting, continuation, opaque, dead or "+
						"keyboard", name)
				e.Hint = "to match a word in the output, write '(" + text.Line(name, 40) + ")'"
				return nil, e
			}
		}
	}
	if r.Keyboard && len(r.For) > 0 || pattern != nil && len(values) > 1 {
		return nil, usage("--for: keyboard or a regular expression cannot be combined with states")
	}
	return pattern, nil
}

// patternWait is the pattern that wait matches, and the offset at which it starts.
type patternWait struct {
	pattern *regexp.Regexp
	from    uint64
	given   bool // from is set; otherwise matching starts at the latest command
}

// waitPattern follows a session until the pattern matches, or until request r, a wait, returns.
func (env *Env) waitPattern(ctx context.Context, t wire.Target, r wire.Request, f *callFlags,
	w patternWait) error {
	party, err := env.Hub.Sessions.Shared(ctx, env.Principal, t, attach.JoinOptions{Create: true})
	if err != nil {
		return env.refused(t, f, err)
	}
	log, began := party.Live(), time.Now()
	if !w.given {
		var known bool
		if w.from, known = log.LastBegun(); !known {
			w.from = log.State().Offset
		}
	}
	if log.State().Phase != wire.PhaseRunning { // a background process may still print it
		r.For = []wire.Phase{wire.PhaseDead}
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var reply wire.Reply
	over, read, window := make(chan struct{}), make(chan struct{}), expect.NewWindow(0)
	go func() { // ends when waiting does
		reply, err = env.request(waiting, party, r)
		close(over)
		stop()
	}()
	window.Skip(w.from)
	go func() { // ends when waiting does
		defer close(read)
		at := follow(waiting, log, window, w.from, 0)
		if <-over; reply.Result != nil {
			follow(ctx, log, window, at, reply.Result.To)
		}
		window.Close(io.EOF)
	}()
	m, missing := window.Expect(ctx, w.pattern)
	stop()
	<-read
	switch {
	case missing == nil:
		return env.answer(ctx, t, party, r, f, matched(t, log, m, r.MaxOutput, time.Since(began)))
	case reply.Result == nil:
		return env.refused(t, f, errors.Join(err, context.Cause(ctx)))
	}
	if err := env.answer(ctx, t, party, r, f, reply.Result); err != nil {
		return err
	}
	return exitError(exitNotPrinted)
}

// exitNotPrinted is the exit code if the program succeeded without printing the pattern.
const exitNotPrinted = 1

// follow writes the log from offset at to window, until ctx ends or, unless it is 0, end is
// reached. It returns the offset after the last byte.
func follow(ctx context.Context, log *live.Session, window *expect.Window, at, end uint64) uint64 {
	buf := make([]byte, 32<<10)
	for end == 0 || at < end {
		n, err := log.ReadAt(ctx, at, buf)
		var lagged *live.LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			at = lagged.To
		case err != nil:
			return at
		default:
			window.Write(at, buf[:n])
			at += uint64(n)
		}
	}
	return at
}

// matched returns the Result of a wait whose pattern matched.
func matched(t wire.Target, log *live.Session, m expect.Match, maxOutput int,
	took time.Duration) *wire.Result {
	if maxOutput == 0 {
		maxOutput = 32 << 10
	}
	s := log.State()
	r := &wire.Result{Sandbox: t.Sandbox, Session: log.Name(), Ended: wire.Matched, Phase: s.Phase,
		Want: s.Want, Prompt: s.Prompt,
		Listens: s.Listens, Attention: "no", QuietMS: s.QuietMS, From: m.From, To: m.To, Cwd: s.Cwd,
		Foreground: s.Foreground,
		Basis:      append([]wire.Basis{}, s.Basis...),
		Disputed:   append([]wire.Basis{}, s.Disputed...),
		Notes:      []string{}, Denied: []wire.Denial{},
		ElapsedMS: took.Milliseconds(), Keyboard: log.Keyboard()}
	if s.Attention != "" {
		r.Attention = s.Attention
	}
	r.Output, r.Truncated = text.Render([]byte(m.Text), maxOutput)
	if r.Truncated {
		r.Notes = append(r.Notes, wire.NoteTruncated)
	}
	return r
}
