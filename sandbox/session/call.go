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
	// maxMaxOutput is what surely fits a frame once it is JSON; a reply that is still too long is
	// cut again.
	maxMaxOutput = 960 << 10
	// catchUp is how much output may pile up before a call that follows a command is woken to
	// render it: well under what the log keeps.
	catchUp = 1 << 20
)

// call is a call that waits for what the terminal does next. Its fields are guarded by session.mu,
// but for those of rendering.
type call struct {
	s        *session
	c        *console
	keys     bool           // of a call that pressed keys
	key      string         // of the party whose call it is, empty for a mere wait
	command  *track.Command // of a run
	before   offspring      // of the shell when it was given the command
	from     uint64         // where the call's output begins; of a run once the command has started
	since    track.Counts   // up to the write, or up to the beginning of a mere wait
	level    bool           // a mere wait: what is so already counts, too
	phases   []wire.Phase
	taken    string         // who took the keyboard from the caller
	handover *wire.Handover // of a call that a hand-over ended, or is about
	upTo     uint64         // of a wait for the keyboard: where its output ends
	stopped  bool           // an interrupt was asked for
	stopping bool           // it asked for one, whose result was not taken yet
	notices  uint64         // of programs, up to the call
	started  time.Time
	notes    []string
	counters Counters // at the beginning
	receipt  *wire.Receipt

	jobs background      // that ran beside it from the beginning
	show wire.ShowScreen // when its Result has the screen

	limit    int // bytes of output
	out      *text.Writer
	rendered uint64 // the log was rendered up to here
	lost     bool   // some of it was gone before it was rendered
}

func (s *session) newCall(r wire.Request) *call {
	max := r.MaxOutput
	switch {
	case max == 0:
		max = defaultMaxOutput
	case max < 0 || max > maxMaxOutput:
		max = maxMaxOutput
	}
	return &call{s: s, limit: max, show: r.Screen, started: time.Now(), counters: s.set.opt.Counters(), notices: s.display.notices()}
}

// timeout is how long a call may take; ok is false when there is no bound.
func timeout(ms int64) (d time.Duration, ok bool) {
	switch {
	case ms == 0:
		return defaultTimeout, true
	case ms < 0:
		return 0, false
	}
	return time.Duration(min(ms, int64(1<<40))) * time.Millisecond, true
}

// beginLocked makes f one of the calls under way. What happened up to now is not what it waits for.
func (f *call) beginLocked() {
	s := f.s
	f.c = s.console
	_, f.from = s.log.bounds()
	f.since = f.c.track.Counts()
	s.calls[f] = true
}

// endLocked says whether what f waits for has happened, and what it was.
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
		case phase == wire.PhaseContinuation && (f.level || now.Continued > f.since.Continued || verdict):
			return wire.Continuation, f.wants(phase)
		}
	}
	switch {
	case !verdict:
		return "", false
	case phase == wire.PhaseWaiting:
		return wire.Waiting, f.wants(phase)
	case s.track.Last().Attention == "likely":
		return wire.Attention, f.wants(phase)
	}
	return "", false
}

// wants reports whether a wait is for that phase.
func (f *call) wants(p wire.Phase) bool {
	if len(f.phases) == 0 {
		return true
	}
	for _, q := range f.phases {
		if p == q {
			return true
		}
	}
	// A program that listens and has come to rest runs, or is opaque, but whoever waits for waiting
	// means it, too.
	return (p == wire.PhaseRunning || p == wire.PhaseOpaque) && f.wants(wire.PhaseWaiting)
}

// wait waits until f has ended, at the longest until ctx ends: then the state is what it is.
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

// outputLocked is where in the log the output of f is, as far as is known.
func (f *call) outputLocked() (from, to uint64) {
	s := f.s
	_, to = s.log.bounds()
	cmd := f.command
	switch {
	case f.upTo > 0:
		return f.from, f.upTo
	case cmd == nil:
		if f.c == s.console && s.track.Phase() == wire.PhasePrompt && s.track.Counts().Prompted > f.since.Prompted {
			if over, ok := s.track.OverAt(); ok {
				to = max(f.from, over) // without the prompt behind it
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

// render brings the text of f up to to. Only the goroutine that waits for f calls it.
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
		_, _ = f.out.Write(p) // in memory: it takes everything
		f.rendered += uint64(len(p))
	}
}

// endedNothing reports whether no command was over while f, a call that typed something, lasted.
func (f *call) endedNothing() bool {
	if f.command != nil || f.level {
		return false
	}
	now := f.c.track.Counts()
	return now.Prompted == f.since.Prompted || f.keys && now.Concluded == f.since.Concluded // of a line that was typed, the prompt tells
}

// result is what a call that ended like that tells its caller. It ends f.
func (f *call) result(ended wire.Ended) *wire.Result {
	s := f.s
	if ended != wire.Done || f.show == wire.ScreenAlways {
		s.awaitScreen()
	}
	alt, _ := s.display.glance()
	notice, noticed := s.display.noticeSince(f.notices)
	s.mu.Lock()
	delete(s.calls, f)
	from, to := f.outputLocked()
	end := s.log.shown()
	from, to = min(from, end), min(to, end)
	st := s.stateLocked()
	f.stopEndedLocked()
	st.AltScreen = alt
	r := f.resultLocked(st)
	r.Ended, r.From, r.To, r.TakenOver = ended, from, to, f.handover
	if cmd := f.command; cmd != nil && cmd.Over {
		r.ExitCode = cmd.Exit
	}
	if ended == wire.Dead && f.c != s.console && f.c != nil { // another call has started the next shell
		end := f.c.end
		r.Phase, r.ExitCode = wire.PhaseDead, &end.Code
		if end.Signal != "" {
			r.ExitCode, r.Signal = nil, &end.Signal
		}
	}
	if ended != wire.Done && ended != wire.Dead && ended != wire.Interrupted && (ended != wire.Returned || st.Phase != wire.PhasePrompt) {
		r.ExitCode = nil
	}
	if ended == wire.Done && f.endedNothing() {
		r.ExitCode = nil // is that of a command before the call
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
	if now.OOMKills > f.counters.OOMKills && !slices.Contains(r.Notes, wire.NoteOOMKilled) { // which the shell itself died of
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

// resultLocked is a Result that says how the terminal is.
func (f *call) resultLocked(st wire.State) *wire.Result {
	s := f.s
	end := s.log.shown()
	r := &wire.Result{Sandbox: s.set.title(), Session: s.name, Phase: st.Phase, Want: st.Want, Prompt: st.Prompt, ExitCode: st.ExitCode,
		Listens: st.Listens, Attention: "no", QuietMS: st.QuietMS, From: end, To: end, Cwd: st.Cwd, Foreground: st.Foreground,
		Basis: st.Basis, Disputed: []wire.Basis{}, Keyboard: s.keyboard.String(), Notes: []string{}, Denied: []wire.Denial{}}
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

// refused is the Result of f, which did nothing.
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

// public is err as a stranger may see it.
func (s *session) public(err error) *wire.Error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errClosed):
		return &wire.Error{Code: wire.CodeLost, Message: "session " + s.name + " was closed"}
	case errors.Is(err, errCancelled):
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the call was cancelled before anything was typed"}
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the call's time was over before anything was typed"}
	}
	return s.set.internal("session "+s.name, err)
}
