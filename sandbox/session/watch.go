package session

import (
	"context"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// pauseMost is the longest rest between looks that has to be exact, pausePiece how long output
	// may go unnoticed in it.
	pauseMost  = 2 * time.Millisecond
	pausePiece = 300 * time.Microsecond
)

// observer looks at the terminal's processes while somebody waits to know. Its fields are its
// goroutine's own.
type observer struct {
	s     *session
	pace  track.Pace
	timer *time.Timer
	last  sighting
	anew  bool // looks so far do not count
}

// sighting is what the prober saw when it looked last.
type sighting struct {
	facts   Facts
	console *console
	at      time.Time
}

// calm reports whether all waiters only monitor the state.
func (o *observer) calm() bool {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	return o.s.waiters.calmLocked()
}

// run looks until nobody waits any more.
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
			// Input that is not echoed, and a caller who has just come, end a long rest.
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

// How a rest ended.
const (
	restWhole = iota
	restOutput
	restUnwatched
	restChanged
)

// rest waits for d, or until there is output, nobody waits any more, or changed is closed; nil
// never is.
//
// The runtime's timers are a millisecond late in a process that does nothing else: it sleeps in
// epoll_wait(2), which counts in milliseconds. A short rest is therefore given to Options.Pause, in
// pieces.
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

// look asks the prober and gives its answer to the tracker. It returns true when it is worth
// looking again soon, also because the terminal changed meanwhile.
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
	if _, now := s.log.bounds(); now != end {
		return true // it printed meanwhile: what was seen is over
	}
	if err == nil && facts.Blocked && c.unread() {
		return true // what it printed before it blocked is not in the log yet
	}
	if err == nil && (facts.Blocked || facts.Listens || facts.Opaque) || err != nil && silent >= track.SecretTime {
		// What the answer quotes of the screen has to be what the program has printed.
		if s.display.sync(s.ctx, end) != nil {
			return false
		}
	}
	l := track.Look{Facts: facts, Err: err, Alt: s.display.modes().AltScreen, Before: s.display.prompt(), Anew: o.anew}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.track != t || t.Epoch() != epoch || s.writer.present != nil {
		return true
	}
	o.anew = false
	o.seeLocked(c, &l, end)
	again, news := t.Look(l, s.momentLocked(c))
	s.reportLocked(c, news)
	return again
}

// seeLocked adds to l what is known of the terminal c, whose log ends at end.
func (o *observer) seeLocked(c *console, l *track.Look, end uint64) {
	s := o.s
	if c.local != nil {
		m := inputModes(c.local.TTY().Master)
		l.Modes, l.Shell = &m, c.local.TTY().SessionPID
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

// probe is session.probe, unless whoever was seen last has not run since. It is cut short by output
// past end: a program that has just been typed to is taken for blocked at first, and what it prints
// then does not wait for the second look at what it was.
func (o *observer) probe(c *console, end uint64) (Facts, error) {
	last := o.last
	if f := last.facts; f.Still != nil && last.console == c && time.Since(last.at) <= f.Belief() && f.Still() {
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

// probe asks the prober about a terminal.
func (s *session) probe(ctx context.Context, c *console) (Facts, error) {
	switch {
	case s.without(wire.BasisProcess):
		return Facts{}, errWithout
	case s.set.opt.Prober == nil || c.local == nil:
		return Facts{}, errBlind
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.set.opt.Prober.Probe(ctx, c.local.TTY())
}

var (
	errBlind   = &wire.Error{Code: wire.CodeUnavailable, Message: "the processes of this terminal cannot be seen from here"}
	errWithout = &wire.Error{Code: wire.CodeUnavailable, Message: "this session was started without a look at its processes"}
)

// unread reports whether the terminal has output that is not in the log yet.
func (c *console) unread() bool { return unread(c.local.TTY().Master) || c.taking.Load() }
