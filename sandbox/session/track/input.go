package track

import (
	"bytes"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Input makes a state that the program is given data for no longer the present one. What it is
// instead is for marks and looks to say. calls counts calls for attention so far.
func (t *Tracker) Input(data []byte, calls uint64, at Moment) News {
	t.at = at
	t.called = calls
	switch t.state.Phase {
	case wire.PhaseWaiting, wire.PhaseOpaque:
	case wire.PhasePrompt, wire.PhaseContinuation:
		// Only what ends a line or a shell takes a shell from its prompt.
		if !bytes.ContainsAny(data, "\r\n\x03\x04") {
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
