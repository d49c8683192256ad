package live

import (
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The daemon keeps what a guest reports of its sessions, for long, and it goes into records, lists
// and status lines. A guest is whatever root in the sandbox makes of it: its words are cut here to
// what an honest guest sends at most.
const (
	MaxWord  = 256     // bytes of a party, an op, a signal
	maxPath  = 4 << 10 // of a path or a line (PATH_MAX)
	maxWords = 8 << 10 // of a command's text or arguments
	maxParts = 256     // of a list
)

// inboundEvent is e, of a guest, cut to its bounds.
func inboundEvent(e wire.Event) wire.Event {
	e.Kind = wire.EventKind(Cut(string(e.Kind), MaxWord))
	e.By, e.Keyboard, e.ID, e.Op = Cut(e.By, MaxWord), Cut(e.Keyboard, MaxWord), Cut(e.ID, MaxWord),
		Cut(e.Op, MaxWord)
	e.Why = wire.Ended(Cut(string(e.Why), MaxWord))
	e.Text = Cut(e.Text, maxWords)
	if e.State != nil {
		st := inboundState(*e.State)
		e.State = &st
	}
	return e
}

// inboundState is st, of a guest, cut to its bounds.
func inboundState(st wire.State) wire.State {
	st.Phase, st.Want = wire.Phase(Cut(string(st.Phase), MaxWord)),
		wire.Want(Cut(string(st.Want), MaxWord))
	st.Signal, st.Attention = Cut(st.Signal, MaxWord), Cut(st.Attention, MaxWord)
	st.Reason, st.Cwd, st.Prompt, st.LastLine = Cut(st.Reason, maxPath), Cut(st.Cwd, maxPath),
		Cut(st.Prompt, maxPath), Cut(st.LastLine, maxPath)
	if st.Foreground != nil {
		st.Foreground = &wire.Process{Pid: st.Foreground.Pid, Argv: inboundArgv(st.Foreground.Argv)}
	}
	st.Basis, st.Disputed = inboundBasis(st.Basis), inboundBasis(st.Disputed)
	return st
}

// inboundInfo is i, of a guest, cut to its bounds.
func inboundInfo(i wire.SessionInfo) wire.SessionInfo {
	i.Name, i.Keyboard, i.Private = Cut(i.Name, MaxWord), Cut(i.Keyboard, MaxWord),
		Cut(i.Private, MaxWord)
	i.State = inboundState(i.State)
	i.Argv = inboundArgv(i.Argv)
	i.Parties = nil // the daemon knows who is attached
	return i
}

// inboundReasons are the reasons of a loss that a guest can know. The others are the daemon's to
// give.
var inboundReasons = []string{wire.LostShell, wire.LostForgotten, wire.LostPartly}

// daemonReasons are those that only the daemon knows. oom_killed is a guest's note, too.
var daemonReasons = []string{wire.LostStopped, wire.LostKilled, wire.LostEngine, wire.LostHost,
	wire.LostGuest, wire.LostRemoved,
	wire.LostPaused, wire.LostRecord, wire.LostGateway, wire.LostDetached}

// InboundReply removes the reasons that a guest cannot know from its reply, and reports whether
// there were any.
func InboundReply(r *wire.Reply) (changed bool) {
	said := r.Error
	r.Error = InboundError(said)
	changed = r.Error != said
	if res := r.Result; res != nil {
		res.Error = InboundError(res.Error)
		res.Notes = slices.DeleteFunc(res.Notes,
			func(n string) bool { return !isWord(n) || slices.Contains(daemonReasons, n) })
	}
	return changed
}

// isWord reports whether a note of a guest is one of the protocol's words, and not text for a
// reader.
func isWord(note string) bool {
	return len(note) <= MaxWord && strings.Trim(note, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// InboundError is the error e of a guest without a reason that a guest cannot know.
func InboundError(e *wire.Error) *wire.Error {
	if e == nil || e.Reason == "" || slices.Contains(inboundReasons, e.Reason) {
		return e
	}
	cleaned := *e
	cleaned.Reason = ""
	return &cleaned
}

func inboundBasis(all []wire.Basis) []wire.Basis {
	if all == nil {
		return nil
	}
	kept := make([]wire.Basis, 0, min(len(all), 8)) // more than there are
	for _, b := range all[:cap(kept)] {
		kept = append(kept, wire.Basis(Cut(string(b), MaxWord)))
	}
	return kept
}

func inboundArgv(argv []string) []string {
	var kept []string
	left := maxWords
	for _, a := range argv[:min(len(argv), maxParts)] {
		if left <= 0 {
			break
		}
		a = Cut(a, left)
		left -= len(a)
		kept = append(kept, a)
	}
	return kept
}

// Cut is s without what is beyond most bytes, and without half a character. It keeps nothing of a
// longer s alive.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.Clone(strings.ToValidUTF8(s[:most], ""))
}
