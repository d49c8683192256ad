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
	maxNames = 16384            // names of a sandbox that stand for an address; the one not used for longest gives way
	namesAge = 10 * time.Second // how long the addresses of a name are taken as known
	maxReal  = 32               // addresses of a name that are looked at: a message of DNS has room for thousands
)

// Why a name has no addresses, as programs inside may read it.
var (
	errNoAnswer = errors.New("the name was looked up, and nobody answered")
	errNoLookup = errors.New("the name could not be looked up")
)

// directory gives names addresses of its own, so that a connection tells which name it was meant for.
type directory struct {
	resolve func(ctx context.Context, name string) ([]netip.Addr, error)

	mu     sync.Mutex
	byName map[string]*known     // guarded by mu
	byAddr map[netip.Addr]*known // guarded by mu
	used   list.List             // guarded by mu; of *known, last used first
}

// known is a name that somebody asked for.
type known struct {
	name  string
	addr  netip.Addr // inside, in Names
	real  []netip.Addr
	at    time.Time // when real was true
	place *list.Element
}

func newDirectory(resolve func(context.Context, string) ([]netip.Addr, error)) *directory {
	return &directory{resolve: resolve, byName: make(map[string]*known), byAddr: make(map[netip.Addr]*known)}
}

// addresses returns the real addresses of name, which is canonical, and the one that stands for it inside. No real ones and no error: there is no such name.
func (d *directory) addresses(ctx context.Context, name string) (real []netip.Addr, inside netip.Addr, err error) {
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
		case failed.IsTimeout: // not in its words, which name the servers that this machine asks
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

// addLocked picks an address by the name's hash: after a restart of the daemon the same names get the same addresses, and one that a
// program remembers from before hardly ever leads elsewhere.
func (d *directory) addLocked(name string) *known {
	if len(d.byName) >= maxNames {
		oldest := d.used.Back()
		k := d.used.Remove(oldest).(*known)
		delete(d.byName, k.name)
		delete(d.byAddr, k.addr)
	}
	sum := sha256.Sum256([]byte(name))
	base := binary.BigEndian.Uint32(Names.Masked().Addr().AsSlice())
	room := uint32(1)<<(32-Names.Bits()) - 2 // neither the first nor the last address
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

// name returns the name that inside stands for.
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

// lookUp asks the resolver of this machine, without its search domains.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}
