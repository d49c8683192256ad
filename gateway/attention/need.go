// Package attention reports which sessions need a person: a program asks a question, a connection
// was blocked, a shell died. A [Tracker] derives that from the state of one session, a [Board]
// counts changes and watchers, a [Watch] returns what changed, and a [Hook] calls a program or a
// URL. Use it to list or follow waiting sessions. It knows no sandbox and no terminal: a [Source]
// lists the sessions.
package attention

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Kind is the reason why a session needs a person. It depends only on the session's state, not on
// who has the keyboard and may be about to answer.
type Kind string

const (
	None   Kind = ""          // it works, is at its prompt, or has ended in order
	Answer Kind = "asks"      // a program waits for input, or the shell for the rest of a command
	Allow  Kind = "denied"    // a connection of its processes was blocked; a user may allow it
	Rest   Kind = "attention" // a program that also reads input while it works has become idle
	Shell  Kind = "dead"      // the shell ended with a signal or an exit code other than 0
)

// Kinds are all kinds except None, the most urgent first.
func Kinds() []Kind { return []Kind{Answer, Allow, Rest, Shell} }

// Need is the need of one session. Its texts are plain: one line, no control characters.
type Need struct {
	Sandbox string    `json:"sandbox"`
	Session string    `json:"session"`
	Needs   Kind      `json:"needs"`
	Want    wire.Want `json:"want,omitempty"` // with Answer
	Since   time.Time `json:"since"`          // time of the last change of Needs
	// Of the screen; of a question, its line up to the cursor; empty in private mode.
	LastLine string     `json:"last_line"`
	Keyboard string     `json:"keyboard"`          // the holder, or empty
	Watched  bool       `json:"watched,omitempty"` // a person is attached
	Phase    wire.Phase `json:"phase"`
	ExitCode *int       `json:"exit_code,omitempty"` // of a shell that ended
	Signal   string     `json:"signal,omitempty"`    // of a shell that ended
	// The session no longer exists, or is no longer shared.
	Gone bool `json:"gone,omitempty"`

	owner string
	id    string // of the sandbox: another one may get its name later

	drives bool // the principal may answer
}

// Target returns the sandbox and the session.
func (n Need) Target() wire.Target { return wire.Target{Sandbox: n.Sandbox, Session: n.Session} }

// Label is Needs with the kind of input, the exit code or the signal, such as "asks:password" and
// "dead:2". It is empty for None.
func (n Need) Label() string {
	switch {
	case n.Needs == Answer && n.Want != "" && n.Want != wire.WantLine:
		return string(n.Needs) + ":" + string(n.Want)
	case n.Needs == Shell && n.ExitCode != nil:
		return string(n.Needs) + ":" + strconv.Itoa(*n.ExitCode)
	case n.Needs == Shell && n.Signal != "":
		return string(n.Needs) + ":" + n.Signal
	}
	return string(n.Needs)
}

// sortNeeds sorts by sandbox and session. A session that is gone comes before a new one of the same
// name.
func sortNeeds(all []Need) {
	slices.SortFunc(all, func(a, b Need) int {
		byName := cmp.Or(strings.Compare(a.Sandbox, b.Sandbox),
			strings.Compare(a.Session, b.Session))
		if byName != 0 || a.Gone == b.Gone {
			return byName
		}
		if a.Gone {
			return -1
		}
		return 1
	})
}
