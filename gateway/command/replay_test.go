package command

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestPlaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "main")
	w, err := record.Create(dir, record.Options{})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Append(0, []byte("$ ")))
	must(w.Event(wire.Event{Kind: wire.EventState,
		State: &wire.State{Phase: wire.PhasePrompt, Basis: []wire.Basis{}}}))
	must(w.Append(2, []byte("ls\r\n")))
	must(w.Event(wire.Event{Kind: wire.EventBegun, By: "person:bob"}))
	must(w.Append(6, []byte("file\r\n")))
	must(w.Event(wire.Event{Kind: wire.EventOver}))
	must(w.Close())
	r, err := record.OpenReader(dir)
	must(err)
	defer r.Close()
	for s, want := range map[string]uint64{"@5": 5, "@999": 12, "#1": 2, "#-1": 2, "1h": 12} {
		if got, err := place(r, s); err != nil || got != want {
			t.Errorf("place %q = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "@", "@-1", "#", "#0", "#2", "#-2", "-5s", "5"} {
		if got, err := place(r, s); err == nil {
			t.Errorf("place %q = %d, want an error", s, got)
		}
	}
	c := r.Commands()
	if len(c) != 1 || lineText(t.Context(), r, &c[0]) != "ls" {
		t.Errorf("commands %+v, want ls", c)
	}
}

// Unknown keys do not end a pause.
func TestKeys(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	env := &Env{Stdin: strings.NewReader("\x1b[A \x1bOB\x1b[Cq"), done: done}
	keys := keysFrom(env.Stdin, env.done)
	for _, want := range []string{" ", "right", "q"} {
		if got := <-keys; got.Key != want {
			t.Errorf("got order %v, want %q", got, want)
		}
	}
}
