package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 4 << 20
	timeWait      = time.Second // inside: both ends of that connection are on this machine

	maxTCP      = 4096 // connections of a sandbox; more are refused
	maxTCPBegun = 512  // that are being dialled; the sandbox asks again for more
	maxUDP      = 512  // flows of a sandbox; the one that is idle for longest gives way
)

// Causes with which connections end, and what their last event says.
var (
	errClosed  = errors.New("the sandbox's network was closed")
	errPolicy  = errors.New("no longer allowed")
	errEvicted = errors.New("too many flows at once")
	errIdle    = errors.New("idle")
)

// Stack is the network of one sandbox. Its methods may be called at once.
type Stack struct {
	opts   Options
	log    *slog.Logger
	device *device // nil in tests of packets
	link   *link
	net    *stack.Stack
	names  *directory
	own    ownAddresses
	asking chan struct{} // slots for queries of DNS under way

	cancel context.CancelCauseFunc // ends every connection
	wg     sync.WaitGroup          // of all goroutines but the reader
	reader sync.WaitGroup
	once   sync.Once     // of Close
	gone   chan struct{} // closed when the device has ended

	mu      sync.Mutex
	policy  *Policy                                  // guarded by mu
	closed  bool                                     // guarded by mu: nothing new begins
	flows   map[*flow]struct{}                       // guarded by mu; TCP
	streams map[stack.TransportEndpointID]*datagrams // guarded by mu; UDP
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
	if opts.Policy == nil {
		return nil, errors.New("egress: a stack needs a policy")
	}
	if opts.Resolve == nil {
		opts.Resolve = lookUp
	}
	if opts.Dial == nil {
		opts.Dial = new(net.Dialer).DialContext
	}
	if opts.Own == nil {
		opts.Own = OwnAddresses
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stack{
		opts:    opts,
		log:     opts.Log,
		names:   newDirectory(opts.Resolve),
		own:     ownAddresses{ask: opts.Own},
		asking:  make(chan struct{}, dnsInFlight),
		gone:    make(chan struct{}),
		policy:  opts.Policy,
		flows:   make(map[*flow]struct{}),
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
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	forwarder := tcp.NewForwarder(s.net, 0, maxTCPBegun, func(r *tcp.ForwarderRequest) { s.acceptTCP(ctx, r) })
	s.net.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	s.net.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		s.acceptUDP(ctx, id, pkt)
		return true
	})
	return s, nil
}

// configure makes one interface that takes every address for its own, and answers from it.
func (s *Stack) configure() error {
	for _, option := range []tcpip.SettableTransportProtocolOption{
		ptr(tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}),
		ptr(tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}),
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

// SetPolicy makes p hold for what is open too: connections that it does not allow end with a reset.
func (s *Stack) SetPolicy(p *Policy) {
	own := s.own.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = p
	for f := range s.flows {
		f.holdLocked(p, own)
	}
	for _, d := range s.streams {
		d.holdLocked(p, own)
	}
}

// Done is closed when the device has ended, by itself or by Close.
func (s *Stack) Done() <-chan struct{} { return s.gone }

// current returns the policy that holds now.
func (s *Stack) current() *Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

// Close ends every connection with a reset, waits for all that was started, and closes the descriptor. What the sandbox sends afterwards
// gets no answer. A second Close does nothing.
func (s *Stack) Close() error {
	s.once.Do(s.close)
	return nil
}

func (s *Stack) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
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

// begin says whether something new may start; whoever it told so calls wg.Done after.
func (s *Stack) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

func (s *Stack) event(e Event) {
	if s.opts.Event != nil {
		e.Time = time.Now()
		s.opts.Event(e)
	}
}

func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(a.As4()), port)
}
