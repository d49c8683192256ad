package stdio

import (
	"fmt"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Offered answers a daemon's request that asks whether this guest takes descriptors. The answer
// names the file that opens terminals and does not open it: who opens it has a terminal of their
// own, whose flags nobody here can change. A nil Socket takes none.
func (s *Socket) Offered(q *ssh.Request) {
	var offer wire.Descriptors
	if s == nil || wire.Unmarshal(q.Payload, &offer) != nil {
		_ = q.Reply(false, nil) // a broken connection is noticed elsewhere
		return
	}
	files := s.Take(offer.Batch)
	CloseAll(files...) // the probe has come, which is all
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

// Unwrap returns the request that q is: where it comes with descriptors, the one that it names, and
// these. False means that q is to be refused.
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

// Passed are the descriptors that the daemon passed for a program to run on: the slave of a
// terminal, or standard input, output and error. Their owner closes them.
type Passed []int

// File is what the program's descriptor n is: 0 to 2 are standard input, output and error.
func (p Passed) File(n int) int { return p[min(n, len(p)-1)] }

// Write writes where the program would report an error.
func (p Passed) Write(b []byte) (int, error) { return unix.Write(p[len(p)-1], b) }

// Close closes all. Closing twice, or none, does nothing.
func (p *Passed) Close() {
	CloseAll(*p...)
	*p = nil
}

// Drains opens the reading ends of standard output and error, for what background children write
// when the daemon has let go. Nobody reads them before that: the output is the daemon's.
func (p Passed) Drains() ([]int, error) {
	var drains []int
	for _, fd := range p[1:] {
		drain, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // anew (proc_pid_fd(5))
		if err != nil {
			CloseAll(drains...)
			return nil, fmt.Errorf("pipe: %w", err)
		}
		drains = append(drains, drain)
	}
	return drains, nil
}
