package gateway

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What the record cannot give is said in the Result, which is not lost by it.
func TestWholeOfAGap(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	l := fed(t, d)
	l.Feed().Output(0, []byte("begin\r\n"))
	l.Feed().Output(1000, []byte("end\r\n"))
	a := &Attachment{hub: d.Hub, live: l}
	for _, tt := range []struct {
		name     string
		from, to uint64
		output   string
		notes    []string
	}{
		{"all of it", 0, 7, "begin\n", nil},
		{"a gap within", 0, 1005, "begin\n[993 bytes are missing: lagged]\nend\n", []string{"output_truncated", "record_unreadable: bytes 0 to 1005 of the log: bytes 7 to 1000 were not recorded: lagged"}},
		{"nothing", 8, 900, "of the frame", []string{"output_truncated", "record_unreadable: bytes 8 to 900 of the log: bytes 8 to 900 were not recorded: lagged"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &wire.Result{From: tt.from, To: tt.to, Output: "of the frame", Truncated: true, Notes: []string{"output_truncated"}}
			a.Whole(w.ctx(), r, -1)()
			if r.Output != tt.output || !slices.Equal(r.Notes, tt.notes) || r.Truncated != (tt.notes != nil) {
				t.Errorf("output %q, truncated %v, notes %q", r.Output, r.Truncated, r.Notes)
			}
		})
	}
	// A few at once, and no more.
	var releases []func()
	for i := range maxWholes + 1 {
		r := &wire.Result{From: 0, To: 7, Truncated: true}
		releases = append(releases, a.Whole(w.ctx(), r, -1))
		if full := i == maxWholes; full != strings.Contains(strings.Join(r.Notes, " "), errWholes.Error()) {
			t.Errorf("number %d: notes %q", i+1, r.Notes)
		}
	}
	for _, release := range releases {
		release()
	}
	if len(d.wholes) != 0 {
		t.Errorf("%d slots are left behind", len(d.wholes))
	}
}

// A record that fails to be read is an error in the notes.
func TestWholeOfARecordThatCannotBeRead(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	l := fed(t, d)
	l.Feed().Output(0, make([]byte, 1<<20)) // more than memory keeps
	if err := os.RemoveAll(record.Dir(d.records(d.boxOf().id), "fed", 0)); err != nil {
		t.Fatal(err)
	}
	l.Tidy(0) // which closes the files
	r := &wire.Result{From: 0, To: 100, Output: "of the frame", Truncated: true, Notes: []string{"output_truncated"}}
	(&Attachment{hub: d.Hub, live: l}).Whole(w.ctx(), r, -1)()
	if r.Output != "of the frame" || !r.Truncated || len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[1], "record_unreadable: bytes 0 to 100 of the log: ") {
		t.Errorf("output %q, notes %q", r.Output, r.Notes)
	}
	if _, _, _, err := live.Render(w.ctx(), l, 0, 100, -1); err == nil || errors.Is(err, w.ctx().Err()) {
		t.Errorf("reading: %v", err)
	}
}
