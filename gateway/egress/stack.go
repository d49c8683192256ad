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

	timeWait = time.Second // inside: both ends of that connection are on this machine

	maxTCPBegun = 512 // that are being dialled; the sandbox asks again for more
	maxUDP      = 512 // flows of a sandbox, and half of its connections; the one that is idle for longest gives way
)

// Stack is the network of one sandbox. Its methods may be called at once.
type Stack struct {
	*gate
	device *device // nil in tests of packets
	link   *link
	net    *stack.Stack
	asking chan struct{} // slots for queries of DNS under way

	reader sync.WaitGroup
	once   sync.Once     // of Close
	gone   chan struct{} // closed when the device has ended

	// Guarded by gate.mu.
	streams map[stack.TransportEndpointID]*datagrams // UDP
	share   int                                      // of buffers, as the stack knows it
}

// Start takes tun, also when it fails, and serves it until Close. It has to be a TUN device with IFF_VNET_HDR, attached by whoever
// opened it; anything else is an error. That it has IFF_NO_PI and MTU 1500 cannot be seen from here. Offloads are set here. A device that goes away ends all connections;
// the Stack still wants its Close.
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
			s.log.Error("a sandbox's network device ended", "error", err)
			s.cancel(fmt.Errorf("the network device ended: %w", err))
		}
	})
	return s, nil
}

// newStack makes the stack of a link that writes to out. Packets come in by link.deliver.
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
		s.event(Event{Kind: KindRefused, Proto: proto, Host: dst.Addr().String(), Addr: dst, Why: why})
	}}
	if err := s.configure(); err != nil {
		s.net.Destroy()
		return nil, err
	}
	forwarder := tcp.NewForwarder(s.net, bufferDefault, maxTCPBegun, func(r *tcp.ForwarderRequest) { s.acceptTCP(ctx, r) })
	s.net.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	s.net.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		s.acceptUDP(ctx, id, pkt)
		return true
	})
	return s, nil
}

// configure makes one interface that takes every address for its own, and answers from it.
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

// setShare bounds the buffers of connections from now on.
func (s *Stack) setShare(share int) error {
	for _, option := range []tcpip.SettableTransportProtocolOption{
		ptr(tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: min(bufferDefault, share), Max: share}),
		ptr(tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: min(bufferDefault, share), Max: share}),
	} {
		if err := s.net.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("egress: option %T: %s", option, err)
		}
	}
	s.share = share
	return nil
}

// shareOut returns how large the buffers of a connection may be, as many as there are now.
func (s *Stack) shareOut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share := bufferShare(len(s.flows)); share != s.share {
		if err := s.setShare(share); err != nil {
			s.log.Error("buffers cannot be bounded", "error", err)
		}
	}
	return s.share
}

// Done is closed when the device has ended, by itself or by Close.
func (s *Stack) Done() <-chan struct{} { return s.gone }

// Settle waits until the policy's word on every datagram that the sandbox sent before the call is known: nobody waits for an answer to those, and
// whoever sent one may have ended since. It returns when ctx ends at the latest.
func (s *Stack) Settle(ctx context.Context) {
	if s.device != nil {
		s.device.settle(ctx)
	}
}

// Close ends every connection with a reset, waits for all that was started, and closes the descriptor. What the sandbox sends afterwards
// gets no answer. A second Close does nothing.
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
	// A connection that had been dialled as the others were ended still has its handshake before it.
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
