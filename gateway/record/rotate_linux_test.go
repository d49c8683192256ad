package record

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// blocks returns the disk space of the record.
func blocks(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	for _, name := range []string{LogFile, EventsFile} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		sum += st.Blocks * 512
	}
	return sum
}

// At its quota a record removes its oldest part: offsets stay, the newest bytes are present, the
// disk has room.
func TestRotation(t *testing.T) {
	const quota = 256 << 10
	w, dir := create(t, Options{Quota: quota, Cols: 100, Rows: 30})
	r := rand.New(rand.NewPCG(1, 2))
	var truth []byte
	check := func(w *Writer) {
		t.Helper()
		got := content(t, w)
		if len(got) != len(truth) {
			t.Fatalf("content of %d bytes, want %d", len(got), len(truth))
		}
		start := 0
		for start < len(got) && got[start] == '~' {
			start++
		}
		if got[start:] != string(truth[start:]) {
			t.Fatalf("what follows the hole of %d bytes differs", start)
		}
		if len(truth) > quota && (start == 0 || len(truth)-start < quota/4) {
			t.Fatalf("%d of %d bytes are left at a quota of %d", len(truth)-start, len(truth),
				quota)
		}
	}
	var old *Reader
	for seq := uint64(1); len(truth) < 5*quota; seq++ {
		p := []byte(strings.Repeat(string(rune('a'+r.IntN(26))), 1+r.IntN(3000)))
		if err := w.Append(uint64(len(truth)), p); err != nil {
			t.Fatal(err)
		}
		truth = append(truth, p...)
		if err := w.Event(wire.Event{Seq: seq, Kind: wire.EventCommand, Op: "x",
			Text: strings.Repeat("t", r.IntN(300))}); err != nil {
			t.Fatal(err)
		}
		if seq == 20 {
			var err error
			if old, err = OpenReader(dir); err != nil {
				t.Fatal(err)
			}
			defer old.Close()
		}
		if seq == 30 {
			if err := w.Event(wire.Event{Kind: wire.EventResize, Cols: 77, Rows: 11}); err != nil {
				t.Fatal(err)
			}
		}
		if used := blocks(t, dir); used > quota+64<<10 {
			t.Fatalf("%d bytes on disk at a quota of %d", used, quota)
		}
		if seq%50 == 0 {
			check(w)
		}
		if seq%97 == 0 {
			before := w.Seq()
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w = reopen(t, dir, Options{Quota: quota})
			if w.Seq() != before {
				t.Fatalf("opened: seq %d, want %d", w.Seq(), before)
			}
		}
	}
	check(w)
	// A reader that was opened earlier reports the missing bytes, and does not read zeros.
	var gap *GapError
	if _, err := old.ReadAt(make([]byte, 10), 5); !errors.As(err, &gap) || gap.Why != WhyRotated {
		t.Errorf("an old reader in the hole: %v, want a gap that was rotated", err)
	}
	if err := w.Finish(wire.State{Phase: wire.PhaseDead, Basis: []wire.Basis{}}); err != nil {
		t.Fatal(err)
	}
	now, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if s, _ := now.SizeAt(now.End()); s.Cols != 77 || s.Rows != 11 {
		t.Errorf("size %dx%d, want 77x11", s.Cols, s.Rows)
	}
	if now.Begin().Cols != 100 || !now.Finished() || now.End() != uint64(len(truth)) {
		t.Errorf("begin %+v, finished %v, end %d; want 100 columns, true, %d", now.Begin(),
			now.Finished(), now.End(), len(truth))
	}
	if _, err := os.Stat(filepath.Join(dir, EventsFile+".new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("events.ndjson.new: %v, want none", err)
	}
}
