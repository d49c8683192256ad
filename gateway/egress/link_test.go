package egress

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// kept records the packets that are written to it.
type kept struct {
	mu   sync.Mutex
	list [][]byte
}

func (k *kept) write(_ vnetHeader, pieces [][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, bytes.Join(pieces, nil))
}

// packet returns an IPv4 packet from the sandbox.
func packet(proto tcpip.TransportProtocolNumber, dst string, payload []byte) []byte {
	b := make([]byte, header.IPv4MinimumSize+len(payload))
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(proto),
		SrcAddr: tcpip.AddrFrom4(GuestAddr.As4()),
		DstAddr: tcpip.AddrFrom4(netip.MustParseAddr(dst).As4())})
	ip.SetChecksum(^ip.CalculateChecksum())
	copy(b[header.IPv4MinimumSize:], payload)
	return b
}

func udpTo(port uint16, payload string) []byte {
	b := make([]byte, header.UDPMinimumSize+len(payload))
	header.UDP(b).Encode(&header.UDPFields{SrcPort: 4000, DstPort: port, Length: uint16(len(b))})
	copy(b[header.UDPMinimumSize:], payload)
	return b
}

func synTo(port uint16) []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{SrcPort: 4000, DstPort: port, SeqNum: 1,
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	return b
}

func echo() []byte {
	b := make([]byte, header.ICMPv4MinimumSize)
	header.ICMPv4(b).SetType(header.ICMPv4Echo)
	return b
}

// The stack owns every address, but must not answer for hosts that it never reached.
func TestLinkAnswersNoEcho(t *testing.T) {
	out := new(kept)
	l := &link{out: out}
	l.deliver(buffer.MakeWithData(packet(header.ICMPv4ProtocolNumber, public, echo())))
	if len(out.list) != 1 {
		t.Fatalf("%d packets", len(out.list))
	}
	ip := header.IPv4(out.list[0])
	icmp := header.ICMPv4(ip.Payload())
	if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() || checksum.Checksum(icmp, 0) != 0xffff {
		t.Errorf("a damaged answer: %x", out.list[0])
	}
	if icmp.Type() != header.ICMPv4DstUnreachable || icmp.Code() != header.ICMPv4AdminProhibited {
		t.Errorf("type %d, code %d", icmp.Type(), icmp.Code())
	}
}

func TestLinkDrops(t *testing.T) {
	strange := packet(header.TCPProtocolNumber, public, synTo(80))
	header.IPv4(strange).SetSourceAddress(tcpip.AddrFrom4([4]byte{1, 2, 3, 4}))
	six := packet(header.TCPProtocolNumber, public, synTo(80))
	six[0] = 0x65
	for name, b := range map[string][]byte{
		"another source": strange,
		"version":        six,
		"short":          {0x45, 0},
		"to itself":      packet(header.TCPProtocolNumber, GuestAddr.String(), synTo(80)),
		"to no address":  packet(header.UDPProtocolNumber, "0.0.0.0", udpTo(80, "")),
		"GRE":            packet(47, public, make([]byte, 40)),
		"echo reply":     packet(header.ICMPv4ProtocolNumber, public, make([]byte, 8)),
		"short echo":     packet(header.ICMPv4ProtocolNumber, public, []byte{8}),
		"TCP to a group": packet(header.TCPProtocolNumber, "224.0.0.1", synTo(80)),
		"half UDP":       packet(header.UDPProtocolNumber, "224.0.0.1", []byte{1, 2, 3}),
	} {
		out := new(kept)
		l := &link{out: out}
		l.deliver(buffer.MakeWithData(bytes.Clone(b)))
		if len(out.list) != 0 {
			t.Errorf("%s was answered with %x", name, out.list)
		}
	}
}

// FuzzPackets feeds a whole stack with packets that a sandbox could send: it must not panic, and
// all goroutines end.
func FuzzPackets(f *testing.F) {
	f.Add(packet(header.TCPProtocolNumber, public, synTo(80)),
		packet(header.TCPProtocolNumber, public, synTo(80)))
	f.Add(packet(header.UDPProtocolNumber, public, udpTo(80, "hello")), []byte{})
	f.Add(packet(header.UDPProtocolNumber, "10.0.0.1", udpTo(80, "hello")),
		packet(header.UDPProtocolNumber, "224.0.0.251", udpTo(5353, "")))
	f.Add(packet(header.UDPProtocolNumber, "1.1.1.1",
		udpTo(53, "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01")),
		[]byte{0x45})
	f.Add(packet(header.ICMPv4ProtocolNumber, public, echo()),
		packet(header.UDPProtocolNumber, public, []byte{0, 1, 0, 2, 0, 3, 0, 0}))
	s, _ := offline(f, policy(f, ModeAllowlist, "a"),
		func(string) ([]netip.Addr, error) { return addrs("10.0.0.1"), nil })
	f.Fuzz(func(_ *testing.T, a, b []byte) {
		for _, p := range [][]byte{a, b} {
			if len(p) > maxPacket {
				continue
			}
			s.link.deliver(buffer.MakeWithData(bytes.Clone(p)))
			// also with valid checks of the link, which a fuzzer rarely guesses
			if len(p) >= header.IPv4MinimumSize {
				p = bytes.Clone(p)
				ip := header.IPv4(p)
				ip.SetSourceAddress(tcpip.AddrFrom4(GuestAddr.As4()))
				ip.SetTotalLength(uint16(len(p)))
				ip.SetChecksum(0)
				if n := int(ip.HeaderLength()); n >= header.IPv4MinimumSize && n <= len(p) {
					ip.SetChecksum(^ip.CalculateChecksum())
				}
				s.link.deliver(buffer.MakeWithData(p))
			}
		}
	})
}
