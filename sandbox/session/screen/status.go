package screen

import "bytes"

// Status is what a program says it is doing, in the words of the Program Status Protocol (OSC 7501,
// revision 0.4), which agent programs use. It is only a claim: any output may contain it.
type Status string

// The states of a program.
const (
	StatusIdle    Status = "idle"    // at rest, ready for the next task
	StatusWorking Status = "working" //
	StatusBlocked Status = "blocked" // it cannot continue until a person acts
	StatusDone    Status = "done"    // at rest; it has finished its task
	StatusError   Status = "error"   // at rest; it has failed
)

// Status returns the last status of the program as a whole, or "" if it has set none or cleared it.
// count grows with every statement, so that a reader detects a repeated one.
func (s *Screen) Status() (status Status, count uint64) { return s.status, s.statuses }

// report handles an OSC 7501. It ignores statements about parts of a program (id=), because the
// whole program has its own status.
func (s *Screen) report(p []byte) {
	if bytes.HasPrefix(p, []byte("?")) {
		// Programs query first, and send no status to a terminal that does not answer.
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
	default: // from a later revision
		return
	}
	s.status, s.statuses = state, s.statuses+1
}
