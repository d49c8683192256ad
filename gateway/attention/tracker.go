package attention

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Brief is the part of a Need whose change is worth reporting.
type Brief struct {
	Needs    Kind
	Want     wire.Want
	Phase    wire.Phase
	Keyboard string
	Watched  bool
}

// Tracker follows the need of one session. It is pure: it has no clock and no lock. The zero value
// has observed nothing.
type Tracker struct {
	Brief
	Since time.Time // time of the last change of Needs; zero before the first Observe
	rest  rest
}

// A program such as top rests after each refresh. After a short rest, the next one is a need only
// when it has become long.
const (
	shortRest = 5 * time.Second
	restAgain = 30 * time.Second // how long after a short rest
)

// rest is the present rest of a session's program, and the last one.
type rest struct {
	begun  time.Time // zero if the program does not rest
	unsure time.Time // until when a rest that begins must be long; zero at first
	due    time.Time // when the rest becomes a need; zero if it is one, or there is none
}

// needs reports whether a program that rests or not needs a person.
func (r *rest) needs(rests bool, now time.Time) bool {
	if !rests {
		if !r.begun.IsZero() && now.Sub(r.begun) < shortRest {
			r.unsure = now.Add(restAgain)
		}
		r.begun, r.due = time.Time{}, time.Time{}
		return false
	}
	if r.begun.IsZero() {
		if r.begun = now; now.Before(r.unsure) {
			r.due = now.Add(shortRest)
		}
	}
	if !now.Before(r.due) {
		r.due = time.Time{}
	}
	return r.due.IsZero()
}

// Due returns when to call Observe again, or the zero time for never.
func (t *Tracker) Due() time.Time { return t.rest.due }

// Evidence is the input of a Tracker.
type Evidence struct {
	Session  string // its name
	Argv     []string
	Begun    int64 // milliseconds of Unix time
	State    wire.State
	Keyboard string
	Blocked  bool // a connection of its processes was blocked
	Watched  bool // a person is attached
}

// Observe takes the current evidence and reports whether there is a change to report. It does not
// trust the guest's clock: Since is never before the session began, and never in the future.
func (t *Tracker) Observe(e Evidence, now time.Time) (changed bool) {
	brief := Brief{Needs: of(e.Session, e.Argv, e.State), Phase: e.State.Phase,
		Keyboard: e.Keyboard, Watched: e.Watched}
	if !t.rest.needs(brief.Needs == Rest, now) && brief.Needs == Rest {
		brief.Needs = None
	}
	if e.Blocked && (brief.Needs == None || brief.Needs == Rest) {
		brief.Needs = Allow
	}
	if brief.Needs == Answer {
		switch w := e.State.Want; w {
		case wire.WantLine, wire.WantPassword, wire.WantRaw, wire.WantPager, wire.WantFullscreen:
			brief.Want = w
		}
	}
	first := t.Since.IsZero()
	if brief == t.Brief && !first {
		return false
	}
	if brief.Needs != t.Needs || first {
		since := min(e.State.SinceUnix, now.UnixMilli())
		if brief.Needs == Allow { // it began with a connection, not with the state
			since = now.UnixMilli()
		}
		t.Since = time.UnixMilli(max(e.Begun, since))
	}
	t.Brief = brief
	return true
}

// of returns the need of a session, from its state only. A program that runs in place of a shell,
// such as an image's entrypoint, may end with any status.
func of(session string, argv []string, st wire.State) Kind {
	switch {
	case st.Phase == wire.PhaseWaiting, st.Phase == wire.PhaseContinuation:
		return Answer
	case st.Phase == wire.PhaseDead:
		if session != "entrypoint" && argv == nil && (st.ExitCode == nil || *st.ExitCode != 0) {
			return Shell
		}
	case st.Attention == "likely":
		return Rest
	}
	return None
}
