package egress

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	nic = tcpip.NICID(1)

	timeWait = time.Second // inside: both ends of the connection are on this machine

	maxTCPBegun = 512 // that are being dialled; for more, the sandbox repeats its SYN
	// Flows of a sandbox, and at most half of its connections; the longest idle one is dropped.
	maxUDP = 512
)

// Stack is the network of one sandbox. Its methods are safe for concurrent use.
type Stack struct {
	*gate
	device *device // nil in packet tests
	link   *link
	net    *stack.Stack
	asking chan struct{} // slots for concurrent DNS queries

	reader sync.WaitGroup
	once   sync.Once     // of Close
	gone   chan struct{} // closed when the device has ended

	// Guarded by gate.mu.
	streams map[stack.TransportEndpointID]*datagrams // UDP
	share   int                                      // of buffers, as set in the stack
}

// Start takes ownership of tun, also on an error, and serves it until Close. tun must be an
// attached TUN device with IFF_VNET_HDR; otherwise Start fails. It must also have IFF_NO_PI and an
// MTU of 1500, which cannot be checked here. Start sets the offloads. If the device disappears, all
// connections end; the caller must still call Close.
func Start(tun *os.File, opts Options) (*Stack, error) {
	d, err := openDevice(tun)
	if err != nil {
		return nil, err
	}
	s, err := newStack(opts, d)
	if err != nil {
		d.close()
		return nil, err
	}
	s.device = d
	s.reader.Go(func() {
		defer close(s.gone)
		err := d.read(s.link.deliver)
		s.mu.Lock()
		closing := s.closed
		s.mu.Unlock()
		if !closing {
			s.log.Error("network device of a sandbox ended", "err", err)
			s.cancel(fmt.Errorf("the network device ended: %w", err))
		}
	})
	return s, nil
}

// newStack returns a stack whose link writes to out. Packets come in by link.deliver.
func newStack(opts Options, out packets) (*Stack, error) {
	g, ctx, err := newGate(opts)
	if err != nil {
		return nil, err
	}
	s := &Stack{
		gate:    g,
		asking:  make(chan struct{}, dnsInFlight),
		gone:    make(chan struct{}),
		streams: make(map[stack.TransportEndpointID]*datagrams),
		net: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
		}),
	}
	s.link = &link{out: out, refused: func(proto string, dst netip.AddrPort, why string) {
		s.event(Event{Kind: KindRefused, Proto: proto, Host: dst.Addr().String(), Addr: dst,
			Why: why})
	}}
	if err := s.configure(); err != nil {
		s.net.Destroy()
		return nil, err
	}
	forwarder := tcp.NewForwarder(s.net, bufferDefault, maxTCPBegun,
		func(r *tcp.ForwarderRequest) { s.acceptTCP(ctx, r) })
	s.net.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	s.net.SetTransportProtocolHandler(udp.ProtocolNumber,
		func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
			s.acceptUDP(ctx, id, pkt)
			return true
		})
	return s, nil
}

// configure creates one interface that owns every address, and answers from it.
func (s *Stack) configure() error {
	if err := s.setShare(bufferMax); err != nil {
		return err
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{
		ptr(tcpip.TCPSACKEnabled(true)),
		ptr(tcpip.TCPModerateReceiveBufferOption(true)),
		ptr(tcpip.TCPTimeWaitTimeoutOption(timeWait)),
	} {
		if err := s.net.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("egress: option %T: %s", option, err)
		}
	}
	if err := s.net.CreateNIC(nic, s.link); err != nil {
		return fmt.Errorf("egress: interface: %s", err)
	}
	if err := s.net.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("egress: interface: %s", err)
	}
	if err := s.net.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("egress: interface: %s", err)
	}
	s.net.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return nil
}

func ptr[T any](v T) *T { return &v }

// setShare limits the buffers of new connections.
func (s *Stack) setShare(share int) error {
	for _, option := range []tcpip.SettableTransportProtocolOption{
		ptr(tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin,
			Default: min(bufferDefault, share), Max: share}),
		ptr(tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: min(bufferDefault, share),
			Max: share}),
	} {
		if err := s.net.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("egress: option %T: %s", option, err)
		}
	}
	s.share = share
	return nil
}

// shareOut returns the buffer limit for the current number of connections.
func (s *Stack) shareOut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share := bufferShare(len(s.flows)); share != s.share {
		if err := s.setShare(share); err != nil {
			s.log.Error("setting the buffer limit failed", "err", err)
		}
	}
	return s.share
}

// Done is closed when the device has ended, by itself or by Close.
func (s *Stack) Done() <-chan struct{} { return s.gone }

// Settle waits until all datagrams that the sandbox sent before the call are allowed or blocked.
// Their senders do not wait for an answer, and may have ended since. It returns when ctx ends at
// the latest.
func (s *Stack) Settle(ctx context.Context) {
	if s.device != nil {
		s.device.settle(ctx)
	}
}

// Close ends all connections with a reset, waits for all goroutines, and closes the descriptor.
// Later packets of the sandbox get no answer. A second Close does nothing.
func (s *Stack) Close() error {
	s.once.Do(s.close)
	return nil
}

func (s *Stack) close() {
	s.end()
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	// A connection that was dialled meanwhile may still be before its handshake.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for waiting := true; waiting; {
		for _, e := range s.net.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-ended:
			waiting = false
		case <-again.C:
		}
	}
	if s.device != nil {
		s.device.close()
	}
	s.reader.Wait()
	s.net.Destroy()
}

func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(a.As4()), port)
}
