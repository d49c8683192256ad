package screen

import (
	"testing"
	"unicode"

	"github.com/rivo/uniseg"
	"golang.org/x/text/unicode/rangetable"

	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// TestRuneWidth checks that every character of Unicode 12, which xterm.js supports, has its width
// there. Newer characters have the width of the Unicode data.
func TestRuneWidth(t *testing.T) {
	x := screentest.StartXterm(t)
	x.Order('n', 80, 24, "")
	var runs [][2]int
	x.Ask('u', "", &runs)
	known := rangetable.Assigned("12.0.0")
	compared := 0
	for r := rune(0xa0); r <= unicode.MaxRune; r++ {
		for len(runs) > 1 && runs[1][0] <= int(r) {
			runs = runs[1:]
		}
		want := runs[0][1]
		switch {
		case r >= 0xd800 && r < 0xe000:
			continue
		case unicode.Is(known, r):
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
			want = 0
		case unicode.Is(unicode.Mc, r) && !unicode.Is(unicode.Han, r):
			// Spacing marks; uniseg returns the width that they add to a cluster.
			want = 1
		case unicode.IsGraphic(r):
			want = uniseg.StringWidth(string(r))
		default:
			continue // unassigned
		}
		compared++
		if got := runeWidth(r); got != want {
			t.Errorf("width of %U is %d, want %d", r, got, want)
		}
	}
	t.Logf("%d characters", compared)
}

// TestClusters checks that a rune with columns never joins the one before it. Programs count
// columns by rune, as wcwidth does.
func TestClusters(t *testing.T) {
	for _, tt := range []struct {
		text  string
		cells []string
	}{
		{"e\u0301", []string{"e\u0301"}},
		{"世", []string{"世", ""}},
		{"👩\u200d🚀", []string{"👩\u200d", "", "🚀", ""}},
		{"👍🏽", []string{"👍", "", "🏽", ""}},
		{"❤\ufe0f", []string{"❤\ufe0f"}},
		{"1\ufe0f\u20e3", []string{"1\ufe0f\u20e3"}},
		{"🇩🇪", []string{"🇩", "🇪"}},
		{"\u1112\u1161\u11ab", []string{"\u1112\u1161\u11ab", ""}},
		{"ก็", []string{"ก็"}},
	} {
		s := New(Options{Cols: 20, Rows: 2})
		s.Write([]byte(tt.text))
		for i, want := range tt.cells {
			if got := s.Line(0)[i].Text; got != want {
				t.Errorf("%q: column %d has %q, want %q", tt.text, i, got, want)
			}
		}
		if got := s.Cursor().X; got != len(tt.cells) {
			t.Errorf("%q takes %d columns, want %d", tt.text, got, len(tt.cells))
		}
	}
}
