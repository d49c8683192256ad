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
}

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
		t.Since = time.UnixMilli(max(e.Begun, min(e.State.SinceUnix, now.UnixMilli())))
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
