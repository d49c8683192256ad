package egress

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
)

// otherProtocols are the known protocols. Each function parses the first bytes as otherProtocol
// does.
var otherProtocols = []func(b []byte) (opening, int){
	readSSH, readRsync, readPostgres, readRedis, readGit,
}

// otherProtocol reports whether b begins a protocol other than TLS or HTTP in which the client
// speaks first. Its first bytes must be ones that no server accepts as a ClientHello or a request,
// or skips before one. size is the length of a prelude.
func otherProtocol(b []byte) (what opening, size int) {
	what = openingUnknown
	for _, read := range otherProtocols {
		switch w, size := read(b); w {
		case openingUnknown:
		case openingPartial:
			what = openingPartial // unless another one matches
		default:
			return w, size
		}
	}
	return what, 0
}

// begins compares b with the first bytes of a protocol.
func begins(b []byte, with string) opening {
	switch {
	case bytes.HasPrefix(b, []byte(with)):
		return openingOther
	case strings.HasPrefix(with, string(b)):
		return openingPartial
	}
	return openingUnknown
}

// saysHTTP reports whether a server might accept s as a request line.
func saysHTTP(s string) bool { return strings.Contains(strings.ToUpper(s), "HTTP/") }

func readSSH(b []byte) (opening, int)   { return readBanner(b, "SSH-2.0-") }
func readRsync(b []byte) (opening, int) { return readBanner(b, "@RSYNCD: ") }

const maxBanner = 255 // RFC 4253, section 4.2

// readBanner parses the first line of a client.
func readBanner(b []byte, with string) (opening, int) {
	if what := begins(b, with); what != openingOther {
		return what, 0
	}
	line, _, ended := bytes.Cut(b, []byte("\n"))
	text := strings.TrimSuffix(string(line), "\r")
	switch {
	case len(text) > maxBanner || hasControls(text) || saysHTTP(text):
		return openingUnknown, 0
	case !ended:
		return openingPartial, 0
	}
	return openingOther, 0
}

// readPostgres parses the first message of PostgreSQL's protocol (its documentation, "Message
// Formats"). A request for encryption is a prelude: the server answers with one byte, and TLS or
// another first message follows.
func readPostgres(b []byte) (opening, int) {
	switch what := begins(b, "\x00\x00"); {
	case what != openingOther:
		return what, 0
	case len(b) < 8:
		return openingPartial, 0
	}
	length, code := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	const encryptTLS, encryptGSS, cancel, versionThree = 80877103, 80877104, 80877102, 3
	const maxStartup = 10000 // MAX_STARTUP_PACKET_LENGTH of the server
	switch {
	case length == 8 && (code == encryptTLS || code == encryptGSS):
		return openingPrelude, 8
	case length <= 8 || length > maxStartup || code>>16 != versionThree && code != cancel:
		return openingUnknown, 0
	case len(b) < int(length):
		return openingPartial, 0
	case saysHTTP(string(b[:length])):
		// a server that skips what it cannot parse would accept it as a request
		return openingUnknown, 0
	}
	return openingOther, 0
}

var (
	redisCommand = regexp.MustCompile(`^\*[1-9][0-9]{0,5}\r\n\$[0-9]`)
	redisBegun   = regexp.MustCompile(`^(\*([1-9][0-9]{0,5}(\r(\n\$?)?)?)?)?$`)
)

// readRedis parses a RESP command, which is an array of strings.
func readRedis(b []byte) (opening, int) {
	switch {
	case redisCommand.Match(b):
		return openingOther, 0
	case len(b) < 16 && redisBegun.Match(b):
		return openingPartial, 0
	}
	return openingUnknown, 0
}

var gitRequest = regexp.MustCompile(
	`^git-(upload-pack|receive-pack|upload-archive) /[^\x00-\x1f\x7f]*` +
		`\x00host=[^\x00-\x1f\x7f]+\x00(\x00[^\x01-\x1f\x7f]+)?$`)

// readGit parses the request of git's own protocol (gitprotocol-pack(5)), a line preceded by its
// length.
func readGit(b []byte) (opening, int) {
	const digits, longest = 4, 4096
	size, err := strconv.ParseUint(string(b[:min(len(b), digits)]), 16, 16)
	switch {
	case len(b) > 0 && err != nil:
		return openingUnknown, 0
	case len(b) < digits:
		return openingPartial, 0
	case size > longest || begins(b[digits:], "git-") == openingUnknown:
		return openingUnknown, 0
	case uint64(len(b)) < max(size, digits+1):
		return openingPartial, 0
	case !gitRequest.Match(b[digits:max(size, digits)]) || saysHTTP(string(b[:size])):
		return openingUnknown, 0
	}
	return openingOther, 0
}
