package sshd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxVersionLine is the longest identification string, including its line end (RFC 4253, section
// 4.2).
const maxVersionLine = 255

// errNotSSH2 is the error for a peer that does not begin with an SSH-2 identification string.
var errNotSSH2 = errors.New("not an SSH-2 client")

// readVersionLine reads a client's identification string. It returns it with its line end and with
// any further bytes of the same reads. It is stricter than the library, which accepts SSH-1, 1,024
// preceding lines and control characters. Here the first bytes are SSH-2.0- and the line is
// printable ASCII; the first invalid byte is an error at once.
func readVersionLine(r io.Reader) ([]byte, error) {
	const prefix = "SSH-2.0-"
	// Most clients send their key exchange right after it; what fits is read, too.
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
		// Report the first bad byte of a slow client at once, not at the end of the line.
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
