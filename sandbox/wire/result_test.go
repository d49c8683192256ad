package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExitStatus(t *testing.T) {
	code := func(n int) *int { return &n }
	kill := "KILL"
	for _, c := range []struct {
		r    Result
		want int
	}{
		{Result{Ended: Done, ExitCode: code(0)}, 0},
		{Result{Ended: Done, ExitCode: code(7)}, 7},
		{Result{Ended: Done, ExitCode: code(255)}, 255},
		{Result{Ended: Waiting}, 123},
		{Result{Ended: Attention}, 123},
		{Result{Ended: Continuation}, 123},
		{Result{Ended: Deadline}, 124},
		{Result{Ended: TakenOver}, 125},
		{Result{Ended: Refused}, 125},
		{Result{Ended: Interrupted}, 130},
		{Result{Ended: Dead, ExitCode: code(3)}, 3},
		{Result{Ended: Dead, Signal: &kill}, 137},
		{Result{}, 125},
	} {
		if got := c.r.ExitStatus(); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.r, got, c.want)
		}
	}
}

func TestErrorIs(t *testing.T) {
	err := fmt.Errorf("shell: %w", Errorf(CodeNotFound, "no sandbox %s", "x"))
	if !errors.Is(err, &Error{Code: CodeNotFound}) || errors.Is(err, &Error{Code: CodeDenied}) {
		t.Error("errors.Is does not go by code")
	}
}

func TestOffsetJSON(t *testing.T) {
	for _, c := range []struct {
		o    Offset
		text string
	}{{Offset{}, `"now"`}, {Offset{Word: FromStart}, `"start"`}, {At(0), `0`},
		{At(1 << 60), `1152921504606846976`}} {
		got, err := json.Marshal(c.o)
		if err != nil || string(got) != c.text {
			t.Errorf("%v: got %s, %v; want %s", c.o, got, err, c.text)
		}
		var back Offset
		if err := json.Unmarshal(got, &back); err != nil || back.N != c.o.N ||
			(back.Word == "at") != (c.o.Word == "at") {
			t.Errorf("%s came back as %v, %v", got, back, err)
		}
	}
	for _, bad := range []string{`"soon"`, `-1`, `1.5`, `{}`} {
		if err := json.Unmarshal([]byte(bad), new(Offset)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestClampSize(t *testing.T) {
	for _, c := range []struct {
		cols, rows         uint32
		wantCols, wantRows int
	}{
		{80, 24, 80, 24}, {0, 0, 80, 24}, {1, 1, 1, 1}, {1<<32 - 1, 1<<32 - 1, MaxCols, MaxRows},
	} {
		if cols, rows := ClampSize(c.cols, c.rows); cols != c.wantCols || rows != c.wantRows {
			t.Errorf("ClampSize(%d, %d) = %d, %d", c.cols, c.rows, cols, rows)
		}
	}
}

func TestSignals(t *testing.T) {
	for n := 1; n <= 64; n++ {
		if got := SignalNumber(SignalName(n)); got != n {
			t.Errorf("signal %d, %s: got %d", n, SignalName(n), got)
		}
	}
	for _, name := range strings.Split(",0,-9,+9,65,255,256,term,SIGTERM,9 ,x", ",") {
		if got := SignalNumber(name); got != 0 {
			t.Errorf("%q: got %d", name, got)
		}
	}
}
