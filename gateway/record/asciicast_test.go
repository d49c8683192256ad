package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const castEvents = `{"kind":"begin","time_unix_ms":1700000000000,"cols":80,"rows":24,"text":"demo~main"}
{"kind":"output","offset":4,"time_unix_ms":1700000000500}
{"seq":1,"kind":"resize","offset":4,"cols":100,"rows":30,"time_unix_ms":1700000001000}
{"kind":"output","offset":8,"time_unix_ms":1700000000900}
{"seq":2,"kind":"command","offset":8,"by":"agent:alice","text":"ls <x>","time_unix_ms":1700000002000}
{"kind":"gap","offset":8,"missed":5,"text":"lagged","time_unix_ms":1700000003000}
{"kind":"finish","offset":13,"state":{"phase":"dead","exit_code":3,"basis":null},"time_unix_ms":1700000004000}
`

func openCast(t *testing.T, events, log string) *Reader {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, EventsFile), []byte(events), 0o600),
		os.WriteFile(filepath.Join(dir, LogFile), []byte(log), 0o600)); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestExport(t *testing.T) {
	// The ü is split between two events; \xff is not UTF-8.
	r := openCast(t, castEvents, "a\r\n\xc3\xbc\xff<b")
	for version, want := range map[int]string{
		2: `{"version":2,"width":80,"height":24,"timestamp":1700000000,"title":"demo~main","env":{"TERM":"xterm-256color"},"sandboxd":{"lossy":true,"replaced_bytes":1,"missing_bytes":5}}
[0.500,"o","a\r\n"]
[1.000,"r","100x30"]
[1.000,"o","ü�\u003cb"]
[2.000,"m","agent:alice: ls \u003cx\u003e"]
[3.000,"m","5 bytes missing: lagged"]
`,
		3: `{"version":3,"term":{"cols":80,"rows":24,"type":"xterm-256color"},"timestamp":1700000000,"title":"demo~main","sandboxd":{"lossy":true,"replaced_bytes":1,"missing_bytes":5}}
[0.500,"o","a\r\n"]
[0.500,"r","100x30"]
[0.000,"o","ü�\u003cb"]
[1.000,"m","agent:alice: ls \u003cx\u003e"]
[1.000,"m","5 bytes missing: lagged"]
[1.000,"x","3"]
`,
	} {
		var b bytes.Buffer
		if err := r.Export(&b, version); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("version %d (-want +got):\n%s", version, diff)
		}
	}
	if err := r.Export(&bytes.Buffer{}, 1); err == nil {
		t.Error("version 1 was exported")
	}
}

// Commands and titles that try to act on a terminal or a page are plain text.
func TestHostileTitles(t *testing.T) {
	const evil = `<script>alert(1)</script>\u001b]0;x\u0007\u009b31m&`
	events := `{"kind":"begin","time_unix_ms":1700000000000,"cols":80,"rows":24,"text":"` + evil + `"}
{"seq":2,"kind":"command","by":"agent:` + evil + `","text":"` + evil + `","time_unix_ms":1700000002000}
{"seq":3,"kind":"keyboard","keyboard":"` + evil + `","time_unix_ms":1700000002000}
`
	for version := Asciicast2; version <= Asciicast3; version++ {
		var b bytes.Buffer
		if err := openCast(t, events, "").Export(&b, version); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); strings.ContainsAny(got, "<>&\x1b\x07\u009b") || strings.Contains(
			got, "u001b") || strings.Contains(got, "u009b") || strings.Count(got, "script") != 8 {
			t.Errorf("version %d: %s", version, got)
		}
	}
}

// FuzzExport: for any bytes of a terminal, every line is JSON, and valid UTF-8 is preserved.
func FuzzExport(f *testing.F) {
	f.Add([]byte("a\xc3"), []byte("\xbcb"))
	f.Add([]byte("\xf0\x9f"), []byte("\x98"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		dir := filepath.Join(t.TempDir(), "main")
		w, err := Create(dir, Options{Begun: begun})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Append(0, one), w.Event(event("x")),
			w.Append(uint64(len(one)), two), w.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := OpenReader(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var b bytes.Buffer
		if err := r.Export(&b, 2); err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(b.String(), "\n")
		var h struct {
			Fidelity Fidelity `json:"sandboxd"`
		}
		if err := json.Unmarshal([]byte(head), &h); err != nil {
			t.Fatalf("header %q: %v", head, err)
		}
		var text strings.Builder
		for line := range strings.Lines(rest) {
			var e []any
			if err := json.Unmarshal([]byte(line), &e); err != nil || len(e) != 3 {
				t.Fatalf("line %q: %v", line, err)
			}
			if e[1] == "o" {
				text.WriteString(e[2].(string))
			}
		}
		all := string(one) + string(two)
		if want := strings.ToValidUTF8(all, ""); h.Fidelity.Replaced == 0 && text.String() != want {
			t.Errorf("text = %q, want %q", text.String(), want)
		}
		if h.Fidelity.Lossy != (strings.ToValidUTF8(all, "") != all) {
			t.Errorf("lossy = %v for %q", h.Fidelity.Lossy, all)
		}
	})
}
