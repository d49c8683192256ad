package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
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

// The real asciinema plays our exports, byte for byte where they are UTF-8.
func TestAsciinemaPlaysTheExport(t *testing.T) {
	if _, err := exec.LookPath("asciinema"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("no asciinema on this machine")
	}
	w, dir := create(t, Options{Title: "demo~main"})
	r := rand.New(rand.NewPCG(1, 2))
	words := []string{"hello ", "世界", "\x1b[31mred\x1b[m", "\r\n", "\t", "é", "👍", "\x1b[2J", "\a",
		"\\\"", "\u2028", "<&>", "\x7f"}
	var log string
	for range 2000 {
		p := words[r.IntN(len(words))]
		n := r.IntN(len(p) + 1) // some characters are split, with events in between
		appendAll(t, w, uint64(len(log)), p[:n])
		if r.IntN(10) == 0 {
			if err := w.Event(wire.Event{Kind: wire.EventResize, Cols: 80 + r.IntN(9),
				Rows: 24}); err != nil {
				t.Fatal(err)
			}
		}
		appendAll(t, w, uint64(len(log)+n), p[n:])
		log += p
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rec, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	file := filepath.Join(t.TempDir(), "demo.cast")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rec.Export(f, Asciicast2), f.Close()); err != nil {
		t.Fatal(err)
	}
	// It requires a terminal, if only to read keys.
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	cmd := exec.Command("asciinema", "cat", file)
	cmd.Stdin, cmd.SysProcAttr = tty, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "ASCIINEMA_CONFIG_HOME="+t.TempDir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("asciinema: %v\n%s", err, errs.String())
	}
	if string(got) != log {
		t.Errorf("asciinema prints %d bytes that are not the %d of the log", len(got), len(log))
	}
	// Version 3 writes times differently, and contains the same output.
	var v3 bytes.Buffer
	if err := rec.Export(&v3, Asciicast3); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(v3.String()[strings.IndexByte(v3.String(), '\n')+1:]) {
		var e [3]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e[1] == "o" {
			out.WriteString(e[2].(string))
		}
	}
	if out.String() != log {
		t.Error("version 3 holds other output")
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
