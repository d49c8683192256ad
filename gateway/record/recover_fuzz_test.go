package record

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func event(text string) wire.Event { return wire.Event{Kind: wire.EventCommand, Text: text} }

// FuzzRecovery: for any content of the two files, Open neither fails nor panics, the record
// continues at its end, and opening it again finds the same.
func FuzzRecovery(f *testing.F) {
	f.Add([]byte(castEvents), []byte("a\r\n\xc3\xbc\xff<b"))
	f.Add([]byte(castEvents[:300]), []byte("abc"))
	f.Add([]byte(`{"kind":"gap","offset":9223372036854775807,"missed":9223372036854775807}`+"\n"),
		[]byte("x"))
	f.Add([]byte(`{"kind":"gap","offset":5,"missed":5}`+"\n"+
		`{"kind":"gap","offset":1,"missed":20}`+"\n{"), []byte("xyz"))
	f.Fuzz(func(t *testing.T, events, log []byte) {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, EventsFile), events, 0o600),
			os.WriteFile(filepath.Join(dir, LogFile), log, 0o600)); err != nil {
			t.Fatal(err)
		}
		r, err := OpenReader(dir)
		if err != nil {
			t.Fatalf("OpenReader: %v", err)
		}
		for _, err := range r.Events() {
			if err != nil {
				t.Fatalf("Events: %v", err)
			}
		}
		w, err := Open(dir, Options{Quota: -1})
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		if r.End() != w.End() || r.Finished() != w.Finished() {
			t.Fatalf("reader: end %d finished %v; writer: %d %v", r.End(), r.Finished(), w.End(),
				w.Finished())
		}
		r.Close()
		before := walk(t, w)
		end := w.End()
		// A log that claims to end near the file size limit is not written to: the file system
		// would fail.
		goesOn := !w.Finished() && w.Stopped() == "" && end < 1<<40 && len(w.gaps) < maxGaps
		if goesOn {
			if err := w.Append(end, []byte("more")); err != nil {
				t.Fatalf("Append at %d: %v", end, err)
			}
			before = append(before, [2]uint64{end, end + 4})
			end += 4
		}
		if err := w.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		again, err := Open(dir, Options{Quota: -1})
		if err != nil {
			t.Fatalf("Open again: %v", err)
		}
		defer again.Close()
		if goesOn && again.End() != end {
			t.Fatalf("End after opening again = %d, want %d", again.End(), end)
		}
		if after := walk(t, again); goesOn && len(join(after)) != len(join(before)) {
			t.Fatalf("readable stretches after opening again: %v, want %v", join(after),
				join(before))
		}
	})
}

// walk returns the readable ranges.
func walk(t *testing.T, w *Writer) [][2]uint64 {
	t.Helper()
	var all [][2]uint64
	buf := make([]byte, 4096)
	for off := uint64(0); ; {
		n, err := w.ReadAt(buf, off)
		var gap *GapError
		switch {
		case errors.Is(err, io.EOF):
			return all
		case errors.As(err, &gap):
			if gap.To <= off {
				t.Fatalf("gap at %d ends at %d", off, gap.To)
			}
			off = gap.To
		case err != nil || n == 0:
			t.Fatalf("ReadAt(%d) = %d, %v", off, n, err)
		default:
			all = append(all, [2]uint64{off, off + uint64(n)})
			off += uint64(n)
		}
	}
}

// join merges adjacent ranges.
func join(all [][2]uint64) [][2]uint64 {
	var out [][2]uint64
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1][1] == s[0] {
			out[n-1][1] = s[1]
			continue
		}
		out = append(out, s)
	}
	return out
}
