package egress

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/crypto/cryptobyte"
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

// hides reports whether an extension is encrypted_client_hello (RFC 9849), one of its drafts, or
// ESNI. The readable name is then not the one that the server uses.
func hides(extension uint16) bool {
	return extension&^7 == 0xfe08 || extension == 0xffce
}

// readHello parses a ClientHello, which may be split into several records. It must fill them,
// because servers treat other content in them differently. Anything before it makes an unnamed
// opening: servers skip alerts, heartbeats and changes of the cipher there. crypto/tls skips alerts
// and empty records, too, so it cannot decide where a ClientHello begins.
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

// helloName parses the body of a ClientHello (RFC 8446, section 4.1.2). It accepts only one
// host_name in one server_name extension (RFC 6066, section 3): crypto/tls skips other kinds of
// names, and other servers may not.
func helloName(hello cryptobyte.String) (name string, ok bool) {
	var legacy, extensions cryptobyte.String
	if !hello.Skip(2+32) || // version, random
		!hello.ReadUint8LengthPrefixed(&legacy) || // session
		!hello.ReadUint16LengthPrefixed(&legacy) || // cipher suites
		!hello.ReadUint8LengthPrefixed(&legacy) || // compression
		!hello.ReadUint16LengthPrefixed(&extensions) || !hello.Empty() {
		return "", false
	}
	for !extensions.Empty() {
		var kind uint16
		var data, list, host cryptobyte.String
		var hostKind uint8
		switch {
		case !extensions.ReadUint16(&kind) || !extensions.ReadUint16LengthPrefixed(&data) ||
			hides(kind):
			return "", false
		case kind != extensionName:
			continue
		case ok, // a second one
			!data.ReadUint16LengthPrefixed(&list) || !data.Empty(),
			!list.ReadUint8(&hostKind) || hostKind != serverNameIsAHost,
			!list.ReadUint16LengthPrefixed(&host) || !list.Empty():
			return "", false
		}
		// Servers treat a final dot differently; it is not part of a name (RFC 6066, section 3).
		if name, ok = canonicalName(string(host)); !ok || host[len(host)-1] == '.' {
			return "", false
		}
	}
	return name, ok
}

// retryRandom is the random of a ServerHello that asks for another ClientHello (RFC 8446, section
// 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// maxServerHello is how much of a server's answer is parsed.
const maxServerHello = 256

// readAnswer reports whether b, a server's answer to a ClientHello, asks for another one. known is
// false while more bytes are needed. Warnings may precede it (RFC 6066, section 3).
func readAnswer(b []byte) (again, known bool) {
	for len(b) >= 7 && b[0] == recordAlert && b[3] == 0 && b[4] == 2 {
		b = b[7:]
	}
	const random = 5 + 4 + 2 // after the headers of record and message, and the version
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
