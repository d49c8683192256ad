package gateway_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A principal reads through one record at a time, and again after it, also after an error.
func TestReadThroughOnce(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "echo kept")
	target := wire.Target{Sandbox: "demo", Session: "main"}
	read := func(t wire.Target, f func(*record.Reader) error) error {
		return d.Sessions.ReadThrough(w.Ctx(), alice, t, 0, f)
	}
	nothing := func(*record.Reader) error { return nil }
	err := read(target, func(r *record.Reader) error {
		if r.End() == 0 {
			t.Error("the record is empty")
		}
		return read(target, nothing)
	})
	wantCode(t, err, wire.CodeLimitOps)
	wantCode(t, read(wire.Target{Sandbox: "demo", Session: "other"}, nothing), wire.CodeNotFound)
	if err := read(target, nothing); err != nil {
		t.Error(err)
	}
}

// A record that was never made and one that cannot be read are two things.
func TestOpenRecordErrors(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	w.Run(d, "echo kept")
	dir := record.Dir(filepath.Join(w.Dir, "records", info.ID), "main", 0)
	target := wire.Target{Sandbox: "demo", Session: "main"}
	r, err := d.Sessions.OpenRecord(w.Ctx(), alice, target, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()

	_, err = d.Sessions.OpenRecord(w.Ctx(), alice, wire.Target{Sandbox: "demo", Session: "other"},
		0)
	wantCode(t, err, wire.CodeNotFound)
	_, err = d.Sessions.OpenRecord(w.Ctx(), alice, target, 7)
	wantCode(t, err, wire.CodeNotFound)

	damages := []struct {
		name, file string
		directory  bool // in its place
	}{{"no log", record.LogFile, false}, {"no events", record.EventsFile, false},
		{"events that are no file", record.EventsFile, true}}
	for _, tt := range damages {
		file, away := filepath.Join(dir, tt.file), filepath.Join(dir, "away")
		if err := os.Rename(file, away); err != nil {
			t.Fatal(err)
		}
		if tt.directory {
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		_, err := d.Sessions.OpenRecord(w.Ctx(), alice, target, 0)
		wantCode(t, err, wire.CodeUnavailable)
		if public := d.Public(err); !strings.Contains(public.Message, "cannot be read") ||
			strings.Contains(public.Message+public.Hint, w.Dir) {
			t.Errorf("%s: a stranger gets %q; %q", tt.name, public.Message, public.Hint)
		}
		if tt.directory {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Rename(away, file); err != nil {
			t.Fatal(err)
		}
	}
}
