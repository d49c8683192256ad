// Package guestsock serves the unix sockets on which guests call the daemon. Each sandbox has its
// own, in a directory that is mounted into it: one for SSH, one to pass its network device.
//
// A guest keeps one connection waiting; Take returns it. Root in the sandbox can connect as well,
// so the server checks which process calls, keeps the queue short and limits the rate. The package
// knows neither SSH nor sandboxes.
package guestsock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The sockets of a sandbox. The names are short because an address holds 108 bytes.
const (
	SSH = "s"
	Tun = "n" // to pass the network device
)

// maxWaiting bounds the connections that wait for Take. A guest keeps one; more belong to a
// misbehaving guest or to an earlier run of the sandbox.
const maxWaiting = 8

// strangersLogged is the interval between log entries about calls from other processes.
const strangersLogged = 10 * time.Second

// Root in the sandbox can connect as fast as the kernel allows. When calls of other processes than
// the guest have used up their burst, the server pauses between them, so that they cost next to
// nothing.
const (
	strangersRate  = 320 // a second
	strangersBurst = 64
	strangersRest  = 50 * time.Millisecond // one wake-up for many calls: it costs more than a call

	// backlog is how many calls the kernel queues. The guest makes one at a time and waits behind
	// those of other processes: a longer queue would only prolong that wait.
	backlog = 4
)

// ErrClosed is returned by Take and Wait of a closed Server.
var ErrClosed = errors.New("socket closed")

// Server is one socket. Connections wait in a queue until they are taken. Its methods may be
// called concurrently.
type Server struct {
	listener *net.UnixListener
	log      *slog.Logger
	waiting  chan caller
	done     chan struct{}
	wg       sync.WaitGroup

	strangers *rate.Limiter         // rate of calls that are not known to be the guest's
	rest      func(d time.Duration) // returns after d or at Close; tests replace it

	mu     sync.Mutex
	known  bool      // guarded by mu; Admit was called
	pid    int       // guarded by mu; process that may call; 0 means any
	calls  int       // guarded by mu; of other processes, since the last log entry
	logged time.Time // guarded by mu; time of that entry
}

// caller is a connection that waits for Take.
type caller struct {
	conn *net.UnixConn
	pid  int // process that dialed, 0 if unknown
}

// Listen serves the socket called name in dir, and replaces one that an earlier daemon left. dir
// must not be a symbolic link.
func Listen(dir, name string, log *slog.Logger) (*Server, error) {
	s, err := listen(dir, name, log)
	if err == nil {
		s.wg.Go(s.accept)
	}
	return s, err
}

// listen is Listen without the goroutine that accepts.
func listen(dir, name string, log *slog.Logger) (*Server, error) {
	l, err := listenIn(dir, name)
	if err != nil {
		return nil, err
	}
	s := &Server{listener: l, log: log, waiting: make(chan caller, maxWaiting),
		done:      make(chan struct{}),
		strangers: rate.NewLimiter(strangersRate, strangersBurst)}
	s.rest = s.sleep
	return s, nil
}

// Admit sets the only process that may call from now on, and drops waiting connections of others. 0
// admits all.
func (s *Server) Admit(pid int) {
	s.mu.Lock()
	same := s.known && s.pid == pid
	s.known, s.pid = true, pid
	s.mu.Unlock()
	if same {
		return
	}
	for range len(s.waiting) {
		select {
		case c := <-s.waiting:
			s.enqueue(c)
		default:
			return
		}
	}
}

// Admitted reports whether Admit was called.
func (s *Server) Admitted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// PID returns the process that may call; 0 if unknown or if any may.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// clear drops all waiting connections.
func (s *Server) clear() {
	for {
		select {
		case c := <-s.waiting:
			c.conn.Close()
		default:
			return
		}
	}
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as out of descriptors: temporary; the guest waits in the backlog
			s.log.Error("accept guest", "err", err)
			s.rest(100 * time.Millisecond)
			continue
		}
		c := caller{conn, PeerPID(conn)}
		known := s.isGuest(c)
		s.enqueue(c)
		if !known && !s.strangers.Allow() {
			s.rest(strangersRest)
		}
	}
}

func (s *Server) sleep(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.done:
	}
}

// isGuest reports whether c is known to come from the guest.
func (s *Server) isGuest(c caller) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid != 0 && c.pid == s.pid
}

// enqueue adds c to the queue, or drops it if its process may not call. If the queue is full, it
// drops the connection that has waited longest.
func (s *Server) enqueue(c caller) {
	s.mu.Lock()
	want := s.pid
	s.mu.Unlock()
	// Root in the sandbox can connect, too. It cannot present the pinned host key; this check keeps
	// it from occupying the queue.
	if want != 0 && c.pid != 0 && c.pid != want {
		s.stranger(c.pid, want)
		c.conn.Close()
		return
	}
	for {
		select {
		case s.waiting <- c:
			return
		default:
		}
		select {
		case old := <-s.waiting:
			old.conn.Close()
		default:
		}
	}
}

// stranger logs calls of other processes than the guest, at most once per interval.
func (s *Server) stranger(pid, want int) {
	s.mu.Lock()
	s.calls++
	n, due := s.calls, time.Since(s.logged) > strangersLogged
	if due {
		s.logged, s.calls = time.Now(), 0
	}
	s.mu.Unlock()
	if due {
		s.log.Warn("a process that is not the guest called", "pid", pid, "want", want, "calls", n)
	}
}

// Take waits for the next live connection and returns it. The caller closes it.
func (s *Server) Take(ctx context.Context) (*net.UnixConn, error) {
	c, err := s.next(ctx)
	if err != nil {
		return nil, err
	}
	return c.conn, nil
}

// Wait waits for a live connection and leaves it in the queue.
func (s *Server) Wait(ctx context.Context) error {
	c, err := s.next(ctx)
	if err == nil {
		s.enqueue(c)
	}
	return err
}

// ErrGuestEnded is the error of a wait for a guest that has ended.
var ErrGuestEnded = errors.New("guest ended")

// GuestTimeout bounds the wait for the first call of a guest, which comes within milliseconds. It
// exits when it has no keys after 10 s.
const GuestTimeout = 15 * time.Second

// WaitGuest is Wait for the first call of a guest, for GuestTimeout. ended waits until the guest
// has ended, or returns an error; if it returns nil before the call, WaitGuest returns
// ErrGuestEnded. WaitGuest ends its context, and returns after it.
func (s *Server) WaitGuest(ctx context.Context, ended func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, GuestTimeout,
		fmt.Errorf("guest did not call in within %v", GuestTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	wg.Go(func() {
		if ended(ctx) == nil {
			end(ErrGuestEnded)
		}
	})
	return s.Wait(ctx)
}

func (s *Server) next(ctx context.Context) (caller, error) {
	for {
		var c caller
		select {
		case c = <-s.waiting: // even if ctx has ended
		default:
			select {
			case c = <-s.waiting:
			case <-ctx.Done():
				return caller{}, context.Cause(ctx)
			case <-s.done:
				return caller{}, ErrClosed
			}
		}
		if alive(c.conn) {
			return c, nil
		}
		c.conn.Close()
	}
}

// Close stops listening and drops waiting connections. It must be called once.
func (s *Server) Close() {
	close(s.done)
	s.listener.Close()
	s.wg.Wait()
	s.clear()
}

// PeerPID returns the process at the other end of conn, as numbered in this process's PID
// namespace; 0 if unknown.
func PeerPID(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { pid = peerOf(fd) }) // a closed connection has no peer
	return pid
}
