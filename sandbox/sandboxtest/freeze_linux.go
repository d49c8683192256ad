package sandboxtest

import (
	"net"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Freeze makes a sandbox of a Backend with Options.Freezes stop answering until Unfreeze: its
// connections stay open, and carry nothing either way. Inspect reports the Paused and Halted fields
// of as.
func (b *Backend) Freeze(inst sandbox.Instance, as sandbox.Status) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err == nil {
		in.freezer.freeze(as)
	}
	return err
}

// Unfreeze lets a frozen sandbox continue.
func (b *Backend) Unfreeze(inst sandbox.Instance) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err == nil {
		in.freezer.thaw()
	}
	return err
}

// freezer freezes the connections of a sandbox. The zero value is ready to use.
type freezer struct {
	mu       sync.Mutex
	unfrozen chan struct{}  // guarded by mu; closed by Unfreeze; nil while it runs
	as       sandbox.Status // guarded by mu; reported state while frozen
	conns    []*frozenConn  // guarded by mu
}

func (i *freezer) freeze(as sandbox.Status) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.as = as; i.unfrozen == nil {
		i.unfrozen = make(chan struct{})
	}
}

func (i *freezer) thaw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unfrozen == nil {
		return
	}
	for _, c := range i.conns {
		_, _ = c.Conn.Write(c.sent) // the connection may have ended
		c.sent = nil
	}
	close(i.unfrozen)
	i.unfrozen, i.as = nil, sandbox.Status{}
}

func (i *freezer) status() sandbox.Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.as
}

// over returns a connection on c that freezes with the sandbox.
func (i *freezer) over(c net.Conn) net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := &frozenConn{Conn: c, freezer: i, ended: make(chan struct{})}
	i.conns = append(i.conns, f)
	return f
}

// frozenConn is the daemon's end of a connection to a sandbox that may freeze. While it is frozen,
// written bytes stay in a buffer, as in the kernel's, and reads block.
type frozenConn struct {
	net.Conn
	freezer *freezer
	ending  sync.Once
	ended   chan struct{}
	sent    []byte // guarded by freezer.mu
}

func (f *frozenConn) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.freezer.mu.Lock()
	unfrozen := f.freezer.unfrozen
	f.freezer.mu.Unlock()
	if unfrozen != nil && err == nil {
		select {
		case <-unfrozen:
		case <-f.ended:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (f *frozenConn) Write(p []byte) (int, error) {
	f.freezer.mu.Lock()
	defer f.freezer.mu.Unlock()
	if f.freezer.unfrozen != nil {
		f.sent = append(f.sent, p...)
		return len(p), nil
	}
	return f.Conn.Write(p)
}

func (f *frozenConn) Close() error {
	f.ending.Do(func() { close(f.ended) })
	return f.Conn.Close()
}
