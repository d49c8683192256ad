package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	udpIdle  = 60 * time.Second // of a flow
	udpQueue = 64               // datagrams that wait for the dial, or for room; more are lost
)

// datagrams is one UDP flow: one port of the sandbox and one target.
type datagrams struct {
	flow
	id    stack.TransportEndpointID
	first []byte       // IP header and eight bytes, for an ICMP error
	queue chan []byte  // from the sandbox
	used  atomic.Int64 // Unix time of the last datagram, in nanoseconds
}

// acceptUDP takes one datagram. The goroutine that reads packets calls it, so it must not block.
func (s *Stack) acceptUDP(ctx context.Context, id stack.TransportEndpointID,
	pkt *stack.PacketBuffer) {
	head := header.UDP(pkt.TransportHeader().Slice())
	size := int(head.Length()) - header.UDPMinimumSize
	if size < 0 || size > pkt.Data().Size() {
		return
	}
	asked := addrPort(id.LocalAddress, id.LocalPort)
	if asked.Port() == dnsPort {
		s.acceptQuery(ctx, id, pkt.Data().AsRange().Capped(size).ToSlice())
		return
	}
	s.mu.Lock()
	d := s.streams[id]
	s.mu.Unlock()
	if d == nil {
		first := append(append([]byte(nil), pkt.NetworkHeader().Slice()...),
			head[:header.UDPMinimumSize]...)
		name, why := s.target(asked)
		if why == (refusal{}) && s.current().isBound(name, asked.Port()) {
			why = refusal{why: whyBound}
		}
		d = &datagrams{flow: flow{proto: "udp", name: name, port: asked.Port()}, id: id,
			first: first, queue: make(chan []byte, udpQueue)}
		if why != (refusal{}) {
			s.event(Event{Kind: KindRefused, Proto: d.proto, Host: d.host(asked), Addr: asked,
				Why: why.why, Opens: why.opens, Limit: why.limit})
			s.link.unreachable(first, header.ICMPv4AdminProhibited)
			return
		}
		if why, ok := s.beginUDP(ctx, d); !ok {
			if why != (refusal{}) {
				s.event(Event{Kind: KindRefused, Proto: d.proto, Host: d.host(asked), Addr: asked,
					Why: why.why, Limit: why.limit})
				s.link.unreachable(first, header.ICMPv4AdminProhibited)
			}
			return
		}
	}
	select {
	case d.queue <- pkt.Data().AsRange().Capped(size).ToSlice():
	default: // lost, as on any network
	}
}

// beginUDP starts d. If there are too many flows, it ends the longest idle one. It returns why d is
// refused, if the program should know.
func (s *Stack) beginUDP(ctx context.Context, d *datagrams) (refusal, bool) {
	if !s.begin() {
		return refusal{}, false
	}
	ctx, d.end = context.WithCancelCause(ctx)
	d.used.Store(time.Now().UnixNano())
	if why := s.admit(&d.flow); why != (refusal{}) {
		d.end(why)
		s.wg.Done()
		return why, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= min(maxUDP, max(1, s.most/2)) {
		var oldest *datagrams
		for _, other := range s.streams {
			if oldest == nil || other.used.Load() < oldest.used.Load() {
				oldest = other
			}
		}
		delete(s.streams, oldest.id)
		oldest.end(errEvicted)
	}
	s.streams[d.id] = d
	go func() {
		defer s.wg.Done()
		defer d.end(nil)
		defer s.dismiss(&d.flow)
		s.serveUDP(ctx, d)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams[d.id] == d {
			delete(s.streams, d.id)
		}
	}()
	return refusal{}, true
}

// serveUDP dials d's target and copies its datagrams until it is idle or ended.
func (s *Stack) serveUDP(ctx context.Context, d *datagrams) {
	asked := addrPort(d.id.LocalAddress, d.id.LocalPort)
	conn, err := s.open(ctx, &d.flow, asked)
	if err != nil {
		code := header.ICMPv4HostUnreachable
		if _, ok := errors.AsType[refusal](err); ok {
			code = header.ICMPv4AdminProhibited
		}
		s.link.unreachable(d.first, code)
		return
	}
	defer s.ended(ctx, &d.flow, asked)
	defer onEnd(ctx, func() { _ = conn.Close() })()
	s.wg.Go(func() {
		d.end(s.receive(d, conn))
		_ = conn.Close()
	})
	s.mu.Lock()
	compare := s.policy.comparesNames(d.name, d.addr)
	s.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-d.queue:
			if compare && isQUIC(b) {
				s.event(Event{Kind: KindRefused, Proto: d.proto, Host: d.name, Addr: d.addr,
					Why: whyQUIC})
				s.link.unreachable(d.first, header.ICMPv4AdminProhibited)
				d.end(refusal{why: whyQUIC})
				return
			}
			d.used.Store(time.Now().UnixNano())
			n, err := conn.Write(b)
			d.sent.Add(int64(n))
			s.bounced(d, err)
		}
	}
}

// receive copies datagrams to the sandbox until d is idle, or conn is closed.
func (s *Stack) receive(d *datagrams, conn net.Conn) error {
	route, rerr := s.net.FindRoute(nic, d.id.LocalAddress, d.id.RemoteAddress, ipv4.ProtocolNumber,
		false)
	if rerr != nil {
		return fmt.Errorf("route: %s", rerr)
	}
	defer route.Release()
	for {
		if err := conn.SetReadDeadline(time.Unix(0, d.used.Load()).Add(udpIdle)); err != nil {
			return err
		}
		err := whenReady(conn, nil, func(b []byte) error {
			d.used.Store(time.Now().UnixNano())
			d.received.Add(int64(len(b)))
			writeUDP(route, d.id, b)
			return nil
		})
		switch {
		case err == nil || s.bounced(d, err):
		case errors.Is(err, os.ErrDeadlineExceeded):
			if time.Since(time.Unix(0, d.used.Load())) >= udpIdle {
				return errIdle
			}
		default:
			return err
		}
	}
}

// bounced reports to the sandbox that a datagram of d did not arrive, if err says so.
func (s *Stack) bounced(d *datagrams, err error) bool {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	s.link.unreachable(d.first, header.ICMPv4PortUnreachable)
	return true
}

// writeUDP sends a datagram to the sandbox, in fragments if it exceeds the MTU. It has no checksum
// (RFC 768), because it only passes through this machine's memory.
func writeUDP(route *stack.Route, id stack.TransportEndpointID, payload []byte) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + header.UDPMinimumSize,
		Payload:            buffer.MakeWithData(payload),
	})
	defer pkt.DecRef()
	head := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	head.Encode(&header.UDPFields{SrcPort: id.LocalPort, DstPort: id.RemotePort,
		Length: uint16(header.UDPMinimumSize + len(payload))})
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	// A failure loses it.
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber,
		TTL: route.DefaultTTL()}, pkt)
}

// acceptQuery answers one DNS query, without a flow: programs use a new port for each.
func (s *Stack) acceptQuery(ctx context.Context, id stack.TransportEndpointID, query []byte) {
	select {
	case s.asking <- struct{}{}:
	default:
		return
	}
	if !s.begin() {
		<-s.asking
		return
	}
	go func() {
		defer s.wg.Done()
		defer func() { <-s.asking }()
		reply := s.answer(ctx, query)
		if reply == nil {
			return
		}
		route, err := s.net.FindRoute(nic, id.LocalAddress, id.RemoteAddress, ipv4.ProtocolNumber,
			false)
		if err != nil {
			s.log.Error("no route for a DNS answer", "err", err)
			return
		}
		defer route.Release()
		writeUDP(route, id, reply)
	}()
}
