package screen

import "bytes"

// Status is what a program says that it is doing, in the words of the Program Status Protocol (OSC
// 7501, revision 0.4), which agent programs speak. It is the program's word and nothing else:
// whatever it prints may say so.
type Status string

// The states of a program.
const (
	StatusIdle    Status = "idle"    // at rest, for the next task
	StatusWorking Status = "working" //
	StatusBlocked Status = "blocked" // it cannot go on until a person acts
	StatusDone    Status = "done"    // at rest; it has finished what it was asked to do
	StatusError   Status = "error"   // at rest; it has failed
)

// Status is what the program last said of itself as a whole, empty when it said nothing or took it
// back. count grows with every word of it, so that a reader sees a repeated one, too.
func (s *Screen) Status() (status Status, count uint64) { return s.status, s.statuses }

// report takes an OSC 7501. What a program says of its parts (id=) is not kept: the whole has a
// state of its own.
func (s *Screen) report(p []byte) {
	if bytes.HasPrefix(p, []byte("?")) {
		// Programs ask first, and say nothing to a terminal that does not answer.
		s.answer("\x1b]7501;?\x1b\\")
		return
	}
	var state Status
	for pair := range bytes.SplitSeq(p, []byte(":")) {
		switch key, value, _ := bytes.Cut(pair, []byte("=")); string(key) {
		case "state":
			state = Status(value)
		case "id":
			return
		}
	}
	switch state {
	case "clear":
		state = ""
	case StatusIdle, StatusWorking, StatusBlocked, StatusDone, StatusError:
	default: // of a later revision
		return
	}
	s.status, s.statuses = state, s.statuses+1
}
