package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent/expect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Shell is an attachment to one session. Its methods may be called at once, but a session runs one command at a time: a
// second Run is refused with not_prompt.
type Shell struct {
	client *Client
	window *expect.Window

	attaching chan struct{} // semaphore of who attaches again

	life context.Context //nolint:containedctx // the shell's own life, which no call bounds; its cause is errShellClosed
	end  context.CancelCauseFunc

	mu       sync.Mutex
	stream   *wire.Client  // guarded by mu; broken or not, the newest
	attached wire.Attached // guarded by mu; of the newest attach
	next     uint64        // guarded by mu; offset of the next byte
	seq      uint64        // guarded by mu; of the newest event
	state    wire.State    // guarded by mu
	keyboard string        // guarded by mu
	taken    bool          // guarded by mu; by Take, until Give
	taps     map[*tap]bool // guarded by mu
	changed  chan struct{} // guarded by mu; closed and replaced on every event
}

var errShellClosed = errors.New("shell is closed")

// Shell attaches to a session by name ("" is the one of the client's URI, else main) and starts it if it is missing. ctx bounds the attaching.
func (c *Client) Shell(ctx context.Context, session string) (*Shell, error) {
	return c.Attach(ctx, ShellOptions{Session: session})
}

// Session is the session's name, also where it was generated.
func (s *Shell) Session() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Session
}

// Resume is the secret with which Attach, on any connection of the same principal and within 30 s of this one's loss, is the
// same party again: same keyboard, and a repeated Call.Op returns what the first one did.
func (s *Shell) Resume() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Resume
}

// Incarnation names the shell that the session had when this Shell attached to it or came back to it, or when it answered the
// last call, whichever was later. It is random, and another one for a shell that was started in its place, also after a restart
// of the sandbox. See [Call.Incarnation]. It is empty where the sandbox's guest is of a version that does not say.
func (s *Shell) Incarnation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached.Incarnation
}

// State is the last state that the session reported. It costs no round trip; Wait asks.
func (s *Shell) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newState(s.state)
}

// Close detaches. The session and what runs in it go on; a keyboard that was taken is given back.
func (s *Shell) Close() error {
	s.mu.Lock()
	taken, stream := s.taken, s.stream
	s.taken = false
	s.mu.Unlock()
	if taken && stream.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), giveWithin)
		_, _ = stream.Request(ctx, wire.Request{Verb: wire.VerbGive}) // else the session does it, in 30 s
		cancel()
	}
	s.end(errShellClosed)
	s.window.Close(errShellClosed)
	s.mu.Lock()
	stream = s.stream
	s.mu.Unlock()
	stream.Close() // what it says is of no use to one who leaves
	return nil
}

// giveWithin bounds the good manners of one who leaves.
const giveWithin = 2 * time.Second

// Run gives the shell one complete command, as data: nothing is typed, quoted or split. It returns when the shell is at
// its prompt again, a program waits for input, the shell died, or the time is up; the program goes on in that case.
// Unfinished syntax is refused before anything runs.
//
// When the sandbox ends meanwhile, or is out of reach for longer than 30 s, nobody knows how the command ended: Run returns an error
// with code lost beside its Result, which has Ended lost, the output as far as it is known, and why in Notes. It is not run again:
// the caller attaches anew and decides. The same holds for Type, Answer and Keys.
//
// On a host of another tier than guest a session ends with the connection. Then a call returns at once, an error with code lost
// beside its Result, which has Ended dead and the output so far; State().Reason is link. The next Run connects again and gives
// the command to a new shell, which Notes say: shell_restarted.
func (s *Shell) Run(ctx context.Context, command string) (Result, error) {
	return called(s.call(ctx, wire.VerbRun, Call{Command: command}))
}

// Type types text and Enter to the program that runs, and returns as Run does. A line longer than the 4,095 bytes that a
// terminal takes is refused.
func (s *Shell) Type(ctx context.Context, text string) (Result, error) {
	return called(s.call(ctx, wire.VerbType, Call{Text: text}))
}

// Answer is Type to a program that asks: it waits for input, or listens and has come to rest. To anything else nothing is typed, and
// the Result is refused with not_waiting and what runs. It is for callers who know the question and not who else answers it.
func (s *Shell) Answer(ctx context.Context, text string) (Result, error) {
	return called(s.call(ctx, wire.VerbType, Call{Text: text, Answer: true}))
}

// Keys sends named keys ("^C", "Up", "Enter") and single characters ("q"), and returns as Run does. ExitCode is that of a command that
// they ended; nil is none. An unknown name is an error, and nothing is sent: text is for Type.
func (s *Shell) Keys(ctx context.Context, keys ...string) (Result, error) {
	return called(s.call(ctx, wire.VerbKeys, Call{Keys: keys}))
}

// Do makes a call with its options.
func (s *Shell) Do(ctx context.Context, c Call) (Result, error) {
	verb, err := c.verb()
	if err != nil {
		return Result{}, err
	}
	return called(s.call(ctx, verb, c))
}

// called is what a call returned, in the types of this package.
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

// Wait returns when the session is in one of the phases, at once if it is; none means any but running. A timeout of ctx, or
// 120 s, ends it with Deadline.
func (s *Shell) Wait(ctx context.Context, phases ...Phase) (Result, error) {
	r := wire.Request{Verb: wire.VerbWait, TimeoutMS: callTimeout(ctx, 0)}
	r.For = each(phases, func(p Phase) wire.Phase { return wire.Phase(p) })
	return called(s.result(s.ask(ctx, r)))
}

// Interrupt stops what runs: ^C, then TERM, then KILL to everything of the session, each step only if the one before did
// not do. Result.Receipt lists what was signalled and what died.
func (s *Shell) Interrupt(ctx context.Context) (Result, error) {
	return called(s.result(s.ask(ctx, wire.Request{Verb: wire.VerbInterrupt, TimeoutMS: callTimeout(ctx, 0)})))
}

// Screen returns what the terminal shows now.
func (s *Shell) Screen(ctx context.Context) (Screen, error) {
	reply, err := s.ask(ctx, wire.Request{Verb: wire.VerbScreen})
	if err != nil {
		return Screen{}, public(err)
	}
	if reply.Screen == nil {
		return Screen{}, errors.New("screen: the answer has none")
	}
	return newScreen(*reply.Screen), nil
}

// Take takes the keyboard and keeps it until Give or Close. It fails with keyboard_held while another party holds it.
func (s *Shell) Take(ctx context.Context) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbTake})
	if err == nil {
		s.mu.Lock()
		s.taken = true
		s.mu.Unlock()
	}
	return public(err)
}

// Give gives the keyboard back. Giving what one does not hold is not an error.
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

// Ask is Take, but asks a holder from whom the keyboard cannot be taken; held is who that is, empty when the keyboard is the
// shell's. When it is given, the shell has it: WaitKeyboard tells.
func (s *Shell) Ask(ctx context.Context) (held string, err error) {
	reply, err := s.ask(ctx, wire.Request{Verb: wire.VerbTake, Ask: true})
	if err != nil {
		return "", public(err)
	}
	s.mu.Lock()
	s.taken = true // or soon: who leaves gives it back, or asks no more
	s.mu.Unlock()
	if reply.Asked {
		return reply.Keyboard, nil
	}
	return "", nil
}

// WaitKeyboard returns when no person holds the keyboard, at once if none does, and tells what people did with it since an
// agent last had it: Result.TakenOver says who, where in the log and with which commands, Output is what was printed between,
// and the rest is the state now. TakenOver is nil when nobody had it. Ended is Returned; when ctx ends first its cause is returned.
func (s *Shell) WaitKeyboard(ctx context.Context) (Result, error) {
	res, err := s.result(s.ask(ctx, wire.Request{Verb: wire.VerbWait, Keyboard: true, TimeoutMS: callTimeout(ctx, -1)}))
	if err == nil && res.Ended == wire.Deadline {
		<-ctx.Done() // the session gives up a little earlier
		return newResult(res), context.Cause(ctx)
	}
	return called(res, err)
}

// Pattern is what [Shell.Expect] waits for: a [Text], or a *regexp.Regexp. Match gets what was printed since the last match.
type Pattern interface {
	Match(printed []byte) bool
}

// Text is a Pattern: these characters, as they are.
type Text string

// Match reports whether t was printed.
func (t Text) Match(printed []byte) bool { return expect.Text(t).Match(printed) }

// Match is what [Shell.Expect] found.
type Match struct {
	Index  int    // which of the patterns matched
	Text   string // what was printed, from the end of the previous match to the end of this one
	From   uint64 // offset of Text's first byte in the log
	To     uint64 // offset behind its last byte
	Missed uint64 // bytes in front of From that were not looked at, because more was printed than ShellOptions.Window
}

// Expect waits until one of the patterns has been printed, whatever the state. It looks at the exact bytes, in which a line
// ends with \r\n, since the previous match, and back at most ShellOptions.Window bytes. Reach for it when a program has
// no other way to tell: that a program waits for input, Run and Wait report by themselves.
func (s *Shell) Expect(ctx context.Context, patterns ...Pattern) (Match, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := make(chan struct{})
	go func() { // nobody else notices that the stream has ended
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

// End ends the session: its programs get HUP, then KILL.
func (s *Shell) End(ctx context.Context) error {
	_, err := s.ask(ctx, wire.Request{Verb: wire.VerbClose})
	return public(err)
}
