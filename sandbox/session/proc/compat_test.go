//go:build linux && amd64

package proc

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// program32 writes a 32-bit program that consists only of code, and returns its path.
func program32(t *testing.T, code string) string {
	t.Helper()
	const base, header = 0x08048000, 52 + 32
	size := uint32(header + len(code))
	var b bytes.Buffer
	b.WriteString("\x7fELF\x01\x01\x01" + string(make([]byte, 9)))
	for _, v := range []any{
		// An i386 executable.
		uint16(2), uint16(3), uint32(1), uint32(base + header), uint32(52), uint32(0), uint32(0),
		uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0),
		// All of it is code.
		uint32(1), uint32(0), uint32(base), uint32(base), size, size, uint32(5), uint32(0x1000),
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString(code)
	path := filepath.Join(t.TempDir(), "program32")
	if err := os.WriteFile(path, b.Bytes(), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReads32 probes a 32-bit program that reads. Its calls have other numbers.
func TestReads32(t *testing.T) {
	// read(0, stack, 100)
	x := open(t, program32(t, "\xb8\x03\x00\x00\x00\x31\xdb\x89\xe1\xba\x64\x00\x00\x00\xcd\x80"+
		"\xb8\x01\x00\x00\x00\xcd\x80")) // exit
	x.until("blocked", func(f session.Facts) bool {
		return f.Blocked && program(f.Argv) == "program32"
	})
}

// TestSleeps32 stops and continues a 32-bit program that sleeps. Its call then has number 0, which
// is read on amd64.
func TestSleeps32(t *testing.T) {
	// clock_nanosleep(0, 0, {1000, 0}, 0)
	sleeper := program32(t,
		"\xb8\x0b\x01\x00\x00\x6a\x00\x68\xe8\x03\x00\x00\x89\xe2\x31\xdb\x31\xc9\x31\xf6\xcd\x80"+
			"\xb8\x01\x00\x00\x00\xcd\x80")
	x := open(t, "bash", "--norc", "-i")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked })
	x.typ(sleeper + "\n")
	asleep := func(f session.Facts) bool {
		if f.Blocked && program(f.Argv) == "program32" {
			t.Fatalf("got %+v of one that sleeps", f)
		}
		return program(f.Argv) == "program32" && f.Why != "" && f.Still != nil && f.Still()
	}
	x.until("asleep", asleep)
	x.typ("\x1a")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("fg\n")
	for range 50 {
		x.until("asleep", asleep)
	}
}
