package stdio

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/pty"
)

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// The content of a pipe is read to its end, even while it is held open, and not beyond its length
// at the beginning.
func TestRestOfPipe(t *testing.T) {
	text := strings.Repeat("0123456789", 6000)
	for name, held := range map[string]bool{"held": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			r, w := pipe(t)
			io.WriteString(w, text)
			if !held {
				w.Close()
			}
			rest, err := NewRest(r)
			if err != nil {
				t.Fatal(err)
			}
			if held {
				io.WriteString(w, "later")
			}
			got, err := io.ReadAll(rest)
			if err != nil || string(got) != text {
				t.Errorf("got %d bytes and %v, want %d", len(got), err, len(text))
			}
			if rest.Closed == held {
				t.Errorf("closed: %v", rest.Closed)
			}
		})
	}
}

// A terminal does not report the length of its content.
func TestRestOfTerminal(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	text := bytes.Repeat([]byte("x"), 3000)
	for _, closed := range []bool{false, true} {
		if _, err := slave.Write(text); err != nil {
			t.Fatal(err)
		}
		if closed {
			slave.Close()
		}
		rest, err := NewRest(master)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(rest); err != nil || !bytes.Equal(got, text) {
			t.Errorf("got %d bytes and %v, want %d", len(got), err, len(text))
		}
		if rest.Closed != closed {
			t.Errorf("closed: %v, want %v", rest.Closed, closed)
		}
	}
}
