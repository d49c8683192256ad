package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
)

// serveFiles returns a client of the server serve.
func serveFiles(t *testing.T, patience time.Duration, serve func(net.Conn)) *Files {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); serve(far); far.Close() }()
	f, err := newFiles(near, near, func() { near.Close() }, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); near.Close(); <-done })
	return f
}

// real serves this machine's files.
func real(t *testing.T) func(net.Conn) {
	return func(c net.Conn) {
		s, err := sftp.NewServer(c)
		if err != nil {
			t.Error(err)
			return
		}
		_ = s.Serve()
	}
}

// Directories and files are read exactly.
func TestFilesAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 { // more than one packet of them
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte("x"),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := serveFiles(t, filesPatience, real(t))
	all, err := f.ReadDir(dir)
	if err != nil || len(all) != 300 {
		t.Errorf("%d entries, %v", len(all), err)
	}
	file, err := f.Open(filepath.Join(dir, "7"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if text, err := io.ReadAll(file); string(text) != "x" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owed != 0 {
		t.Errorf("it owes %d answers", f.owed)
	}
}

// hostile answers INIT, OPENDIR, CLOSE, and READDIR by names.
func hostile(names func() []byte) func(net.Conn) {
	return func(c net.Conn) {
		for {
			var head [5]byte
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			rest := make([]byte, binary.BigEndian.Uint32(head[:])-1)
			if _, err := io.ReadFull(c, rest); err != nil {
				return
			}
			var answer []byte
			switch head[4] {
			case 1: // INIT
				answer = []byte{2, 0, 0, 0, 3}
			case 11: // OPENDIR
				answer = append(append([]byte{102}, rest[:4]...), 0, 0, 0, 1, 'h')
			case 12: // READDIR
				if answer = names(); answer == nil {
					continue // nothing is answered
				}
				copy(answer[1:5], rest[:4])
			default:
				answer = append(
					append([]byte{101}, rest[:4]...),
					0,
					0,
					0,
					0,
					0,
					0,
					0,
					0,
					0,
					0,
					0,
					0,
				)
			}
			if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))),
				answer...)); err != nil {
				return
			}
		}
	}
}

// An endless directory is an error: a sandbox controls neither the memory nor the time of a call.
func TestFilesWithoutEnd(t *testing.T) {
	packets := 0
	f := serveFiles(t, filesPatience, hostile(func() []byte {
		packets++
		const n = 5000
		answer := append([]byte{104, 0, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, n)...)
		for range n {
			answer = append(
				answer,
				0,
				0,
				0,
				1,
				'x',
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
			) // a name, no long one, no attributes
		}
		return answer
	}))
	all, err := f.ReadDir("/")
	if !errors.Is(err, ErrEntries) || all != nil {
		t.Errorf("%d entries, %v", len(all), err)
	}
	// The client chooses at random between a reply that it already has and the end of the call.
	if most := 2 * MaxEntries / 5000; packets > most {
		t.Errorf("%d packets were read", packets)
	}
	if err := f.Remove("/x"); err != nil { // what else there is goes on
		t.Errorf("afterwards: %v", err)
	}
}

// If a server sends no reply, the connection is closed and waiting calls fail.
func TestFilesWithoutAnswer(t *testing.T) {
	f := serveFiles(t, 50*time.Millisecond, hostile(func() []byte { return nil }))
	if _, err := f.ReadDir("/"); err == nil {
		t.Error("it is answered")
	}
	if err := f.Remove("/x"); err == nil {
		t.Error("the connection goes on")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.ReadDirContext(ctx, "/"); err == nil {
		t.Error("nobody waits, and it is answered")
	}
}

// A server that sends endless names, each a very long one, cannot use up memory.
func TestLongNames(t *testing.T) {
	packets := 0
	f := serveFiles(t, filesPatience, hostile(func() []byte {
		packets++
		name := strings.Repeat("x", 200<<10)
		answer := binary.BigEndian.AppendUint32([]byte{104, 0, 0, 0, 0}, 1)
		answer = append(binary.BigEndian.AppendUint32(answer, uint32(len(name))), name...)
		return append(answer, 0, 0, 0, 0, 0, 0, 0, 0) // no long name, no attributes
	}))
	if all, err := f.ReadDir("/"); !errors.Is(err, ErrEntries) || all != nil {
		t.Errorf("got %d entries, error %v; want %v", len(all), err, ErrEntries)
	}
	if most := maxListing / (200 << 10) * 2; packets > most {
		t.Errorf("it was asked for %d packets, want at most %d", packets, most)
	}
}

// The counts are never more than the server sent.
func FuzzFlow(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 104, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 2, 0, 0, 0, 3}, 3)
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		whole, cut := 0, 0
		(&flow{packet: func(byte, uint32, uint32) { whole++ }}).feed(text)
		parts := &flow{packet: func(byte, uint32, uint32) { cut++ }}
		for n := max(1, piece&0xff); len(text) > 0; {
			n = min(n, len(text))
			parts.feed(text[:n])
			text = text[n:]
		}
		if whole != cut {
			t.Errorf("%d packets at once, %d in pieces", whole, cut)
		}
	})
}
