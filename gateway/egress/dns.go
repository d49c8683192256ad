package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsPort = 53
	// Concurrent queries of a sandbox; more are dropped, and resolvers repeat them; those over TCP
	// wait.
	dnsInFlight = 256
	dnsTimeout  = 10 * time.Second // of one query: as long as resolvers in sandboxes wait
	dnsIdle     = 10 * time.Second // of a connection without queries
	// Seconds; the address of a name does not change, but the name may disappear.
	dnsTTL = 60
	// Accepted size over UDP (DNS flag day 2020); answers are smaller.
	dnsPayload = 1232
)

var localhost = netip.MustParseAddr("127.0.0.1")

// answer returns the reply to a DNS query, or nil if it deserves none. A name has one A record, the
// address that represents it inside the sandbox. It has no AAAA, HTTPS or SVCB records, with which
// a program would bypass that address.
func (s *Stack) answer(ctx context.Context, query []byte) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(query)
	if err != nil || head.Response {
		return nil
	}
	reply := dnsmessage.Message{Header: dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired,
		RecursionAvailable: true,
	}}
	questions, err := parser.AllQuestions()
	switch {
	case err != nil || len(questions) != 1:
		reply.RCode = dnsmessage.RCodeFormatError
	case head.OpCode != 0:
		reply.RCode = dnsmessage.RCodeNotImplemented
	case questions[0].Class != dnsmessage.ClassINET:
		reply.Questions, reply.RCode = questions, dnsmessage.RCodeRefused
	default:
		reply.Questions = questions
		reply.Answers, reply.RCode = s.records(ctx, questions[0])
	}
	if extended(&parser) {
		var opt dnsmessage.ResourceHeader
		if opt.SetEDNS0(dnsPayload, dnsmessage.RCodeSuccess, false) == nil {
			reply.Additionals = []dnsmessage.Resource{{Header: opt,
				Body: &dnsmessage.OPTResource{}}}
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// extended reports whether the rest of a query has an OPT record (RFC 6891).
func extended(p *dnsmessage.Parser) bool {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return false
	}
	for {
		head, err := p.AdditionalHeader()
		if err != nil {
			return false
		}
		if head.Type == dnsmessage.TypeOPT {
			return true
		}
		if p.SkipAdditional() != nil {
			return false
		}
	}
}

// records returns the records that q asks for.
func (s *Stack) records(ctx context.Context, q dnsmessage.Question) ([]dnsmessage.Resource,
	dnsmessage.RCode) {
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: dnsTTL}
	name, ok := canonicalName(q.Name.String())
	if !ok {
		return nil, dnsmessage.RCodeNameError
	}
	if addr, ok := reversed(name); ok {
		known, ok := s.names.name(addr)
		target, err := dnsmessage.NewName(known + ".")
		switch {
		case !ok || err != nil:
			return nil, dnsmessage.RCodeNameError
		case q.Type != dnsmessage.TypePTR:
			return nil, dnsmessage.RCodeSuccess
		}
		return []dnsmessage.Resource{{Header: head, Body: &dnsmessage.PTRResource{PTR: target}}},
			dnsmessage.RCodeSuccess
	}
	inside := localhost
	if name != "localhost" && !strings.HasSuffix(name, ".localhost") { // RFC 6761, section 6.3
		if why := s.current().refusesName(name, 0); why != (refusal{}) {
			if q.Type != dnsmessage.TypeAAAA { // sent along with A
				s.event(Event{Kind: KindRefused, Proto: "dns", Host: name, Why: why.why,
					Opens: why.opens, Limit: why.limit})
			}
			return nil, dnsmessage.RCodeNameError
		}
		if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeALL {
			return nil, dnsmessage.RCodeSuccess
		}
		ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
		defer cancel()
		var err error
		if _, inside, err = s.names.addresses(ctx, name); err != nil {
			e := Event{Kind: KindFailed, Proto: "dns", Host: name, Why: err.Error()}
			if why, ok := errors.AsType[refusal](err); ok {
				e.Kind, e.Limit = KindRefused, why.limit
			}
			s.event(e)
			return nil, dnsmessage.RCodeServerFailure
		}
		if !inside.IsValid() {
			return nil, dnsmessage.RCodeNameError
		}
	}
	if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeALL {
		return nil, dnsmessage.RCodeSuccess
	}
	head.Type = dnsmessage.TypeA
	return []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: inside.As4()}}},
		dnsmessage.RCodeSuccess
}

// reversed returns the address of a reverse lookup (RFC 1035, section 3.5; RFC 3596, section 2.5).
// IPv6 and incomplete addresses return the invalid address, which has no name here.
func reversed(name string) (netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, ".in-addr.arpa")
	if !ok {
		return netip.Addr{}, strings.HasSuffix(name, ".ip6.arpa")
	}
	labels := strings.Split(rest, ".")
	var four [4]byte
	if len(labels) != len(four) {
		return netip.Addr{}, true
	}
	for i, label := range labels {
		n, err := strconv.ParseUint(label, 10, 8)
		if err != nil {
			return netip.Addr{}, true
		}
		four[len(four)-1-i] = byte(n)
	}
	return netip.AddrFrom4(four), true
}

// serveDNS answers queries on conn one after the other, each preceded by its length (RFC 1035,
// section 4.2.2).
func (s *Stack) serveDNS(ctx context.Context, conn net.Conn) {
	defer onEnd(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	var size [2]byte
	for {
		if conn.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		select {
		case s.asking <- struct{}{}:
		case <-ctx.Done():
			return
		}
		reply := s.answer(ctx, query)
		<-s.asking
		if reply == nil {
			return
		}
		if conn.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))),
			reply...)); err != nil {
			return
		}
	}
}
