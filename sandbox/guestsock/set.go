package guestsock

import (
	"log/slog"
	"sync"
)

// Set is the sockets of all sandboxes. The zero value is not usable; see NewSet. Its methods may be
// called concurrently.
type Set struct {
	dir func(id string) string
	log *slog.Logger

	mu      sync.Mutex
	closed  bool            // guarded by mu
	servers map[key]*Server // guarded by mu
}

type key struct{ id, name string }

// NewSet returns a Set without sockets. dir returns the directory of a sandbox's sockets.
func NewSet(dir func(id string) string, log *slog.Logger) *Set {
	return &Set{dir: dir, log: log, servers: make(map[key]*Server)}
}

// Open returns the socket called name of the sandbox id, listening. Guests redial within 250 ms
// when a daemon takes over.
func (s *Set) Open(id, name string) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if server := s.servers[key{id, name}]; server != nil {
		return server, nil
	}
	server, err := Listen(s.dir(id), name, s.log.With("sandbox", id))
	if err != nil {
		return nil, err
	}
	s.servers[key{id, name}] = server
	return server, nil
}

// OpenGuest opens the sockets of a guest, with one for its network device if tun is true, and
// returns the one for SSH. Shut closes them, also after an error.
func (s *Set) OpenGuest(id string, tun bool) (*Server, error) {
	if tun {
		if _, err := s.Open(id, Tun); err != nil {
			return nil, err
		}
	}
	return s.Open(id, SSH)
}

// PID returns the process that may call the SSH socket of a sandbox; 0 if unknown.
func (s *Set) PID(id string) int {
	s.mu.Lock()
	server := s.servers[key{id, SSH}]
	s.mu.Unlock()
	if server == nil {
		return 0
	}
	return server.PID()
}

// IsOpen reports whether any socket of a sandbox is open.
func (s *Set) IsOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers[key{id, SSH}] != nil || s.servers[key{id, Tun}] != nil
}

// Shut closes the sockets of a sandbox with their waiting connections. Open opens them again.
func (s *Set) Shut(id string) {
	for _, name := range []string{SSH, Tun} {
		s.mu.Lock()
		server := s.servers[key{id, name}]
		delete(s.servers, key{id, name})
		s.mu.Unlock()
		if server != nil {
			server.Close()
		}
	}
}

// Close closes all sockets permanently.
func (s *Set) Close() {
	s.mu.Lock()
	all := s.servers
	s.closed, s.servers = true, nil
	s.mu.Unlock()
	for _, server := range all {
		server.Close()
	}
}
