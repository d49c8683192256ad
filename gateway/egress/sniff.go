package egress

import (
	"bytes"
	"encoding/binary"
	"slices"
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
	openingOther                  // neither TLS nor HTTP: nothing is said
	openingNamed                  // for the name
	openingUnnamed                // TLS or HTTP that names nobody, or that cannot be read
)

// readOpening finds the server's name in the first bytes of a connection: in the server_name extension of a TLS ClientHello (RFC 6066,
// section 3) or in the Host of a request of HTTP/1 (RFC 9112, section 3.2). It reads nothing else, and no byte twice differently than a
// server would: what is not unambiguous, names nobody.
func readOpening(b []byte) (opening, string) {
	if len(b) > 0 && b[0] == recordHandshake {
		return readHello(b)
	}
	// Servers overlook empty lines before a request (RFC 9112, section 2.2).
	text := bytes.TrimLeft(b, "\r\n")
	line, _, whole := bytes.Cut(text, []byte("\n"))
	switch {
	case bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' && c != '\r' }):
		return openingOther, "" // no text
	case !whole:
		return partial(b)
	case !bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")):
		return openingOther, "" // text of another protocol, which has said its first line
	}
	return readRequest(text)
}

// partial asks for more, as long as there may be more.
func partial(b []byte) (opening, string) {
	if len(b) >= maxOpening {
		return openingUnnamed, ""
	}
	return openingPartial, ""
}

const (
	recordHandshake   = 22     // RFC 8446, section 5.1
	clientHello       = 1      // section 4
	extensionName     = 0      // RFC 6066, section 1.1
	extensionHello    = 0xfe0d // encrypted_client_hello (RFC 9849): the name that can be read is not the one that is meant
	serverNameIsAHost = 0
)

// readHello reads a ClientHello, which may be cut into several records.
func readHello(b []byte) (opening, string) {
	var hello []byte
	for rest := b; ; {
		if len(rest) < 5 {
			return partial(b)
		}
		size := int(binary.BigEndian.Uint16(rest[3:]))
		if rest[0] != recordHandshake || rest[1] != 3 || size == 0 || size > 1<<14 {
			return openingUnnamed, ""
		}
		record := rest[5:]
		hello = append(hello, record[:min(size, len(record))]...)
		if len(hello) >= 1 && hello[0] != clientHello {
			return openingUnnamed, ""
		}
		if len(hello) >= 4 {
			if want := 4 + int(hello[1])<<16 + int(hello[2])<<8 + int(hello[3]); want > maxOpening {
				return openingUnnamed, ""
			} else if len(hello) >= want {
				name, ok := helloName(hello[4:want])
				if !ok {
					return openingUnnamed, ""
				}
				return openingNamed, name
			}
		}
		if len(record) < size {
			return partial(b)
		}
		rest = record[size:]
	}
}

// fields cuts a message of TLS into its parts. A cut that goes beyond the end sets bad.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) []byte {
	if n > len(f.rest) {
		f.rest, f.bad = nil, true
		return nil
	}
	part := f.rest[:n]
	f.rest = f.rest[n:]
	return part
}

// number reads a number of n bytes.
func (f *fields) number(n int) int {
	value := 0
	for _, c := range f.take(n) {
		value = value<<8 | int(c)
	}
	return value
}

// helloName reads the body of a ClientHello (RFC 8446, section 4.1.2).
func helloName(body []byte) (name string, ok bool) {
	f := fields{rest: body}
	f.take(2 + 32)      // version, random
	f.take(f.number(1)) // session
	f.take(f.number(2)) // cipher suites
	f.take(f.number(1)) // compression
	all := fields{rest: f.take(f.number(2))}
	for !f.bad && len(all.rest) > 0 {
		kind := all.number(2)
		data := all.take(all.number(2))
		switch {
		case all.bad || kind == extensionHello:
			return "", false
		case kind != extensionName:
			continue
		case name != "":
			return "", false // twice
		}
		list := fields{rest: data}
		names := fields{rest: list.take(list.number(2))}
		if names.number(1) != serverNameIsAHost {
			return "", false
		}
		host := string(names.take(names.number(2)))
		if list.bad || names.bad || len(list.rest) > 0 || len(names.rest) > 0 {
			return "", false
		}
		if name, ok = canonicalName(host); !ok {
			return "", false
		}
	}
	return name, name != "" && !f.bad && len(f.rest) == 0
}

// readRequest reads the head of a request of HTTP/1. One of HTTP/2 without TLS has its names in later frames, and names nobody here.
func readRequest(b []byte) (opening, string) {
	lines := strings.Split(string(b), "\n")
	end := slices.IndexFunc(lines, func(line string) bool { return line == "" || line == "\r" })
	if end < 0 || end == len(lines)-1 { // what stands behind the last newline is no line yet
		return partial(b)
	}
	words := strings.Fields(lines[0])
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") {
		return openingUnnamed, ""
	}
	var host string
	seen := 0
	for _, line := range lines[1:end] {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\r"), ":")
		if !ok || key == "" || strings.ContainsAny(key, " \t\r") {
			return openingUnnamed, "" // a folded or damaged line, which servers read in several ways
		}
		if strings.EqualFold(key, "host") {
			host = strings.Trim(value, " \t")
			seen++
		}
	}
	name, ok := hostName(host)
	if seen != 1 || !ok {
		return openingUnnamed, ""
	}
	// An absolute target goes before Host (RFC 9112, section 3.2.2).
	if _, rest, ok := strings.Cut(words[1], "://"); ok && !strings.HasPrefix(words[1], "/") {
		if end := strings.IndexAny(rest, "/?#"); end >= 0 {
			rest = rest[:end]
		}
		if other, ok := hostName(rest); !ok || other != name {
			return openingUnnamed, ""
		}
	}
	return openingNamed, name
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
