package screen

import (
	"testing"
	"unicode"

	"github.com/rivo/uniseg"
)

// Every character on its own has the width that the Unicode data gives it.
func TestRuneWidth(t *testing.T) {
	for r := rune(0xa0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 || !unicode.IsGraphic(r) || unicode.In(r, unicode.Mn, unicode.Me, unicode.Mc) {
			continue
		}
		want := uniseg.StringWidth(string(r))
		switch {
		case regionalIndicator(r): // wide in pairs only
			want = 1
		case skinTone(r): // joins what comes before; on its own it is an emoji
			want = 2
		case r == 0xff9e, r == 0xff9f: // halfwidth voicing marks have a column of their own in every terminal
			want = 1
		case r == 0x2e3a, r == 0x2e3b: // long dashes, Neutral in the data
			want = 1
		case r >= 0x1160 && r <= 0x11ff, r >= 0xd7b0 && r <= 0xd7ff: // join a Hangul syllable
			want = 0
		}
		if got := runeWidth(r); got != want {
			t.Errorf("width of %U is %d, want %d", r, got, want)
		}
	}
}

// Clusters have the width that grapheme-aware terminals give them.
func TestClusterWidth(t *testing.T) {
	for _, text := range []string{
		"e\u0301", "世", "👩‍🚀", "👨‍👩‍👧‍👦", "👍🏽", "❤️", "1️⃣", "🇩🇪", "🏳️‍🌈", "👁️‍🗨️", "🧑🏽‍🤝‍🧑🏿", "☎️", "\u1112\u1161\u11ab", "ก็", "©️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
	} {
		s := New(Options{Cols: 20, Rows: 2})
		s.Write([]byte(text + "|"))
		line := s.Line(0)
		if line[0].Text != text {
			t.Errorf("%q is in several cells, the first has %q", text, line[0].Text)
		}
		want := uniseg.StringWidth(text)
		if text == "1️⃣" {
			want = 2 // a keycap is an emoji
		}
		if got := int(line[0].Width); got != want {
			t.Errorf("%q has width %d, want %d", text, got, want)
		}
	}
}
