package session

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// memory is a Terminal in memory. The session's writes are the program's input, and the program's
// output is the session's input. It blocks only on channels, so that tests can use synthetic time.
type memory struct {
	out  chan []byte   // output of the program
	in   chan []byte   // input of the program; without a reader, writes wait
	end  chan struct{} // closed when the program has ended
	once sync.Once
	exit Exit

	mu       sync.Mutex
	rest     []byte        // guarded by mu; output that was not read yet
	deadline chan struct{} // guarded by mu; closed when the write deadline has passed
	timer    *time.Timer   // guarded by mu
	sizes    [][2]int      // guarded by mu
}

func newMemory() *memory {
	return &memory{
		out:      make(chan []byte),
		in:       make(chan []byte, 1024),
		end:      make(chan struct{}),
		deadline: make(chan struct{}),
	}
}

func (m *memory) Read(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rest) == 0 {
		m.mu.Unlock()
		select {
		case b := <-m.out:
			m.mu.Lock()
			m.rest = b
		case <-m.end:
			m.mu.Lock()
			return 0, io.EOF
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

func (m *memory) Write(p []byte) (int, error) {
	m.mu.Lock()
	deadline := m.deadline
	m.mu.Unlock()
	select {
	case <-deadline:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	select {
	case m.in <- append([]byte(nil), p...):
		return len(p), nil
	case <-deadline:
		return 0, os.ErrDeadlineExceeded
	case <-m.end:
		return 0, errors.New("hung up")
	}
}

func (m *memory) SetWriteDeadline(t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer != nil {
		m.timer.Stop()
	}
	select {
	case <-m.deadline:
		m.deadline = make(chan struct{})
	default:
	}
	deadline := m.deadline
	if d := time.Until(t); d <= 0 {
		close(deadline)
	} else {
		m.timer = time.AfterFunc(d, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.deadline == deadline {
				close(deadline)
			}
		})
	}
	return nil
}

func (m *memory) Resize(cols, rows int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sizes = append(m.sizes, [2]int{cols, rows})
	return nil
}

func (m *memory) Wait() Exit { <-m.end; return m.exit }

func (m *memory) Close() error {
	m.die(Exit{Signal: "HUP"})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer != nil {
		m.timer.Stop()
	}
	return nil
}

func (m *memory) die(e Exit) {
	m.once.Do(func() {
		m.exit = e
		close(m.end)
	})
}

func (m *memory) print(s string) { m.out <- []byte(s) }

// memorySet is a Set of terminals in memory. It has the last one that was started.
type memorySet struct {
	*Set
	t    *testing.T
	mu   sync.Mutex
	term []*memory
}

func newMemorySet(t *testing.T, opt Options) *memorySet {
	m := &memorySet{t: t}
	opt.Start = func(ctx context.Context, start Start) (Terminal, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.term = append(m.term, newMemory())
		return m.term[len(m.term)-1], nil
	}
	m.Set = NewSet(opt)
	return m
}

func (m *memorySet) last() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term[len(m.term)-1]
}

func (m *memorySet) close() {
	m.t.Helper()
	if err := m.Close(m.t.Context()); err != nil {
		m.t.Errorf("close: %v", err)
	}
}

// pipe returns a connection in memory with a buffer. net.Pipe has none, and both sides of a stream
// write before they read.
func pipe() (a, b net.Conn) {
	ab, ba := newBuffer(), newBuffer()
	return &pipeEnd{r: ba, w: ab}, &pipeEnd{r: ab, w: ba}
}

type buffer struct {
	mu   sync.Mutex
	data []byte
	wake chan struct{}
	over bool
}

func newBuffer() *buffer { return &buffer{wake: make(chan struct{})} }

type pipeEnd struct {
	net.Conn
	r, w *buffer
}

func (b *buffer) fire() {
	close(b.wake)
	b.wake = make(chan struct{})
}

func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.fire()
}

func (e *pipeEnd) Read(p []byte) (int, error) {
	for {
		e.r.mu.Lock()
		if len(e.r.data) > 0 {
			n := copy(p, e.r.data)
			e.r.data = e.r.data[n:]
			e.r.fire()
			e.r.mu.Unlock()
			return n, nil
		}
		over, wake := e.r.over, e.r.wake
		e.r.mu.Unlock()
		if over {
			return 0, io.EOF
		}
		<-wake
	}
}

func (e *pipeEnd) Write(p []byte) (int, error) {
	for {
		e.w.mu.Lock()
		if e.w.over {
			e.w.mu.Unlock()
			return 0, io.ErrClosedPipe
		}
		if len(e.w.data) < 256<<10 {
			e.w.data = append(e.w.data, p...)
			e.w.fire()
			e.w.mu.Unlock()
			return len(p), nil
		}
		wake := e.w.wake
		e.w.mu.Unlock()
		<-wake
	}
}

func (e *pipeEnd) Close() error {
	e.r.close()
	e.w.close()
	return nil
}

// side is a client of a memorySet.
type side struct {
	*wire.Client
	t      *testing.T
	served chan error

	mu     sync.Mutex
	output []byte
	log    []any // offsets of output, and events, in order
}

func (m *memorySet) dial(a wire.Attach) *side {
	m.t.Helper()
	s, err := m.try(a, true)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *memorySet) try(a wire.Attach, trusted bool) (*side, error) {
	near, far := pipe()
	s := &side{t: m.t, served: make(chan error, 1)}
	go func() { s.served <- m.Serve(context.Background(), far, trusted) }()
	c, err := wire.Open(m.t.Context(), near, a, wire.Handler{
		Output: func(off uint64, p []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.output = append(s.output, p...)
			s.log = append(s.log, off+uint64(len(p)))
		},
		Event: func(e wire.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.log = append(s.log, e)
		},
	})
	if err != nil {
		<-s.served
		return nil, err
	}
	s.Client = c
	return s, nil
}

// leave ends the stream and waits until the session has processed that.
func (s *side) leave() {
	s.Client.Close()
	<-s.served
}

func (s *side) events(kind wire.EventKind) (list []wire.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.log {
		if e, ok := x.(wire.Event); ok && e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

func (s *side) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.output)
}

func agent(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Agent, Rights: wire.RightDrive}
}

func human(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Person, Rights: wire.RightDrive}
}

func watcher(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Person, Rights: wire.RightWatch}
}

func codeOf(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// contains fails the test if text does not contain what.
func contains(t *testing.T, text, what string) {
	t.Helper()
	if !strings.Contains(text, what) {
		t.Errorf("%q does not say %q", text, what)
	}
}
