package sandbox

import (
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want int64 // 0: an error
	}{
		{"1", 1},
		{"512m", 512 << 20},
		{"2G", 2 << 30},
		{"64kb", 64 << 10},
		{"1t", 1 << 40},
		{"4194304t", 1 << 62},
		{"4194305t", 0}, // over what fits
		{"0", 0},
		{"-1m", 0},
		{"1.5g", 0},
		{"m", 0},
		{"", 0},
		{"1mm", 0},
		{"9223372036854775808", 0},
	}
	for _, tt := range tests {
		got, err := ParseSize(tt.in)
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

// Set rejects invalid values, and its error states the allowed ones.
func TestLimitSet(t *testing.T) {
	for _, d := range AllLimits {
		var least, most Limits
		if err := d.Set(&least, d.show(d.least)); err != nil {
			t.Errorf("%s: its least: %v", d.Name, err)
		}
		if err := d.Set(&most, d.show(d.most)); err != nil {
			t.Errorf("%s: its most: %v", d.Name, err)
		}
		if got := d.Text(most); got != d.show(d.most) {
			t.Errorf("%s: got %s back, want %s", d.Name, got, d.show(d.most))
		}
		if err := least.Check(); err != nil {
			t.Errorf("%s: check of its least: %v", d.Name, err)
		}
		if got, err := d.Text(DefaultLimits), DefaultLimits.Check(); got == "" || err != nil {
			t.Errorf("%s: default %q, %v", d.Name, got, err)
		}
		nonsense := []string{"", "0", "-1", "lots", "1 g", " 1", "NaN", "inf", "-inf", "1e300",
			"0x10", "9223372036854775808", "1;reboot", "1\n2", "½", "1b2", "1,5",
			strings.Repeat("9", 400)}
		if d.Name != "cpus" {
			nonsense = append(nonsense, "0.5")
		}
		if d.bytes {
			nonsense = append(nonsense, "1", "9999999t", "5gg", "1.5g")
		} else {
			nonsense = append(nonsense, "512m", "5000000")
		}
		for _, text := range nonsense {
			got := DefaultLimits
			err := d.Set(&got, text)
			if err == nil || !strings.Contains(err.Error(), "it may be "+d.show(d.least)+" to "+
				d.show(d.most)) {
				t.Errorf("%s %q: got error %v, want one that says what it may be", d.Name, text,
					err)
			}
			if got != DefaultLimits {
				t.Errorf("%s %q: changed to %+v", d.Name, text, got)
			}
		}
	}
}

func FuzzLimitSet(f *testing.F) {
	for _, text := range []string{"1", "512m", "0.5", "1e3", "-1", "NaN", "1024t", "1tb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range AllLimits {
			var got, again Limits
			if d.Set(&got, text) != nil {
				continue
			}
			if err := got.Check(); err != nil {
				t.Errorf("%s %q: was taken, and then %v", d.Name, text, err)
			}
			if err := d.Set(&again, d.Text(got)); err != nil || again != got {
				t.Errorf("%s %q: got %+v, and by way of %q %+v, %v", d.Name, text, got, d.Text(got),
					again, err)
			}
		}
	})
}

func TestLimitsCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		want   string // in the error
	}{
		{"none", Limits{}, ""},
		{"negative memory", Limits{Memory: -1}, "memory: -1 is out of bounds; it may be 16m to 1024t"},
		{"negative cpus", Limits{CPUs: -1}, "cpus: -1 is out of bounds"},
		{"shm beyond memory", Limits{Memory: 32 << 20, Shm: 64 << 20}, "shm: 64m of /dev/shm is more than the memory limit, 32m"},
		{"few sessions", Limits{Sessions: -5}, "sessions: -5 is out of bounds; it may be 1 to 256"},
	} {
		err := tt.limits.Check()
		if (err == nil) != (tt.want == "") || err != nil &&
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	if got, want := (Limits{PIDs: 7}).Or(DefaultLimits).PIDs, int64(7); got != want {
		t.Errorf("Or: got %d pids, want %d", got, want)
	}
	if got := (Limits{}).Or(DefaultLimits); got != DefaultLimits {
		t.Errorf("Or: got %+v, want %+v", got, DefaultLimits)
	}
}
