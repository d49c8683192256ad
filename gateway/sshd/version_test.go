package sshd

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadVersionLine(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     string // passed-on bytes; empty: an error
	}{
		{"openssh", "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"},
		{"newline alone", "SSH-2.0-x\n", "SSH-2.0-x\n"},
		{"key exchange right behind", "SSH-2.0-x\r\n\x00\x01\x02", "SSH-2.0-x\r\n\x00\x01\x02"},
		{"longest", "SSH-2.0-" + strings.Repeat("x", 245) + "\r\n", "SSH-2.0-" + strings.Repeat("x", 245) + "\r\n"},
		{"too long", "SSH-2.0-" + strings.Repeat("x", 246) + "\r\n", ""},
		{"no end", "SSH-2.0-" + strings.Repeat("x", 1<<20), ""},
		{"SSH-1", "SSH-1.5-x\r\n", ""},
		{"SSH-1.99 is for servers", "SSH-1.99-x\r\n", ""},
		{"web", "GET / HTTP/1.1\r\n\r\n", ""},
		{"lines in front", "hello\r\nSSH-2.0-x\r\n", ""},
		{"empty line in front", "\r\nSSH-2.0-x\r\n", ""},
		{"NUL", "SSH-2.0-a\x00b\r\n", ""},
		{"ESC", "SSH-2.0-\x1b[2J\r\n", ""},
		{"CR inside", "SSH-2.0-a\rb\r\n", ""},
		{"not ASCII", "SSH-2.0-é\r\n", ""},
		{"ends early", "SSH-2.0-x", ""},
		{"nothing", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"whole":       strings.NewReader(tt.in),
				"by byte":     iotest.OneByteReader(strings.NewReader(tt.in)),
				"data at EOF": iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				got, err := readVersionLine(r)
				if (err == nil) != (tt.want != "") {
					t.Fatalf("%s: err %v, want %q", how, err, tt.want)
				}
				if err != nil {
					continue
				}
				rest, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				if all := string(got) + string(rest); all != tt.want {
					t.Errorf("%s: got %q, want %q", how, all, tt.want)
				}
			}
		})
	}
}

// A first byte that cannot begin an SSH-2 line is rejected without waiting for a second one.
func TestReadVersionLineAtOnce(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("G"))
	if _, err := readVersionLine(r); !errors.Is(err, errNotSSH2) {
		t.Fatalf("got %v, want %v", err, errNotSSH2)
	}
}

func FuzzReadVersionLine(f *testing.F) {
	f.Add([]byte("SSH-2.0-OpenSSH_9.2p1\r\nrest"))
	f.Add([]byte("SSH-1.5-x\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readVersionLine(bytes.NewReader(in))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(in, got) || !bytes.HasPrefix(got, []byte("SSH-2.0-")) ||
			bytes.IndexByte(got, '\n') >= maxVersionLine {
			t.Errorf("%q was let through of %q", got, in)
		}
	})
}
