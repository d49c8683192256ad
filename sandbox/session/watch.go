package session

import (
	"context"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// pauseMost is the longest pause between probes that must be exact. pausePiece is how long
	// output may be unnoticed in it.
	pauseMost  = 2 * time.Millisecond
	pausePiece = 300 * time.Microsecond
)

// observer probes the terminal's processes while callers wait. Only its goroutine uses its fields.
type observer struct {
	s     *session
	pace  track.Pace
	timer *time.Timer
	last  sighting
	anew  bool // earlier probes do not count
}

// sighting is the result of the last probe.
type sighting struct {
	facts   Facts
	console *console
	at      time.Time
}

// calm reports whether all callers only monitor.
func (o *observer) calm() bool {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	return o.s.waiters.calmLocked()
}

// run probes while callers wait.
func (o *observer) run() {
	s := o.s
	o.timer = time.NewTimer(o.pace.Rest())
	defer o.timer.Stop()
	for {
		_, end := s.log.bounds()
		s.mu.Lock()
		if s.waiters.all == 0 || s.closed {
			s.waiters.watched = false
			s.mu.Unlock()
			return
		}
		unwatched := s.waiters.gone
		var changed <-chan struct{}
		if o.pace.Long() || s.waiters.calmLocked() {
			// Unechoed input and a new caller end a long pause.
			changed = s.changedLocked()
		}
		s.mu.Unlock()

		switch o.rest(o.pace.Rest(), unwatched, s.log.changed(end), changed) {
		case restWhole:
			o.pace.Rested()
		case restUnwatched:
			continue
		case restChanged:
			o.pace.Anew(o.calm())
			o.anew = true
			continue
		case restOutput:
			rest := o.pace.Output(o.calm())
			o.anew = true
			_, end = s.log.bounds()
			if o.rest(rest, unwatched, s.log.changed(end), nil) != restWhole {
				continue
			}
		}
		if o.pace.Fresh() {
			o.last = sighting{}
		}
		if o.look() {
			o.pace.Again()
			continue
		}
		s.mu.Lock()
		o.pace.Longer(s.track.Phase(), s.track.Quiet(time.Now()), s.waiters.calmLocked())
		s.mu.Unlock()
	}
}

// Why a pause ended.
const (
	restWhole = iota
	restOutput
	restUnwatched
	restChanged
)

// rest waits for d, or until there is output, no caller waits, or changed is closed. changed may be
// nil.
//
// The runtime's timers are up to a millisecond late in an idle process, which sleeps in
// epoll_wait(2) in milliseconds. So a short pause uses Options.Pause, in pieces.
func (o *observer) rest(d time.Duration, unwatched, output, changed <-chan struct{}) int {
	if pause := o.s.set.opt.Pause; d <= pauseMost && pause != nil {
		for until := time.Now().Add(d); ; {
			select {
			case <-unwatched:
				return restUnwatched
			case <-output:
				return restOutput
			default:
			}
			left := time.Until(until)
			if left <= 0 {
				return restWhole
			}
			pause(min(left, pausePiece))
		}
	}
	o.timer.Reset(d)
	select {
	case <-o.timer.C:
		return restWhole
	case <-unwatched:
		return restUnwatched
	case <-output:
		return restOutput
	case <-changed:
		return restChanged
	}
}

// look probes the terminal and passes the result to the tracker. It returns true if another probe
// soon is useful, for example because the terminal changed meanwhile.
func (o *observer) look() (again bool) {
	s := o.s
	_, end := s.log.bounds()
	s.mu.Lock()
	c, t, writing := s.console, s.track, s.writer.present != nil
	epoch, silent := t.Epoch(), t.Silent(time.Now())
	dead := t.Phase() == wire.PhaseDead
	s.mu.Unlock()
	if c == nil || writing || dead {
		return false
	}
	facts, err := o.probe(c, end)
	var modes *track.Modes
	if c.local != nil {
		m := inputModes(c.local.TTY().Master)
		modes = &m
		if (err != nil || facts.Blocked || facts.Listens) && c.unread() {
			return true // output before it waited, or before these modes, is not in the log yet
		}
	}
	if _, now := s.log.bounds(); now != end {
		return true // output arrived meanwhile: the result is outdated
	}
	if err == nil && (facts.Blocked || facts.Listens || facts.Opaque) ||
		err != nil && silent >= track.SecretTime {
		// The quoted screen must include the program's output.
		if s.display.sync(s.ctx, end) != nil {
			return false
		}
	}
	alt, blank := s.display.alternate()
	l := track.Look{
		Facts:  facts,
		Err:    err,
		Modes:  modes,
		Alt:    alt,
		Blank:  blank,
		Before: s.display.prompt(),
		Anew:   o.anew,
	}

	// A relay such as script listens until it ends, after the shell in it.
	left := err == nil && facts.Blocked && !c.stack.holds(facts)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.track != t || t.Epoch() != epoch || s.writer.present != nil {
		return true
	}
	if left && c.process != nil {
		c.stack.leaveLocked(c.stack.around(), nil, wire.Done)
		return true
	}
	o.anew = false
	o.seeLocked(c, &l, end)
	again, news := t.Look(l, s.momentLocked(c))
	s.reportLocked(c, news)
	return again
}

// seeLocked adds the facts of the terminal c, whose log ends at end, to l.
func (o *observer) seeLocked(c *console, l *track.Look, end uint64) {
	s := o.s
	if c.local != nil {
		l.Shell = c.local.TTY().SessionPID
		if c.process != nil {
			l.Shell = c.process.Pid
		}
	}
	if said := s.display.said.Load(); said != nil {
		l.Said = *said
	}
	l.Calls = s.display.calls.Load()
	l.Answers = len(s.answers.owed) > 0
	if l.Err != nil && c.track.ByScreen() {
		l.Line = s.log.lineStart(end)
	}
}

// probe is session.probe, unless the last seen process has not run since. Output after end
// interrupts it: a program with new input looks blocked at first, and its output should not wait
// for the second probe.
func (o *observer) probe(c *console, end uint64) (Facts, error) {
	last := o.last
	if f := last.facts; f.Still != nil && last.console == c && time.Since(last.at) <= f.Belief() &&
		f.Still() {
		return f, nil
	}
	s := o.s
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-s.log.changed(end):
			cancel()
		case <-ctx.Done():
		}
	})
	facts, err := s.probe(ctx, c)
	o.last = sighting{facts, c, time.Now()}
	return facts, err
}

// probe probes a terminal. It has no time limit: a slow look on a busy machine is still evidence,
// and without it silence would be taken for a question.
func (s *session) probe(ctx context.Context, c *console) (Facts, error) {
	switch {
	case s.without(wire.BasisProcess):
		return Facts{}, errWithout
	case s.set.opt.Prober == nil || c.local == nil:
		return Facts{}, errBlind
	}
	return s.set.opt.Prober.Probe(ctx, c.stack.tty())
}

var (
	errBlind = &wire.Error{
		Code:    wire.CodeUnavailable,
		Message: "the processes of this terminal cannot be seen from here",
	}
	errWithout = &wire.Error{
		Code:    wire.CodeUnavailable,
		Message: "this session was started without a look at its processes",
	}
)

// unread reports whether the terminal has output that is not in the log yet.
func (c *console) unread() bool { return unread(c.local.TTY().Master) || c.taking.Load() }
