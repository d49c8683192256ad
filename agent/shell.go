package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent/expect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Shell is an attachment to one session. Its methods are safe for concurrent use. A session runs
// one command at a time: while a command runs, another Run is rejected with not_prompt.
type Shell struct {
	client *Client
	window *expect.Window

	attaching chan struct{} // semaphore: one goroutine reattaches at a time

	life context.Context //nolint:containedctx // ends with Close; its cause is errShellClosed
	end  context.CancelCauseFunc

	mu       sync.Mutex
	stream   *wire.Client  // guarded by mu; the newest, possibly broken
	attached wire.Attached // guarded by mu; reply to the newest attach
	next     uint64        // guarded by mu; log offset of the next byte
	seq      uint64        // guarded by mu; number of the newest event
	state    wire.State    // guarded by mu
	keyboard string        // guarded by mu
	taken    bool          // guarded by mu; set by Take, until Give
	taps     map[*tap]bool // guarded by mu
	changed  chan struct{} // guarded by mu; closed and replaced on every event
}

var errShellClosed = errors.New("shell is closed")

// Shell attaches to a session by name and starts it if it does not exist. "" means the session of
// the client's URI, or main. ctx bounds the call, not the attachment. The caller closes the Shell.
func (c *Client) Shell(ctx context.Context, session string) (*Shell, error) {
	return c.Attach(ctx, ShellOptions{Session: session})
}

// Session returns the name of the session, which may have been generated.
func (s *Shell) Session() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Session
}

// Resume returns the secret for ShellOptions.Resume. Attach with it resumes this attachment, on any
// connection of the same principal, within 30 s after this connection is lost. The keyboard is
// kept, and a repeated Call.Op returns the result of the first call.
func (s *Shell) Resume() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Resume
}

// Incarnation returns the random ID of the session's current shell, as of the last attach or call.
// A new shell has a new ID, also after a restart of the sandbox. See [Call.Incarnation]. It is
// empty if the sandbox's guest is of an older version.
func (s *Shell) Incarnation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Incarnation
}

// State returns the last state that the session reported, without a round trip. Wait asks the
// session.
func (s *Shell) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newState(s.state)
}

// Close detaches from the session and gives the keyboard back. The session and its program
// continue.
func (s *Shell) Close() error {
	s.mu.Lock()
	taken, stream := s.taken, s.stream
	s.taken = false
	s.mu.Unlock()
	if taken && stream.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), giveWithin)
		// If this fails, the session takes the keyboard back after 30 s.
		_, _ = stream.Request(ctx, wire.Request{Verb: wire.VerbGive})
		cancel()
	}
	s.end(errShellClosed)
	s.window.Close(errShellClosed)
	s.mu.Lock()
	stream = s.stream
	s.mu.Unlock()
	stream.Close() // the shell is closed: its error does not matter
	return nil
}

// giveWithin bounds giving the keyboard back in Close.
const giveWithin = 2 * time.Second

// Run runs one complete command in the shell. The command is passed as data: it is not typed,
// quoted or split. Run returns when the shell is at its prompt again, when a program waits for
// input, when the shell ends, or at the timeout: 120 s, or the deadline of ctx if that is earlier.
// The program continues after the timeout. A command with incomplete syntax is rejected with code
// syntax, and nothing runs.
//
// If the sandbox ends meanwhile, or is unreachable for 30 s, the outcome of the command is unknown.
// Run then returns both an error with code lost and a Result: Ended is lost, Output has the known
// output, and Notes has the reason. The command is not repeated; the caller attaches again and
// decides. The same holds for Type, Answer and Keys.
//
// On a host of tier marks or screen, a session ends with the connection. A call then returns
// immediately with both an error with code lost and a Result: Ended is dead, and Output has the
// output so far. State().Reason is "link". The next Run reconnects and runs in a new shell, with
// the note shell_restarted.
func (s *Shell) Run(ctx context.Context, command string) (Result, error) {
	return called(s.call(ctx, wire.VerbRun, Call{Command: command}))
}

// Type types text and Enter to the running program, and returns as Run does. A line longer than the
// 4,095 bytes that a terminal accepts is rejected with line_too_long.
func (s *Shell) Type(ctx context.Context, text string) (Result, error) {
	return called(s.call(ctx, wire.VerbType, Call{Text: text}))
}

// Answer is Type for a program that asks: one that waits for input, or that reads the keyboard
// while it works and has become idle. If no program asks, nothing is typed and the Result is
// rejected with not_waiting. Use it if another party may have answered the question already.
func (s *Shell) Answer(ctx context.Context, text string) (Result, error) {
	return called(s.call(ctx, wire.VerbType, Call{Text: text, Answer: true}))
}

// Keys sends named keys ("^C", "Up", "Enter") and single characters ("q"), and returns as Run does.
// Result.ExitCode is that of a command that the keys ended; nil means none. An unknown name is
// rejected, and no key is sent. Use Type for text.
func (s *Shell) Keys(ctx context.Context, keys ...string) (Result, error) {
	return called(s.call(ctx, wire.VerbKeys, Call{Keys: keys}))
}

// Do makes the call c. Run, Type, Answer and Keys are Do with the default options.
func (s *Shell) Do(ctx context.Context, c Call) (Result, error) {
	verb, err := c.verb()
	if err != nil {
		return Result{}, err
	}
	return called(s.call(ctx, verb, c))
}

// called converts the result of a call to the types of this package.
func called(r wire.Result, err error) (Result, error) { return newResult(r), public(err) }

func (s *Shell) call(ctx context.Context, verb wire.Verb, c Call) (wire.Result, error) {
	if c.Op == "" {
		c.Op = NewOp()
	}
	all := c.MaxOutput < 0 && verb == wire.VerbRun
	if c.Stdout == nil && !all {
		res, err := s.result(s.ask(ctx, c.request(ctx, verb)))
		if err == nil && res.Lacks(c.MaxOutput) {
			s.complete(ctx, &res, c.MaxOutput)
		}
		return res, err
	}
	t := newTap(c.Op, c.Stdout, all)
	s.mu.Lock()
	s.taps[t] = true
	s.mu.Unlock()
	res, err := s.result(s.ask(ctx, c.request(ctx, verb)))
	s.mu.Lock()
	delete(s.taps, t)
	s.mu.Unlock()
	text, whole := t.close(res.From, res.To)
	switch {
	case err != nil || !res.Lacks(c.MaxOutput):
	case whole:
		res.Complete(text, false, res.To, nil)
	default:
		s.complete(ctx, &res, c.MaxOutput)
	}
	return res, err
}

// Wait waits until the session is in one of the phases; without phases, in any but running. It
// returns immediately if it already is. At the timeout of 120 s, or at the deadline of ctx if that
// is earlier, it returns a Result with EndedDeadline.
func (s *Shell) Wait(ctx context.Context, phases ...Phase) (Result, error) {
	r := wire.Request{Verb: wire.VerbWait, TimeoutMS: callTimeout(ctx, 0)}
	r.For = each(phases, func(p Phase) wire.Phase { return wire.Phase(p) })
	return called(s.result(s.ask(ctx, r)))
}

// Interrupt stops the running program: it sends ^C, then TERM, then KILL to all processes of the
// session, each step only if the one before had no effect. Result.Receipt lists the steps and the
// processes.
func (s *Shell) Interrupt(ctx context.Context) (Result, error) {
	return called(
		s.result(
			s.ask(ctx, wire.Request{Verb: wire.VerbInterrupt, TimeoutMS: callTimeout(ctx, 0)}),
		),
	)
}

// Screen returns what the terminal shows.
func (s *Shell) Screen(ctx context.Context) (Screen, error) {
	reply, err := s.ask(ctx, wire.Request{Verb: wire.VerbScreen})
	if err != nil {
		return Screen{}, public(err)
	}
	if reply.Screen == nil {
		return Screen{}, errors.New("screen: the reply has none")
	}
	return newScreen(*reply.Screen), nil
}

// Trace returns what the session's state was judged by: its last observations, as the JSON that
// docs/reference/traces.md describes. It has an error while the session is in private mode, for a
// party that only watches, and if the sandbox's guest is of an earlier version.
func (s *Shell) Trace(ctx context.Context) ([]byte, error) {
	reply, err := s.ask(ctx, wire.Request{Verb: wire.VerbTrace})
	if err != nil {
		return nil, public(noTraces(err))
	}
	if len(reply.Trace) == 0 {
		return nil, errors.New("trace: the reply has none")
	}
	return reply.Trace, nil
}

// noTraces returns err, and for that of a guest which does not know the request, why.
func noTraces(err error) error {
	if known, ok := errors.AsType[*wire.Error](err); ok && known.Code == wire.CodeUsage &&
		strings.Contains(known.Message, "is not known") {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: "the guest of this sandbox keeps no traces: it is of an earlier version",
			Hint:    "to update it, stop and start the sandbox, which ends its programs"}
	}
	return err
}

// Take takes the keyboard and keeps it until Give or Close. It fails with keyboard_held while
// another party holds it.
func (s *Shell) Take(ctx context.Context) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbTake})
	if err == nil {
		s.mu.Lock()
		s.taken = true
		s.mu.Unlock()
	}
	return public(err)
}

// Give gives the keyboard back. It is not an error if this shell does not hold it.
func (s *Shell) Give(ctx context.Context) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbGive})
	if err == nil {
		s.mu.Lock()
		s.taken = false
		s.mu.Unlock()
	}
	return public(err)
}

// Resize sets the terminal's size. It needs the keyboard, or that nobody has it.
func (s *Shell) Resize(ctx context.Context, cols, rows int) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbResize, Cols: cols, Rows: rows})
	return public(err)
}

// Ask is Take, but asks for the keyboard if another party holds it. held is that party; empty means
// that this shell now holds the keyboard. When the holder gives it back, this shell holds it;
// WaitKeyboard returns then.
func (s *Shell) Ask(ctx context.Context) (held string, err error) {
	reply, err := s.ask(ctx, wire.Request{Verb: wire.VerbTake, Ask: true})
	if err != nil {
		return "", public(err)
	}
	s.mu.Lock()
	s.taken = true // or later: Close then gives it back or withdraws the request
	s.mu.Unlock()
	if reply.Asked {
		return reply.Keyboard, nil
	}
	return "", nil
}

// WaitKeyboard waits until no person holds the keyboard, and returns immediately if none does.
// Result.TakenOver says who held it since an agent last did, where in the log, and which commands
// they typed; nil means that nobody did. Output is what was printed in that time. The other fields
// are the current state, with EndedReturned. If ctx ends first, WaitKeyboard returns its cause.
func (s *Shell) WaitKeyboard(ctx context.Context) (Result, error) {
	res, err := s.result(
		s.ask(
			ctx,
			wire.Request{Verb: wire.VerbWait, Keyboard: true, TimeoutMS: callTimeout(ctx, -1)},
		),
	)
	if err == nil && res.Ended == wire.Deadline {
		<-ctx.Done() // the session's timeout is a little earlier
		return newResult(res), context.Cause(ctx)
	}
	return called(res, err)
}

// Pattern is what [Shell.Expect] waits for: a [Text] or a *regexp.Regexp. Match receives what was
// printed since the previous match.
type Pattern interface {
	Match(printed []byte) bool
}

// Text is a Pattern that matches this text literally.
type Text string

// Match reports whether t was printed.
func (t Text) Match(printed []byte) bool { return expect.Text(t).Match(printed) }

// Match is the result of [Shell.Expect].
type Match struct {
	Index int    // index of the pattern that matched
	Text  string // output from the end of the previous match to the end of this one
	From  uint64 // offset in the log of the first byte of Text
	To    uint64 // offset in the log after the last byte of Text
	// Missed counts bytes before From that were not searched, because the output exceeded
	// ShellOptions.Window.
	Missed uint64
}

// Expect waits until the output matches one of the patterns, in any state of the session. It
// searches the exact bytes since the previous match, and at most the last ShellOptions.Window
// bytes. A line ends with \r\n. Use Expect for programs that report their progress only in their
// output. Run and Wait report without it that a program waits for input.
func (s *Shell) Expect(ctx context.Context, patterns ...Pattern) (Match, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := make(chan struct{})
	go func() { // nothing else detects the end of the stream
		defer close(watching)
		for {
			stream, err := s.live(ctx)
			if err != nil {
				cancel(err)
				return
			}
			for ended := false; !ended; {
				s.mu.Lock()
				changed, lost := s.changed, s.linkLostLocked()
				s.mu.Unlock()
				if lost != nil {
					cancel(lost)
					return
				}
				select {
				case <-stream.Done():
					ended = true
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	m, err := s.window.Expect(ctx, each(patterns, func(p Pattern) expect.Pattern { return p })...)
	cancel(nil)
	<-watching
	return Match(m), public(err)
}

// End ends the session: its processes receive HUP, then KILL.
func (s *Shell) End(ctx context.Context) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbClose})
	return public(err)
}
