package attention

import (
	"slices"
	"sync"
)

// Session is one session as a Watch sees it.
type Session struct {
	Sandbox, Owner, ID string // the sandbox's name, owner and ID
	Name               string
	Drives             bool // the principal may answer
	Brief              Brief
	// Completes Brief, without a request to the sandbox; draws the screen for its last line.
	Need func() Need
}

func (s Session) need() Need {
	n := s.Need()
	n.Sandbox, n.owner, n.id, n.drives = s.Sandbox, s.Owner, s.ID, s.Drives
	return n
}

// Source lists the live sessions that principal may see; those of all principals if it is empty.
type Source func(principal string) []Session

// Board counts changes of sessions' needs, and watchers. Its methods may be called concurrently.
// All but Follow may be called with any lock held: mu is taken last.
type Board struct {
	source Source

	mu      sync.Mutex
	changes uint64        // guarded by mu
	wake    chan struct{} // guarded by mu; closed at the next change; nil while nothing waits
	// Guarded by mu; number by principal; the empty principal watches all sessions.
	watches map[string]int
	// Guarded by mu; closed and replaced when the answer of Watched may change.
	turned chan struct{}
	closed error // guarded by mu; why watches end; nil while the board is open

	fmu     sync.Mutex         // taken before all others
	follows map[string]*asking // guarded by fmu; by principal
}

// NewBoard returns a board for the sessions that source lists.
func NewBoard(source Source) *Board {
	return &Board{source: source, watches: make(map[string]int), turned: make(chan struct{}),
		follows: make(map[string]*asking)}
}

// Close ends all watches with cause.
func (b *Board) Close(cause error) {
	b.mu.Lock()
	b.closed = cause
	b.mu.Unlock()
	b.Change()
}

// Change records that sandboxes, sessions or their needs may have changed.
func (b *Board) Change() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes++
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// Reshare records that the principals who may see a sandbox have changed.
func (b *Board) Reshare() {
	b.Change()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turnLocked()
}

// Watched reports whether one of the principals watches, or a watch of all sessions is open. turned
// is closed when the answer may have changed.
func (b *Board) Watched(principals []string) (watched bool, turned <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	watches := func(principal string) bool { return b.watches[principal] > 0 }
	return watches("") || slices.ContainsFunc(principals, watches), b.turned
}

// List returns the needs of the sessions that principal may see, by sandbox and session. sandbox is
// a name, or empty for all. It may miss that an unwatched session has just begun to ask.
func (b *Board) List(principal, sandbox string) []Need {
	all := []Need{}
	for _, s := range b.source(principal) {
		if sandbox == "" || s.Sandbox == sandbox {
			all = append(all, s.need())
		}
	}
	sortNeeds(all)
	return all
}

// since returns the number of changes. wait is closed at the next change if there was none since n;
// else it is nil. err is the cause of Close.
func (b *Board) since(then uint64) (now uint64, wait <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changes != then || b.closed != nil {
		return b.changes, nil, b.closed
	}
	if b.wake == nil {
		b.wake = make(chan struct{})
	}
	return then, b.wake, nil
}

// count adds by to the number of principal's watches.
func (b *Board) count(principal string, by int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[principal] += by; b.watches[principal] == 0 {
		delete(b.watches, principal)
	}
	b.turnLocked()
}

func (b *Board) turnLocked() {
	close(b.turned)
	b.turned = make(chan struct{})
}
