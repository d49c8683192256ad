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

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

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
