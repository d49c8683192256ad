package track

import (
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestPace lists the rests between looks at a terminal on which nothing happens, until they stop
// growing.
func TestPace(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	soon := []time.Duration{300 * us, 600 * us, 1200 * us, 2400 * us, 4800 * us, 9600 * us,
		19200 * us, 38400 * us}
	idle := append(soon[:len(soon):len(soon)], 76800*us, 153600*us, 307200*us, 614400*us,
		time.Second, time.Second)
	for _, tt := range []struct {
		name  string
		phase wire.Phase
		quiet time.Duration
		calm  bool
		want  []time.Duration
	}{
		{"a program works", wire.PhaseRunning, 0, false, append(soon[:len(soon):len(soon)], 64*ms, 64*ms)},
		{"it has been silent", wire.PhaseRunning, 2 * time.Second, false,
			append(soon[:len(soon):len(soon)], 76800*us, 125*ms, 125*ms)},
		{"it has been silent for long", wire.PhaseRunning, time.Hour, false,
			append(soon[:len(soon):len(soon)], 76800*us, 153600*us, 250*ms, 250*ms)},
		{"a prompt", wire.PhasePrompt, 0, false, idle},
		{"a question", wire.PhaseWaiting, 0, false, idle},
		{"nobody waits for a call", wire.PhaseRunning, 0, true,
			[]time.Duration{20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, time.Second, time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Pace
			p.Anew(tt.calm)
			for i, want := range tt.want {
				if got := p.Rest(); got != want {
					t.Fatalf("rest %d is %v, want %v", i, got, want)
				}
				p.Longer(tt.phase, tt.quiet, tt.calm)
			}
			if !p.Long() && tt.want[len(tt.want)-1] > lastLook {
				t.Error("a caller who has just come does not end the rest")
			}
			if p.Again(); p.Rest() != firstLook || !p.Fresh() {
				t.Errorf("to confirm it, rest %v", p.Rest())
			}
		})
	}
}

// TestPaceInAFlood checks that looks come less often than output in a flood.
func TestPaceInAFlood(t *testing.T) {
	var p Pace
	for i := range 20 {
		want := firstLook * time.Duration(min(max(i+1-fewOutputs, 1), mostFlood))
		if got := p.Output(false); got != want {
			t.Errorf("after output %d rest %v, want %v", i, got, want)
		}
	}
	p.Rested()
	if got := p.Output(false); got != firstLook {
		t.Errorf("after a rest that was whole: %v", got)
	}
}
