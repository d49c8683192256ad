package egress

import (
	"bytes"
	"encoding/binary"
	"strings"
)

const (
	// Content types of records (RFC 8446, section 5.1; RFC 6520; RFC 9146; RFC 9147).
	recordFirst       = recordChange
	recordChange      = 20
	recordAlert       = 21
	recordHandshake   = 22
	recordApplication = 23
	recordLast        = 26

	clientHello       = 1 // RFC 8446, section 4
	serverHello       = 2
	extensionName     = 0 // RFC 6066, section 1.1
	serverNameIsAHost = 0
)

// hides says whether an extension is encrypted_client_hello (RFC 9849), one of its drafts, or
// ESNI: the name that can be read is not the one that is meant.
func hides(extension int) bool {
	return extension&^7 == 0xfe08 || extension == 0xffce
}

// readHello reads a ClientHello, which may be cut into several records. It fills them: servers
// that find something else in them differ in what they do. Anything before it names nobody:
// servers overlook alerts, heartbeats and changes of the cipher there.
func readHello(b []byte) (what opening, name string, size int) {
	var hello []byte
	for rest := b; ; {
		if len(rest) > 0 && rest[0] != recordHandshake || len(rest) > 1 && rest[1] != 3 {
			return openingUnnamed, "", 0
		}
		if len(rest) < 5 {
			return partial(b), "", 0
		}
		length := int(binary.BigEndian.Uint16(rest[3:]))
		if length == 0 || length > 1<<14 {
			return openingUnnamed, "", 0
		}
		record := rest[5:]
		hello = append(hello, record[:min(length, len(record))]...)
		if len(hello) >= 1 && hello[0] != clientHello {
			return openingUnnamed, "", 0
		}
		want := maxOpening
		if len(hello) >= 4 {
			want = 4 + int(hello[1])<<16 + int(hello[2])<<8 + int(hello[3])
		}
		if want > maxOpening || len(hello) > want {
			return openingUnnamed, "", 0
		}
		if len(record) < length {
			return partial(b), "", 0
		}
		rest = record[length:]
		if len(hello) == want {
			name, ok := helloName(hello[4:])
			if !ok {
				return openingUnnamed, "", 0
			}
			return openingNamed, name, len(b) - len(rest)
		}
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
		case all.bad || hides(kind):
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
		// A dot at the end is no part of it (RFC 6066, section 3): servers differ in what they do.
		if name, ok = canonicalName(host); !ok || strings.HasSuffix(host, ".") {
			return "", false
		}
	}
	return name, name != "" && !f.bad && len(f.rest) == 0
}

// retryRandom is the random of a ServerHello that asks for another ClientHello (RFC 8446,
// section 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// maxServerHello is how much of a server's answer is looked at.
const maxServerHello = 256

// readAnswer says whether b, what a server says to a ClientHello, asks for another one. It is not
// known while more bytes are needed. Warnings may come before it (RFC 6066, section 3).
func readAnswer(b []byte) (again, known bool) {
	for len(b) >= 7 && b[0] == recordAlert && b[3] == 0 && b[4] == 2 {
		b = b[7:]
	}
	const random = 5 + 4 + 2 // after the heads of record and message, and the version
	switch {
	case len(b) > 0 && b[0] != recordHandshake && b[0] != recordAlert:
		return false, true
	case len(b) > 5 && b[5] != serverHello && b[0] == recordHandshake:
		return false, true
	case len(b) >= random+len(retryRandom):
		return bytes.Equal(b[random:random+len(retryRandom)], retryRandom), true
	}
	return false, false
}
