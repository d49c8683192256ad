package egress

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
)

// maxOpening is how much of a program's first data is parsed: a ClientHello with post-quantum keys
// has some 2 KiB, request headers with cookies up to 16.
const maxOpening = 32 << 10

// opening is what the first bytes of a connection say about its server.
type opening int

const (
	openingPartial opening = iota // more bytes are needed
	openingNamed                  // they name the server
	openingUnnamed                // TLS or HTTP without a readable name
	openingOther                  // another protocol, which has no names
	openingPrelude                // a request of another protocol, followed by TLS or that protocol
	openingUnknown                // none of these
)

// readOpening finds the server's name in the first bytes of a connection. It is in the server_name
// extension of a TLS ClientHello (RFC 6066, section 3), or in the Host of an HTTP/1 request (RFC
// 9112, section 3.2). A name counts only if all servers parse it the same way, and another protocol
// only if otherProtocol knows it: servers skip much before a ClientHello or a request. size is the
// length of the ClientHello or of the prelude, otherwise 0.
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

// partial asks for more bytes, up to the limit.
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

// readRequest parses the header of an HTTP/1 request. HTTP/2 without TLS has its names in later
// frames, so it is unnamed. So is a header that RFC 9112 lets servers parse in several ways, or not
// at all: with line ends other than CRLF, with control characters, folded, or HTTP/0.9.
func readRequest(b []byte) (what opening, name string) {
	text := b
	for bytes.HasPrefix(text, []byte("\r\n")) { // servers skip empty lines (section 2.2)
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

// methodBegins are the first characters of a token (RFC 9110, section 5.6.2), and the CR of a
// preceding empty line.
const methodBegins = "!#$%&'*+-.^_`|~0123456789" +
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r"

// hasControls reports whether s has characters that a request line cannot have. It allows line
// ends, and the first half of one at the end.
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

// isTarget reports whether the target of a request is for name: a path, or a URL or authority with
// that name, which takes precedence over Host (RFC 9112, section 3.2.2).
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

// whyQUIC is why a listed name does not allow QUIC. Programs fall back to TCP.
const whyQUIC = "QUIC hides the server's name: list its address instead of the name"

// isQUIC reports whether b begins a QUIC connection, of a version that servers accept. The name in
// the packet may be another server's. It reads only the version-independent parts (RFC 8999,
// section 5.1).
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

// hostName returns the name of a host, with or without port. An address is not a name.
func hostName(host string) (string, bool) {
	host, port, ok := strings.Cut(host, ":")
	if _, err := strconv.ParseUint(port, 10, 16); ok && port != "" && err != nil {
		return "", false
	}
	return canonicalName(host)
}
