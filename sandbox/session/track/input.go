package track

import (
	"bytes"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Input records that data is written to the program, which ends a state of waiting for it. Marks
// and looks then find the new state. calls is the number of calls for attention so far.
func (t *Tracker) Input(data []byte, calls uint64, at Moment) News {
	// A shell leaves its prompt only when a line ends, or on Ctrl-C or Ctrl-D.
	ends := bytes.ContainsAny(data, "\r\n\x03\x04")
	t.note(KindInput, at, &With{Ends: ends, Calls: calls})
	t.at = at
	t.called = calls
	switch t.state.Phase {
	case wire.PhaseWaiting, wire.PhaseOpaque:
	case wire.PhasePrompt, wire.PhaseContinuation:
		if !ends {
			return News{}
		}
	case wire.PhaseRunning:
		if !t.state.Listens {
			return News{}
		}
	default:
		return News{}
	}
	t.become(wire.State{Phase: wire.PhaseRunning, Foreground: t.state.Foreground,
		Basis: t.state.Basis})
	return t.tell()
}
