package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// onDisk returns the content of all files of the record.
func onDisk(t *testing.T, dir string) string {
	t.Helper()
	var all []byte
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return string(all)
}

func TestPrivateStretchIsAHole(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "before")
	if err := w.Event(wire.Event{Seq: 5, Kind: Private, By: "person:bob"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"my sec", "ret"} {
		if err := w.Append(w.End(), []byte(p)); !errors.Is(err, ErrPrivate) {
			t.Fatalf("Append in private: %v, want ErrPrivate", err)
		}
		e := wire.Event{Seq: w.Seq() + 1, Kind: wire.EventState,
			State: &wire.State{Prompt: "secret?", LastLine: "secret", Basis: []wire.Basis{}}}
		if err := w.Event(e); err != nil {
			t.Fatal(err)
		}
		if err := w.Event(wire.Event{Kind: wire.EventCommand, Text: "echo secret"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Event(wire.Event{Seq: 9, Kind: Private, Missed: 9}); err != nil {
		t.Fatal(err)
	}
	appendAll(t, w, w.End(), "after")
	want := "before" + strings.Repeat("~", 9) + "after"
	if got := content(t, w); got != want {
		t.Errorf("content %q, want %q", got, want)
	}
	_, err := w.ReadAt(make([]byte, 10), 8)
	if diff := cmp.Diff(&GapError{From: 8, To: 15, Why: WhyPrivate}, err); diff != "" {
		t.Errorf("in the stretch (-want +got):\n%s", diff)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, dir, Options{})
	if got := content(t, again); got != want || again.Seq() != 9 || again.Private() {
		t.Errorf("opened: content %q, seq %d, private %v, want %q, 9, false", got, again.Seq(),
			again.Private(), want)
	}
	all := onDisk(t, dir)
	if strings.Contains(all, "sec") {
		t.Errorf("the secret is on disk: %q", all)
	}
	if !strings.Contains(all, `"from":6,"to":15`) || !strings.Contains(all, `"kind":"private"`) {
		t.Errorf("no private event from 6 to 15 in %q", all)
	}
}

// A crash does not end private mode: the guest repeats what was not recorded.
func TestPrivateStretchOutlivesACrash(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "before")
	if err := w.BeginPrivate("person:bob"); err != nil {
		t.Fatal(err)
	}
	_ = w.Append(6, []byte("secret"))
	if err := w.Event(wire.Event{Seq: 1, Kind: wire.EventResize, Cols: 10, Rows: 5}); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, dir, Options{}) // as after kill -9: w is not closed
	if !again.Private() || again.End() != 6 {
		t.Fatalf("opened: private %v, end %d; want true, 6", again.Private(), again.End())
	}
	if err := again.Append(8, []byte("cret, and more")); !errors.Is(err, ErrPrivate) {
		t.Fatalf("Append: %v, want ErrPrivate", err)
	}
	if err := again.EndPrivate(); err != nil {
		t.Fatal(err)
	}
	appendAll(t, again, 22, "after")
	if got, want := content(t, again), "before"+strings.Repeat("~", 16)+"after"; got != want {
		t.Errorf("content %q, want %q", got, want)
	}
	if bytes.Contains([]byte(onDisk(t, dir)), []byte("cret")) {
		t.Error("the secret is on disk")
	}
}

func TestPrivateStretchWithoutOutputIsOver(t *testing.T) {
	w, dir := create(t, Options{})
	if err := errors.Join(w.BeginPrivate("person:bob"), w.BeginPrivate("person:bob"),
		w.EndPrivate(), w.EndPrivate()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if again := reopen(t, dir, Options{}); again.Private() {
		t.Error("still private")
	}
	if got, want := kinds(t, dir), "begin private_begin private"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}
