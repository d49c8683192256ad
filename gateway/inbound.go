package gateway

import (
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What a guest says of its sessions is kept by the daemon, for many sessions and for long, and goes into records, lists and
// status lines. A guest is whatever root in the sandbox makes of it: here its words are cut to what an honest one says at most.
const (
	maxWord  = 256     // of who somebody is, an op, a signal
	maxPath  = 4 << 10 // of a path or a line (PATH_MAX)
	maxWords = 8 << 10 // of a command's text or arguments
	maxParts = 256     // of a list
)

// inboundEvent is e, of a guest, with what it may hold.
func inboundEvent(e wire.Event) wire.Event {
	e.Kind = wire.EventKind(cut(string(e.Kind), maxWord))
	e.By, e.Keyboard, e.ID, e.Op = cut(e.By, maxWord), cut(e.Keyboard, maxWord), cut(e.ID, maxWord), cut(e.Op, maxWord)
	e.Why = wire.Ended(cut(string(e.Why), maxWord))
	e.Text = cut(e.Text, maxWords)
	if e.State != nil {
		st := inboundState(*e.State)
		e.State = &st
	}
	return e
}

// inboundState is st, of a guest, with what it may hold.
func inboundState(st wire.State) wire.State {
	st.Phase, st.Want = wire.Phase(cut(string(st.Phase), maxWord)), wire.Want(cut(string(st.Want), maxWord))
	st.Signal, st.Attention = cut(st.Signal, maxWord), cut(st.Attention, maxWord)
	st.Reason, st.Cwd, st.Prompt, st.LastLine = cut(st.Reason, maxPath), cut(st.Cwd, maxPath), cut(st.Prompt, maxPath), cut(st.LastLine, maxPath)
	if st.Foreground != nil {
		st.Foreground = &wire.Process{Pid: st.Foreground.Pid, Argv: inboundArgv(st.Foreground.Argv)}
	}
	st.Basis, st.Disputed = inboundBasis(st.Basis), inboundBasis(st.Disputed)
	return st
}

// inboundInfo is i, of a guest, with what it may hold.
func inboundInfo(i wire.SessionInfo) wire.SessionInfo {
	i.Name, i.Keyboard, i.Private = cut(i.Name, maxWord), cut(i.Keyboard, maxWord), cut(i.Private, maxWord)
	i.State = inboundState(i.State)
	i.Argv = inboundArgv(i.Argv)
	i.Parties = nil // the daemon knows who is attached
	return i
}

// inboundReasons are the reasons of a loss that a guest can know. The others are the daemon's to give.
var inboundReasons = []string{wire.LostShell, wire.LostForgotten, wire.LostPartly}

// daemonReasons are those that only the daemon knows. oom_killed is a guest's note, too.
var daemonReasons = []string{wire.LostStopped, wire.LostKilled, wire.LostEngine, wire.LostHost, wire.LostGuest, wire.LostRemoved,
	wire.LostPaused, wire.LostRecord, wire.LostGateway, wire.LostDetached}

// inboundReply removes from r, of a guest, the reasons that a guest cannot know, and reports whether there were any.
func inboundReply(r *wire.Reply) (changed bool) {
	said := r.Error
	r.Error = inboundError(said)
	changed = r.Error != said
	if res := r.Result; res != nil {
		res.Error = inboundError(res.Error)
		res.Notes = slices.DeleteFunc(res.Notes, func(n string) bool { return !isWord(n) || slices.Contains(daemonReasons, n) })
	}
	return changed
}

// isWord reports whether a note of a guest is one of the protocol's words, and no text for whoever reads it.
func isWord(note string) bool {
	return len(note) <= maxWord && strings.Trim(note, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// inboundError is e, of a guest, without a reason that a guest cannot know.
func inboundError(e *wire.Error) *wire.Error {
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
		kept = append(kept, wire.Basis(cut(string(b), maxWord)))
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
		a = cut(a, left)
		left -= len(a)
		kept = append(kept, a)
	}
	return kept
}

// cut is s without what is beyond most bytes, and without half a character. It keeps nothing of a longer s alive.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.Clone(strings.ToValidUTF8(s[:most], ""))
}
