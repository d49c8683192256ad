package live

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The guest is not trusted: what it says may make its own session's record poor, and nothing else.
func TestGuestThatLies(t *testing.T) {
	ss := newSessions(t, nil)
	s := adopt(t, ss, "fed")
	f := s.Feed()
	if !f.Output(0, []byte("abc")) || !f.Output(1, []byte("bcdef")) {
		t.Fatal("honest output was rejected")
	}
	if f.Output(math.MaxUint64-1, []byte("x")) || f.Output(1<<62, []byte("x")) {
		t.Error("output beyond every file was taken")
	}
	if text, err := everything(t.Context(), s, 0, 6); text != "abcdef" {
		t.Errorf("the replica has %q, %v", text, err)
	}
	if !f.Output(1<<40, []byte("far")) {
		t.Error("a gap was rejected")
	}
	var lagged *LaggedError
	if _, err := s.ReadAt(t.Context(), 6, make([]byte, 9)); !errors.As(err, &lagged) ||
		lagged.To != 1<<40 {
		t.Errorf("in the gap: %v", err)
	}

	f.Event(wire.Event{Seq: 5, Kind: wire.EventResize, Cols: 1 << 30, Rows: -7,
		Offset: math.MaxUint64, TimeUnix: math.MaxInt64})
	if cols, rows := s.Size(); cols != wire.MaxCols || rows < 1 {
		t.Errorf("size = %d×%d, want it clamped", cols, rows)
	}
	f.Event(wire.Event{Seq: 5, Kind: wire.EventKeyboard, Keyboard: "again"})
	f.Event(wire.Event{Seq: 4, Kind: wire.EventKeyboard, Keyboard: "older"})
	if s.Keyboard() != "" {
		t.Errorf("an event that was reported already changed the keyboard to %q", s.Keyboard())
	}
	r, err := record.OpenReader(record.Dir(ss.options.Records, "fed", 0))
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

// Whatever a guest sends in whatever order, the log never shrinks, readers get each byte once, and
// nothing blocks.
func FuzzFeed(f *testing.F) {
	f.Add([]byte("\x00\x05\x01\x03\x02\x01\x05\x07\x03\x09"))
	f.Add([]byte("\x01\xff\x01\x00\x04\x04\x06\x06\x02\x02"))
	kinds := []wire.EventKind{wire.EventState, wire.EventBegun, wire.EventOver, wire.EventKeyboard,
		wire.EventCommand, wire.EventPrivate,
		wire.EventResize, wire.EventLagged, wire.EventEnded, wire.EventAsk}
	phases := []wire.Phase{wire.PhasePrompt, wire.PhaseRunning, wire.PhaseWaiting, wire.PhaseDead,
		"nonsense"}
	f.Fuzz(func(t *testing.T, script []byte) {
		s := adopt(t, newSessions(t, nil), "fed")
		feed := s.Feed()
		var length uint64
		for i := 0; i+1 < len(script) && i < 200; i += 2 {
			what, n := script[i], uint64(script[i+1])
			if what%2 == 0 {
				feed.Output(n*3, make([]byte, n))
			} else {
				e := wire.Event{Seq: n, Kind: kinds[int(what/2)%len(kinds)], Offset: n * 5, By: "x",
					Op: "op", Cols: int(n) - 5, Rows: int(n)}
				e.State = &wire.State{Phase: phases[int(n)%len(phases)], Offset: n * 7}
				if what > 128 {
					e.Text = wire.WhyPrivate
				}
				feed.Event(e)
			}
			now := s.Len()
			if now < length {
				t.Fatalf("the log shrank from %d to %d", length, now)
			}
			length = now
		}
		for off, buf := uint64(0), make([]byte, 64); off < s.Len(); {
			n, wait, err := s.ReadNow(off, buf)
			var lagged *LaggedError
			switch {
			case errors.As(err, &lagged) && lagged.To > off:
				off = lagged.To
			case err != nil || n == 0:
				t.Fatalf("at %d of %d: %d bytes, waits %v, %v", off, s.Len(), n, wait != nil, err)
			default:
				off += uint64(n)
			}
		}
	})
}

func TestGuestWithTooManySessions(t *testing.T) {
	ss := newSessions(t, nil)
	t.Cleanup(func() { ss.End(errors.New("the test is over")) })
	for i := range maxSessions {
		if _, err := ss.Adopt(wire.SessionInfo{Name: fmt.Sprint("s", i), Created: 1}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := ss.Adopt(wire.SessionInfo{Name: "more", Created: 1})
	wantCode(t, err, wire.CodeLimitSessions)
}

// A name that was given to another session ends the record of the first.
func TestSessionsOfOneNameAreRecordedApart(t *testing.T) {
	ss := newSessions(t, nil)
	one := adopt(t, ss, "fed")
	one.Feed().Output(0, []byte("first"))
	two, err := ss.Adopt(wire.SessionInfo{Name: "fed", Created: one.begun + 1, Cols: 80, Rows: 24})
	if err != nil || two == one {
		t.Fatalf("Adopt = %v, the same %v", err, two == one)
	}
	two.Feed().Output(0, []byte("second"))
	if !one.Final() || two.Len() != 6 {
		t.Errorf("the first is over: %v; the second has %d bytes", one.Final(), two.Len())
	}
	records, err := record.List(ss.options.Records)
	if err != nil || len(records) != 2 || records[0].Run != 1 || records[0].Bytes != 5 ||
		records[0].Ended == nil || records[1].Bytes != 6 {
		t.Errorf("records = %+v, %v", records, err)
	}
	ss.Drop(two, "the test is over")
}
