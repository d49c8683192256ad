package egress

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// Names of a sandbox with an address; the least recently used is dropped.
	maxNames = 16384
	namesAge = 10 * time.Second // how long the addresses of a name are cached
	// Addresses of a name that are used; a DNS message has room for thousands.
	maxReal = 32
)

// Why a name has no addresses, for programs in the sandbox.
var (
	errNoAnswer = errors.New("name lookup timed out")
	errNoLookup = errors.New("name lookup failed")
)

// directory gives each name an address of its own, so that a connection's address identifies the
// name.
type directory struct {
	resolve func(ctx context.Context, name string) ([]netip.Addr, error)

	mu     sync.Mutex
	byName map[string]*known     // guarded by mu
	byAddr map[netip.Addr]*known // guarded by mu
	used   list.List             // guarded by mu; of *known, most recently used first
}

// known is a name that was looked up.
type known struct {
	name  string
	addr  netip.Addr // inside, in Names
	real  []netip.Addr
	at    time.Time // when real was looked up
	place *list.Element
}

func newDirectory(resolve func(context.Context, string) ([]netip.Addr, error)) *directory {
	return &directory{resolve: resolve, byName: make(map[string]*known),
		byAddr: make(map[netip.Addr]*known)}
}

// addresses returns the real addresses of name, which is canonical, and the one that represents it
// inside. If there are none and no error, the name does not exist.
func (d *directory) addresses(ctx context.Context, name string) (real []netip.Addr,
	inside netip.Addr, err error) {
	d.mu.Lock()
	if k := d.byName[name]; k != nil && time.Since(k.at) < namesAge {
		d.used.MoveToFront(k.place)
		real, inside = k.real, k.addr
	}
	d.mu.Unlock()
	if inside.IsValid() {
		return real, inside, nil
	}
	real, err = d.resolve(ctx, name)
	if failed, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case failed.IsNotFound:
			err = nil
		case failed.IsTimeout: // the error's text has the servers that this machine uses
			err = errNoAnswer
		default:
			err = errNoLookup
		}
	}
	if err != nil || len(real) == 0 {
		return nil, netip.Addr{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.byName[name]
	if k == nil {
		k = d.addLocked(name)
	}
	k.real, k.at = slices.Clone(real[:min(len(real), maxReal)]), time.Now()
	d.used.MoveToFront(k.place)
	return k.real, k.addr, nil
}

// addLocked picks an address by the name's hash. After a restart of the daemon, names get the same
// addresses, and one that a program remembers hardly ever leads elsewhere. The caller holds mu.
func (d *directory) addLocked(name string) *known {
	if len(d.byName) >= maxNames {
		oldest := d.used.Back()
		k := d.used.Remove(oldest).(*known)
		delete(d.byName, k.name)
		delete(d.byAddr, k.addr)
	}
	sum := sha256.Sum256([]byte(name))
	base := binary.BigEndian.Uint32(Names.Masked().Addr().AsSlice())
	room := uint32(1)<<(32-Names.Bits()) - 2 // without the first and the last address
	at := binary.BigEndian.Uint32(sum[:]) % room
	for {
		var four [4]byte
		binary.BigEndian.PutUint32(four[:], base+1+at)
		addr := netip.AddrFrom4(four)
		if d.byAddr[addr] == nil {
			k := &known{name: name, addr: addr}
			k.place = d.used.PushFront(k)
			d.byName[name], d.byAddr[addr] = k, k
			return k
		}
		at = (at + 1) % room
	}
}

// name returns the name that inside represents.
func (d *directory) name(inside netip.Addr) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.byAddr[inside]
	if k == nil {
		return "", false
	}
	d.used.MoveToFront(k.place)
	return k.name, true
}

// lookUp uses the resolver of this machine, without its search domains.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}
