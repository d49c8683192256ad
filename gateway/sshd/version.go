package sshd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxVersionLine is the longest identification string, line end included (RFC 4253, section 4.2).
const maxVersionLine = 255

// errNotSSH2 is what a peer gets who does not begin with an SSH-2 identification string.
var errNotSSH2 = errors.New("not an SSH-2 client")

// readVersionLine reads a client's identification string and returns it with its line end and with what came after it
// in the same reads. It is stricter than the library, which would accept SSH-1, 1,024 lines in front of the string and
// control characters in it: a client's first bytes are SSH-2.0- and the line holds printable ASCII, or the first bad
// byte is an error at once.
func readVersionLine(r io.Reader) ([]byte, error) {
	const prefix = "SSH-2.0-"
	// Most clients send their key exchange right behind; what fits is read with it.
	buf := make([]byte, 0, 2048)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		checked := len(buf)
		buf = buf[:len(buf)+n]
		if m := min(len(buf), len(prefix)); string(buf[:m]) != prefix[:m] {
			return nil, fmt.Errorf("%w: it sent %+q", errNotSSH2, buf[:min(len(buf), 32)])
		}
		if end := bytes.IndexByte(buf, '\n'); end >= 0 {
			line := bytes.TrimSuffix(buf[:end], []byte("\r"))
			if end >= maxVersionLine {
				return nil, fmt.Errorf("%w: version line of %d bytes", errNotSSH2, end+1)
			}
			return buf, printable(line)
		}
		if len(buf) >= maxVersionLine {
			return nil, fmt.Errorf("%w: version line without an end", errNotSSH2)
		}
		// A dripping client is told at its first bad byte, not at the end of the line.
		if err := printable(bytes.TrimSuffix(buf[checked:], []byte("\r"))); err != nil {
			return nil, err
		}
		if err != nil {
			return nil, err
		}
	}
}

func printable(line []byte) error {
	for _, c := range line {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%w: byte %#02x in the version line", errNotSSH2, c)
		}
	}
	return nil
}
