package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	defaultTimeout   = 120 * time.Second
	defaultMaxOutput = 32 << 10
	// maxMaxOutput is an output length that usually fits a frame as JSON. A longer reply is
	// shortened again.
	maxMaxOutput = 960 << 10
	// catchUp is how much output may accumulate before a call renders it. It is well below the size
	// of the log.
	catchUp = 1 << 20
)

// call is a call that waits for the terminal. Its fields are guarded by session.mu, except for
// those of rendering.
type call struct {
	s       *session
	c       *console
	keys    bool           // the call pressed keys
	key     string         // key of the caller's party; empty for a wait
	command *track.Command // command of a run
	inside  *wire.Shell    // the nested shell in front at the begin; nil for none
	before  offspring      // children of the shell before the command
	// start of the call's output; with run, set when the command has started
	from     uint64
	since    track.Counts // at the write, or at the start of a wait
	level    bool         // a wait: the current state counts, too
	phases   []wire.Phase
	taken    string         // party that took the keyboard from the caller
	handover *wire.Handover // handover that ended the call, or that it waited for
	upTo     uint64         // with a wait for the keyboard: end of its output
	stopped  bool           // an interrupt was requested
	stopping bool           // it requested one, whose result is pending
	notices  uint64         // notices of programs before the call
	started  time.Time
	notes    []string
	counters Counters // counters at the start
	receipt  *wire.Receipt

	jobs background      // background jobs at the start
	show wire.ShowScreen // when the Result has the screen

	limit    int // limit of output in bytes
	out      *text.Writer
	rendered uint64 // log offset up to which output was rendered
	lost     bool   // some output was dropped from the log before it was rendered
}

func (s *session) newCall(r wire.Request) *call {
	max := r.MaxOutput
	switch {
	case max == 0:
		max = defaultMaxOutput
	case max < 0 || max > maxMaxOutput:
		max = maxMaxOutput
	}
	return &call{
		s:        s,
		limit:    max,
		show:     r.Screen,
		started:  time.Now(),
		counters: s.set.opt.Counters(),
		notices:  s.display.notices(),
	}
}

// timeout returns the timeout of a call. ok is false if there is none.
func timeout(ms int64) (d time.Duration, ok bool) {
	switch {
	case ms == 0:
		return defaultTimeout, true
	case ms < 0:
		return 0, false
	}
	return time.Duration(min(ms, int64(1<<40))) * time.Millisecond, true
}

// beginLocked starts f. Events before that do not end f.
func (f *call) beginLocked() {
	s := f.s
	f.c = s.console
	_, f.from = s.log.bounds()
	f.since = f.c.track.Counts()
	f.inside = f.c.track.State(time.Now()).Shell
	s.calls[f] = true
}

// endLocked reports whether f has ended, and how.
func (f *call) endLocked() (wire.Ended, bool) {
	s := f.s
	phase := s.track.Phase()
	switch {
	case f.taken != "":
		return wire.TakenOver, true
	case f.c != s.console || phase == wire.PhaseDead || s.closed:
		return wire.Dead, true
	}
	now := s.track.Counts()
	verdict := now.Verdicts > f.since.Verdicts
	if cmd := f.command; cmd != nil {
		switch {
		case cmd.Over && !cmd.Started:
			return wire.Refused, true
		case cmd.Over && f.stopped:
			return wire.Interrupted, true
		case cmd.Over:
			return wire.Done, true
		case !cmd.Started:
			return "", false
		}
	} else {
		switch {
		case phase == wire.PhasePrompt && (f.level || now.Prompted > f.since.Prompted || verdict):
			if f.stopped {
				return wire.Interrupted, f.wants(phase)
			}
			return wire.Done, f.wants(phase)
		case phase == wire.PhaseContinuation &&
			(f.level || now.Continued > f.since.Continued || verdict):
			return wire.Continuation, f.wants(phase)
		}
	}
	switch {
	case !verdict:
		return "", false
	case phase == wire.PhasePrompt && f.command != nil: // the command is a shell
		if f.stopped {
			return wire.Interrupted, true
		}
		return wire.Done, true
	case phase == wire.PhaseWaiting:
		return wire.Waiting, f.wants(phase)
	case s.track.Last().Attention == "likely":
		return wire.Attention, f.wants(phase)
	}
	return "", false
}

// wants reports whether a wait is for phase p.
func (f *call) wants(p wire.Phase) bool {
	if len(f.phases) == 0 {
		return true
	}
	for _, q := range f.phases {
		if p == q {
			return true
		}
	}
	// An idle program that listens is running or opaque, but also ends a wait for waiting.
	return (p == wire.PhaseRunning || p == wire.PhaseOpaque) && f.wants(wire.PhaseWaiting)
}

// wait waits until f or ctx has ended.
func (f *call) wait(ctx context.Context) wire.Ended {
	s := f.s
	s.mu.Lock()
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	for {
		s.mu.Lock()
		ended, ok := f.endLocked()
		changed := s.changedLocked()
		from, end := f.outputLocked()
		s.mu.Unlock()
		if ok {
			return ended
		}
		if end-max(from, f.rendered) > catchUp {
			f.render(from, end)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return wire.Deadline
		}
	}
}

// outputLocked returns the known log offsets of the output of f.
func (f *call) outputLocked() (from, to uint64) {
	s := f.s
	_, to = s.log.bounds()
	cmd := f.command
	switch {
	case f.upTo > 0:
		return f.from, f.upTo
	case cmd == nil:
		if f.c == s.console && s.track.Phase() == wire.PhasePrompt &&
			s.track.Counts().Prompted > f.since.Prompted {
			if over, ok := s.track.OverAt(); ok {
				to = max(f.from, over) // without the prompt after it
			}
		}
		return f.from, to
	case cmd.Ended:
		return cmd.From, cmd.To
	case !cmd.Started:
		return to, to
	}
	return cmd.From, to
}

// render renders the output of f up to to. Only the goroutine that waits for f calls it.
func (f *call) render(from, to uint64) {
	s := f.s
	to = min(to, s.log.shown())
	if f.out == nil {
		f.out = text.NewWriter(f.limit)
		f.rendered = from
	}
	for f.rendered < to {
		p, err := s.log.at(f.rendered)
		var lagged *LaggedError
		if errors.As(err, &lagged) {
			if lagged.Private {
				_, _ = f.out.Write([]byte("[private]\r\n"))
			} else {
				f.lost = true
			}
			f.rendered += lagged.Missed
			continue
		}
		p = p[:min(uint64(len(p)), to-f.rendered)]
		_, _ = f.out.Write(p) // in memory: it cannot fail
		f.rendered += uint64(len(p))
	}
}

// endedNothing reports whether no command ended during f, a call that typed.
func (f *call) endedNothing() bool {
	if f.command != nil || f.level {
		return false
	}
	now := f.c.track.Counts()
	return now.Prompted == f.since.Prompted ||
		f.keys && now.Concluded == f.since.Concluded // keys may cause a prompt without a command
}

// result ends f and returns its Result.
func (f *call) result(ended wire.Ended) *wire.Result {
	s := f.s
	if ended != wire.Done || f.show == wire.ScreenAlways {
		s.awaitScreen()
	}
	alt, _ := s.display.glance()
	notice, noticed := s.display.noticeSince(f.notices)
	s.mu.Lock()
	if delete(s.calls, f); len(s.calls) == 0 {
		s.fireLocked() // Kill waits for it
	}
	from, to := f.outputLocked()
	end := s.log.shown()
	from, to = min(from, end), min(to, end)
	st := s.stateLocked()
	f.stopEndedLocked()
	st.AltScreen = alt
	r := f.resultLocked(st)
	r.Ended, r.From, r.To, r.TakenOver = ended, from, to, f.handover
	if cmd := f.command; cmd != nil && cmd.Over && ended != wire.Dead {
		r.ExitCode = cmd.Exit
	}
	if ended == wire.Dead && f.c != s.console &&
		f.c != nil { // another call has started a new shell
		end := f.c.end
		r.Phase, r.ExitCode = wire.PhaseDead, &end.Code
		if end.Signal != "" {
			r.ExitCode, r.Signal = nil, &end.Signal
		}
	}
	if ended != wire.Done && ended != wire.Dead && ended != wire.Interrupted &&
		(ended != wire.Returned || st.Phase != wire.PhasePrompt) {
		r.ExitCode = nil
	}
	if f.c != nil && ended != wire.Dead && s.keyboard.Private() == nil {
		noteShell(f, st.Shell)
	}
	if ended == wire.Done && f.endedNothing() {
		r.ExitCode = nil // it belongs to an earlier command
	}
	s.mu.Unlock()
	f.render(from, to)
	r.Output, r.Truncated = f.out.String(), f.out.Truncated() || f.lost
	if r.Truncated {
		f.notes = append(f.notes, wire.NoteTruncated)
	}
	if len(f.jobs) > 0 && r.To > r.From && f.jobs.mayHavePrinted(f.c.background()) {
		f.notes = append(f.notes, wire.NoteBackgroundJobs)
	}
	now := s.set.opt.Counters()
	if now.OOMKills > f.counters.OOMKills &&
		!slices.Contains(r.Notes, wire.NoteOOMKilled) { // it already explains why the shell ended
		f.notes = append(f.notes, wire.NoteOOMKilled)
	}
	if now.PidsRefused > f.counters.PidsRefused {
		f.notes = append(f.notes, wire.NoteLimitPids)
	}
	r.Notes = append(r.Notes, f.notes...)
	f.addScreen(f.show, r, alt)
	r.Receipt = f.receipt
	if noticed {
		said := strings.TrimSpace(string(notice.Kind) + " " + notice.Text)
		r.Notice = &said
	}
	r.ElapsedMS = time.Since(f.started).Milliseconds()
	return r
}

// noteShell adds a note if another shell than at the begin of f is in front: now, or nil for the
// session's own.
func noteShell(f *call, now *wire.Shell) {
	note := wire.NoteShellLeft
	switch was := f.inside; {
	case was == nil && now == nil, was != nil && now != nil && was.Pid == now.Pid &&
		slices.Equal(was.Argv, now.Argv):
		return
	case now != nil && (was == nil || now.Depth > was.Depth || now.Pid == was.Pid):
		note = wire.NoteShellEntered
	}
	if !slices.Contains(f.notes, note) {
		f.notes = append(f.notes, note)
	}
}

// depthOf returns how many shells sh runs in; 0 for the session's own, which is nil.
func depthOf(sh *wire.Shell) int {
	if sh == nil {
		return 0
	}
	return sh.Depth
}

// resultLocked returns a Result with the state of the terminal.
func (f *call) resultLocked(st wire.State) *wire.Result {
	s := f.s
	end := s.log.shown()
	r := &wire.Result{
		Sandbox:    s.set.sandboxName(),
		Session:    s.name,
		Phase:      st.Phase,
		Want:       st.Want,
		Prompt:     st.Prompt,
		ExitCode:   st.ExitCode,
		Listens:    st.Listens,
		Attention:  "no",
		QuietMS:    st.QuietMS,
		From:       end,
		To:         end,
		Cwd:        st.Cwd,
		Foreground: st.Foreground,
		Shell:      st.Shell,

		Program:        st.Program,
		LooksLikeShell: st.LooksLikeShell,

		Basis:    st.Basis,
		Disputed: []wire.Basis{},
		Keyboard: s.keyboard.String(),
		Notes:    []string{},
		Denied:   []wire.Denial{},
	}
	if st.Attention != "" {
		r.Attention = st.Attention
	}
	if st.Signal != "" {
		r.Signal = &st.Signal
	}
	r.Disputed = append(r.Disputed, st.Disputed...)
	if st.Reason != "" && st.Phase == wire.PhaseDead {
		r.Notes = append(r.Notes, st.Reason)
	}
	return r
}

// refused returns the Result of f, which did not run.
func (f *call) refused(err error) *wire.Result {
	s := f.s
	s.awaitScreen()
	alt, _ := s.display.glance()
	s.mu.Lock()
	r := f.resultLocked(s.stateLocked())
	r.Error = s.public(err)
	if r.Error.Code == wire.CodeKeyboardHeld && s.keyboard.HeldByPerson() {
		r.TakenOver = s.keyboard.handover.copy(false)
	}
	s.mu.Unlock()
	r.Ended, r.ExitCode = wire.Refused, nil
	f.addScreen(f.show, r, alt)
	return r
}

// public returns err as clients may see it.
func (s *session) public(err error) *wire.Error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errClosed):
		return &wire.Error{Code: wire.CodeLost, Message: "session " + s.name + " was closed"}
	case errors.Is(err, errCancelled):
		return &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "the call was cancelled before it typed anything",
		}
	case errors.Is(err, context.Canceled): // with the sandbox
		return &wire.Error{Code: wire.CodeLost, Message: "session " + s.name + " is ending"}
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "the call timed out before it typed anything",
		}
	}
	return s.set.internal("session "+s.name, err)
}
