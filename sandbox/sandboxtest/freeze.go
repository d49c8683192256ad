package sandboxtest

import (
	"net"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Freeze keeps a sandbox of a Backend with Options.Freezes from answering until Thaw: its
// connections live, and nothing comes from it or reaches it. Inspect says that it is paused or
// halted as in as.
func (b *Backend) Freeze(inst sandbox.Instance, as sandbox.Status) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	bx, err := b.lookupLocked(inst)
	if err == nil {
		bx.ice.freeze(as)
	}
	return err
}

// Thaw lets a sandbox that is frozen go on.
func (b *Backend) Thaw(inst sandbox.Instance) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	bx, err := b.lookupLocked(inst)
	if err == nil {
		bx.ice.thaw()
	}
	return err
}

// ice is what freezes the connections to a sandbox. The zero value is ready.
type ice struct {
	mu     sync.Mutex
	thawed chan struct{}  // guarded by mu; closed when it goes on; nil while it runs
	as     sandbox.Status // guarded by mu; how it is frozen
	conns  []*frozenBytes // guarded by mu
}

func (i *ice) freeze(as sandbox.Status) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.as = as; i.thawed == nil {
		i.thawed = make(chan struct{})
	}
}

func (i *ice) thaw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.thawed == nil {
		return
	}
	for _, c := range i.conns {
		_, _ = c.Conn.Write(c.sent) // of a connection that has ended
		c.sent = nil
	}
	close(i.thawed)
	i.thawed, i.as = nil, sandbox.Status{}
}

func (i *ice) status() sandbox.Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.as
}

// over is c, which freezes with the sandbox.
func (i *ice) over(c net.Conn) net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := &frozenBytes{Conn: c, ice: i, ended: make(chan struct{})}
	i.conns = append(i.conns, f)
	return f
}

// frozenBytes is the daemon's end of a connection to a sandbox that may freeze: what is sent then
// stays in a buffer, as in the kernel's, and nothing is read.
type frozenBytes struct {
	net.Conn
	ice    *ice
	ending sync.Once
	ended  chan struct{}
	sent   []byte // guarded by ice.mu
}

func (f *frozenBytes) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.ice.mu.Lock()
	thawed := f.ice.thawed
	f.ice.mu.Unlock()
	if thawed != nil && err == nil {
		select {
		case <-thawed:
		case <-f.ended:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (f *frozenBytes) Write(p []byte) (int, error) {
	f.ice.mu.Lock()
	defer f.ice.mu.Unlock()
	if f.ice.thawed != nil {
		f.sent = append(f.sent, p...)
		return len(p), nil
	}
	return f.Conn.Write(p)
}

func (f *frozenBytes) Close() error {
	f.ending.Do(func() { close(f.ended) })
	return f.Conn.Close()
}
