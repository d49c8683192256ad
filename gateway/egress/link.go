package egress

import (
	"net/netip"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// packets is where a link sends packets: the device, or a test.
type packets interface {
	write(h vnetHeader, pieces [][]byte)
}

// link connects the device and the stack. Incoming packets are not trusted: it passes on only TCP
// and UDP from the sandbox's own address.
type link struct {
	out packets
	// Called for packets that are blocked here.
	refused    func(proto string, dst netip.AddrPort, why string)
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// deliver takes one packet from the sandbox.
func (l *link) deliver(packet buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: packet})
	defer pkt.DecRef()
	if !l.accepts(pkt) {
		return
	}
	if d := l.dispatcher.Load(); d != nil {
		(*d).DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
	}
}

// accepts reports whether pkt goes to the stack, and answers some packets that do not.
func (l *link) accepts(pkt *stack.PacketBuffer) bool {
	head, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	if !ok || header.IPVersion(head) != header.IPv4Version {
		return false
	}
	ip := header.IPv4(head)
	src, dst := netip.AddrFrom4(ip.SourceAddress().As4()),
		netip.AddrFrom4(ip.DestinationAddress().As4())
	if src != GuestAddr || dst == GuestAddr || dst.IsUnspecified() {
		return false
	}
	size := min(pkt.Data().Size(), int(ip.HeaderLength())+8)
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber:
		return !isGroup(dst)
	case header.UDPProtocolNumber:
		if !isGroup(dst) {
			return true
		}
		// The stack would drop these silently.
		if head, ok = pkt.Data().PullUp(size); ok && ip.FragmentOffset() == 0 &&
			size >= int(ip.HeaderLength())+8 {
			port := header.UDP(head[ip.HeaderLength():]).DestinationPort()
			l.refused("udp", netip.AddrPortFrom(dst, port), "multicast and broadcast stay inside")
			l.unreachable(head, header.ICMPv4AdminProhibited)
		}
	case header.ICMPv4ProtocolNumber:
		// The stack owns every address, so it would answer echo requests for hosts that it never
		// reached.
		if head, ok = pkt.Data().PullUp(size); ok && size >= int(ip.HeaderLength())+8 &&
			header.ICMPv4(head[ip.HeaderLength():]).Type() == header.ICMPv4Echo {
			l.unreachable(head, header.ICMPv4AdminProhibited)
		}
	}
	return false
}

// isGroup reports whether a is a multicast or the broadcast address.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// unreachable sends the sandbox an ICMP error for the packet that begins with head (RFC 792; code
// 13: RFC 1812, section 5.2.7.1). head is an IP header and at least eight bytes after it.
func (l *link) unreachable(head []byte, code header.ICMPv4Code) {
	const start = header.IPv4MinimumSize + header.ICMPv4MinimumSize
	packet := make([]byte, start+len(head))
	copy(packet[start:], head)
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)),
		TTL:         64,
		Protocol:    uint8(header.ICMPv4ProtocolNumber),
		SrcAddr:     tcpip.AddrFrom4(DNSAddr.As4()),
		DstAddr:     tcpip.AddrFrom4(GuestAddr.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	icmp := header.ICMPv4(packet[header.IPv4MinimumSize:])
	icmp.SetType(header.ICMPv4DstUnreachable)
	icmp.SetCode(code)
	icmp.SetChecksum(header.ICMPv4Checksum(icmp, 0))
	l.out.write(vnetHeader{}, [][]byte{packet})
}

// WritePackets sends packets of the stack. The kernel that reads them splits segments longer than
// the MTU.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	for _, pkt := range list.AsSlice() {
		l.writePacket(pkt)
	}
	return list.Len(), nil
}

func (l *link) writePacket(pkt *stack.PacketBuffer) {
	var h vnetHeader
	if gso := pkt.GSOOptions; gso.Type == stack.GSOTCPv4 {
		h.headerLen = uint16(pkt.HeaderSize())
		if gso.NeedsCsum {
			h.flags = vnetNeedsCsum
			h.checksumStart, h.checksumOffset = gso.L3HdrLen, gso.CsumOffset
		}
		if pkt.Data().Size() > int(gso.MSS) {
			h.gsoType, h.gsoSize = vnetGSOTCPv4, gso.MSS
		}
	}
	var fixed [10][]byte
	pieces := fixed[:0]
	views, skip := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		piece := v.AsSlice()
		if skip >= len(piece) {
			skip -= len(piece)
			continue
		}
		pieces = append(pieces, piece[skip:])
		skip = 0
	}
	l.out.write(h, pieces)
}

// GSOMaxSize leaves room for the headers of an IP packet.
func (l *link) GSOMaxSize() uint32 {
	return maxPacket - header.IPv4MaximumHeaderSize - header.TCPHeaderMaximumSize
}

// SupportedGSO says that the sandbox's kernel splits segments.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// MTU is the device's.
func (l *link) MTU() uint32 { return wire.TunMTU }

// SetMTU does nothing: the device's MTU is fixed.
func (l *link) SetMTU(uint32) {}

// MaxHeaderLength is zero: there is no layer below IP.
func (l *link) MaxHeaderLength() uint16 { return 0 }

// LinkAddress is empty.
func (l *link) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress does nothing.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities say that checksums are valid: packets come from this machine's memory, most without
// a checksum.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// Attach sets the receiver of packets; nil removes it.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// IsAttached reports whether there is a receiver.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// Wait has nothing to wait for: the reader of the device waits for itself.
func (l *link) Wait() {}

// ARPHardwareType is that of a link without addresses.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader does nothing.
func (l *link) AddHeader(*stack.PacketBuffer) {}

// ParseHeader does nothing.
func (l *link) ParseHeader(*stack.PacketBuffer) bool { return true }

// Close does nothing: the device belongs to the Stack.
func (l *link) Close() {}

// SetOnCloseAction does nothing.
func (l *link) SetOnCloseAction(func()) {}
