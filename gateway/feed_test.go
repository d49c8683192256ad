package gateway

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// alone returns demo without its guest: a test says what the guest would.
func alone(t *testing.T, d *daemon) *box {
	t.Helper()
	b, err := d.find(alice, "demo")
	if err != nil {
		t.Fatal(err)
	}
	b.letGo(errors.New("the test takes over"))
	return b
}

// fed returns a replica with a record that a test feeds itself.
func fed(t *testing.T, d *daemon) *Live {
	t.Helper()
	b := alone(t, d)
	l, err := b.adopt(wire.SessionInfo{Name: "fed", Created: time.Now().Add(-time.Minute).UnixMilli(), Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.drop(l, "the test is over") })
	return l
}

// The guest is not trusted: what it says may make its own session's record poor, and nothing else.
func TestGuestThatLies(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	l := fed(t, d)
	if !l.output(0, []byte("abc")) || !l.output(1, []byte("bcdef")) {
		t.Fatal("honest output was refused")
	}
	if l.output(math.MaxUint64-1, []byte("x")) || l.output(1<<62, []byte("x")) {
		t.Error("output beyond every file was taken")
	}
	if text, err := everything(w.ctx(), l, 0, 6); text != "abcdef" {
		t.Errorf("the replica has %q, %v", text, err)
	}
	if !l.output(1<<40, []byte("far")) {
		t.Error("a gap was refused")
	}
	var lagged *LaggedError
	if _, err := l.ReadAt(w.ctx(), 6, make([]byte, 9)); !errors.As(err, &lagged) || lagged.To != 1<<40 {
		t.Errorf("in the gap: %v", err)
	}

	l.event(wire.Event{Seq: 5, Kind: wire.EventResize, Cols: 1 << 30, Rows: -7, Offset: math.MaxUint64, TimeUnix: math.MaxInt64})
	if cols, rows := l.Size(); cols != wire.MaxCols || rows < 1 {
		t.Errorf("size = %d×%d, want it clamped", cols, rows)
	}
	l.event(wire.Event{Seq: 5, Kind: wire.EventKeyboard, Keyboard: "again"})
	l.event(wire.Event{Seq: 4, Kind: wire.EventKeyboard, Keyboard: "older"})
	if l.Keyboard() != "" {
		t.Errorf("an event that was told already changed the keyboard to %q", l.Keyboard())
	}
	r, err := d.OpenRecord(w.ctx(), alice, wire.Target{Sandbox: "demo", Session: "fed"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for e, err := range r.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if e.TimeUnix > time.Now().UnixMilli() || e.Offset > 1<<40+3 {
			t.Errorf("the record believes %+v", e)
		}
	}
}

func TestGuestWithTooManySessions(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	b := alone(t, d)
	for i := range maxLives {
		if _, err := b.adopt(wire.SessionInfo{Name: fmt.Sprint("s", i), Created: 1}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.adopt(wire.SessionInfo{Name: "more", Created: 1})
	wantCode(t, err, wire.CodeLimitSessions)
}

// A name that was given to another session ends the record of the first.
func TestSessionsOfOneNameAreRecordedApart(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	one := fed(t, d)
	one.output(0, []byte("first"))
	two, err := one.box.adopt(wire.SessionInfo{Name: "fed", Created: one.begun + 1, Cols: 80, Rows: 24})
	if err != nil || two == one {
		t.Fatalf("adopt = %v, the same %v", err, two == one)
	}
	two.output(0, []byte("second"))
	if !one.final() || two.Len() != 6 {
		t.Errorf("the first is over: %v; the second has %d bytes", one.final(), two.Len())
	}
	records, err := d.Records(w.ctx(), alice, "demo")
	if err != nil || len(records) != 2 || records[0].Run != 1 || records[0].Bytes != 5 || records[0].Ended == nil || records[1].Bytes != 6 {
		t.Errorf("records = %+v, %v", records, err)
	}
	one.box.drop(two, "the test is over")
}
