package stdio

import (
	"fmt"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Offered answers a daemon's question whether this guest accepts descriptors. The answer names the
// file that opens terminals, but does not open it: the daemon then has terminals of its own, whose
// flags the sandbox cannot change. A nil Socket accepts none.
func (s *Socket) Offered(q *ssh.Request) {
	var offer wire.Descriptors
	if s == nil || wire.Unmarshal(q.Payload, &offer) != nil {
		_ = q.Reply(false, nil) // other code notices a broken connection
		return
	}
	files := s.Take(offer.Batch)
	CloseAll(files...) // their arrival suffices
	if len(files) != 1 {
		_ = q.Reply(false, nil)
		return
	}
	batch := uint64(wire.NoDescriptors)
	if fd, err := unix.Open("/dev/pts/ptmx", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		if batch, err = s.Pass(fd); err != nil {
			batch = wire.NoDescriptors
		}
	}
	_ = q.Reply(true, wire.Marshal(wire.Descriptors{Batch: batch}))
}

// Unwrap returns the inner request of q with its descriptors, or q itself if it has none. False
// means that q must be rejected.
func (s *Socket) Unwrap(q *ssh.Request) (*ssh.Request, Passed, bool) {
	if q.Type != wire.DescriptorsRequest {
		return q, nil, true
	}
	var req wire.Descriptors
	if s == nil || wire.Unmarshal(q.Payload, &req) != nil {
		return nil, nil, false
	}
	files := Passed(s.Take(req.Batch))
	var want int
	switch req.Request {
	case wire.RequestPty:
		want = 1
	case wire.RequestShell, wire.RequestExec, wire.RequestSubsystem:
		want = 3
	}
	if len(files) != want || want == 0 {
		files.Close()
		return nil, nil, false
	}
	return &ssh.Request{Type: req.Request, Payload: req.Payload}, files, true
}

// Passed are the descriptors that the daemon passed to run a program on: the slave of a terminal,
// or standard input, output and error. Their owner closes them.
type Passed []int

// File returns the descriptor for the program's descriptor n: 0 to 2 are standard input, output and
// error.
func (p Passed) File(n int) int { return p[min(n, len(p)-1)] }

// Write writes to the descriptor on which the program would report an error.
func (p Passed) Write(b []byte) (int, error) { return unix.Write(p[len(p)-1], b) }

// Close closes all. Closing twice, or without any, has no effect.
func (p *Passed) Close() {
	CloseAll(*p...)
	*p = nil
}

// Drains opens the read ends of standard output and error, for output of background children after
// the daemon has closed its ends. Before that only the daemon reads the output.
func (p Passed) Drains() ([]int, error) {
	var drains []int
	for _, fd := range p[1:] {
		// A new description (proc_pid_fd(5)).
		drain, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd),
			unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			CloseAll(drains...)
			return nil, fmt.Errorf("pipe: %w", err)
		}
		drains = append(drains, drain)
	}
	return drains, nil
}
