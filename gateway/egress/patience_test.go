package egress

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A connection may be closed by one goroutine while another writes; there is no timeout for later
// data.
func TestPatienceEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var refused []Event
		for range 20 {
			g := &gate{policy: policy(t, ModeAllowlist, "public.test"),
				opts: Options{Event: func(e Event) {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, e)
				}}}
			_, end := context.WithCancelCause(t.Context())
			f := &flow{proto: "tcp", name: "public.test", port: 80, end: end,
				addr: netip.MustParseAddrPort("203.0.113.10:80")}
			near, far := net.Pipe()
			p := &passage{Conn: near, flow: f, inspection: g.inspect(f, make(chan struct{})),
				over: func() { near.Close() }}
			var wg sync.WaitGroup
			wg.Go(func() { p.Write([]byte("G")) })
			wg.Go(func() { p.Close() })
			wg.Wait()
			p.Write([]byte("E"))
			far.Close()
		}
		<-time.After(2 * openingTimeout)
		mu.Lock()
		defer mu.Unlock()
		if len(refused) != 0 {
			t.Errorf("connections that were closed are refused: %+v", refused)
		}
	})
}
