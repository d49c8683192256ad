package egress

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
)

// maxOpening is how much of what a program says first is looked at: a ClientHello with post-quantum keys has some 2 KiB, heads of
// requests with cookies up to 16.
const maxOpening = 32 << 10

// opening is what the first bytes of a connection say of whom they are meant for.
type opening int

const (
	openingPartial opening = iota // more bytes are needed
	openingNamed                  // for the name
	openingUnnamed                // TLS or HTTP that names nobody, or that cannot be read
	openingOther                  // plainly another protocol, which has no names
	openingPrelude                // a request of another protocol, which TLS or that protocol follows
	openingUnknown                // none of these
)

// readOpening finds the server's name in the first bytes of a connection: in the server_name
// extension of a TLS ClientHello (RFC 6066, section 3) or in the Host of a request of HTTP/1
// (RFC 9112, section 3.2). Only what every server reads in the same way names somebody, and only
// what otherProtocol knows is another protocol: servers overlook much before a ClientHello or a
// request. size is the length of the ClientHello or of the prelude, and 0 for all else.
func readOpening(b []byte) (what opening, name string, size int) {
	switch {
	case len(b) == 0:
		return openingPartial, "", 0
	case b[0] >= recordFirst && b[0] <= recordLast:
		return readHello(b)
	}
	if what, size := otherProtocol(b); what != openingUnknown {
		return what, "", size
	}
	what, name = readRequest(b)
	return what, name, 0
}

// partial asks for more, as long as there may be more.
func partial(b []byte) opening {
	if len(b) >= maxOpening {
		return openingUnnamed
	}
	return openingPartial
}

var (
	requestLine = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ \t]+) HTTP/1\\.[01]$")
	fieldLine   = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*$")
)

// readRequest reads the head of a request of HTTP/1. One of HTTP/2 without TLS has its names in
// later frames, and names nobody here. Nor does a head that RFC 9112 lets servers read in several
// ways, or not at all: with other line ends than CRLF, with controls, folded, of HTTP/0.9.
func readRequest(b []byte) (what opening, name string) {
	text := b
	for bytes.HasPrefix(text, []byte("\r\n")) { // servers overlook empty lines (section 2.2)
		text = text[2:]
	}
	head, _, whole := bytes.Cut(text, []byte("\r\n\r\n"))
	first, rest, ended := strings.Cut(string(head), "\r\n")
	switch {
	case hasControls(first) || first != "" && !strings.ContainsRune(methodBegins, rune(first[0])):
		return openingUnknown, ""
	case !ended && !whole:
		return partial(b), ""
	}
	request := requestLine.FindStringSubmatch(first)
	switch {
	case request == nil && !saysHTTP(first):
		return openingUnknown, ""
	case request == nil || hasControls(rest) || whole && strings.HasSuffix(rest, "\r"):
		return openingUnnamed, ""
	case !whole:
		return partial(b), ""
	}
	host, seen := "", 0
	for line := range strings.SplitSeq(rest, "\r\n") {
		field := fieldLine.FindStringSubmatch(line)
		switch {
		case rest == "":
		case field == nil:
			return openingUnnamed, ""
		case strings.EqualFold(field[1], "host"):
			host = field[2]
			seen++
		}
	}
	name, ok := hostName(host)
	if seen != 1 || !ok || !isTarget(request[1], request[2], name) {
		return openingUnnamed, ""
	}
	return openingNamed, name
}

// methodBegins are the characters with which a token begins (RFC 9110, section 5.6.2), and CR of an
// empty line before it.
const methodBegins = "!#$%&'*+-.^_`|~0123456789" +
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r"

// hasControls says whether s has characters that no line of a request may have. Line ends it may
// have, and the first half of one at its end.
func hasControls(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c == '\r' && (i+1 == len(s) || s[i+1] == '\n'), c == '\n' && i > 0 && s[i-1] == '\r':
		case c < ' ' && c != '\t' || c == 0x7f:
			return true
		}
	}
	return false
}

// isTarget says whether the target of a request is one of name's: a path, or a URL or an
// authority with that name. Those go before Host (RFC 9112, section 3.2.2).
func isTarget(method, target, name string) bool {
	host := target
	if method != "CONNECT" {
		if target[0] == '/' || target == "*" {
			return true
		}
		_, rest, ok := strings.Cut(target, "://")
		if !ok {
			return false
		}
		if host = rest; strings.ContainsAny(rest, "/?#") {
			host = rest[:strings.IndexAny(rest, "/?#")]
		}
	}
	other, ok := hostName(host)
	return ok && other == name
}

// whyQUIC is why a listed name opens no QUIC. Programs go on with TCP.
const whyQUIC = "QUIC does not show whom it is for: a listed address opens it, a name does not"

// isQUIC says whether b begins a connection of QUIC, of a version that servers take: the packet's name is that of another server as likely
// as not. Only the parts that stay as they are in all versions are read (RFC 8999, section 5.1).
func isQUIC(b []byte) bool {
	if len(b) < 5 || b[0]&0x80 == 0 {
		return false
	}
	switch version := binary.BigEndian.Uint32(b[1:]); version {
	case 1, 0x6b3343cf: // RFC 9000, RFC 9369
		return true
	default:
		return version>>8 == 0xff0000 // drafts
	}
}

// hostName returns the name of a host with or without port. An address is none.
func hostName(host string) (string, bool) {
	host, port, ok := strings.Cut(host, ":")
	if _, err := strconv.ParseUint(port, 10, 16); ok && port != "" && err != nil {
		return "", false
	}
	return canonicalName(host)
}
