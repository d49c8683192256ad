package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// bidi are the characters that make a line read otherwise than it is.
const bidi = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

func TestLine(t *testing.T) {
	tests := []struct {
		in   string
		n    int
		want string
	}{
		{"plain", 10, "plain"},
		{"a\x1b[2Jb", 20, "a [2Jb"},
		{"a\nb\tc\x7f\u009b", 20, "a b c  "},
		{"rm \u202egpj.exe\u2066\u2028", 30, "rm <U+202E>gpj.exe<U+2066> "},
		{bidi, 100, "<U+061C><U+200E><U+200F><U+202A><U+202B><U+202C><U+202D><U+202E><U+2066><U+2067><U+2068><U+2069>"},
		{"a\u202eb", 6, "a<U+2…"},
		{"grüße", 5, "grüße"},
		{"too long", 4, "too…"},
		{"too long", 0, "…"},
		{"שלום", 4, "שלום"}, // letters have a direction of their own
		{"a\xff\ufffd", 5, "a  "},
		{"", 0, ""},
	}
	for _, tt := range tests {
		if got := Line(tt.in, tt.n); got != tt.want {
			t.Errorf("Line(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
	if got, want := Lines("a\nb\r\x1b\u202ec\n"), "a\nb  <U+202E>c\n"; got != want {
		t.Errorf("Lines = %q, want %q", got, want)
	}
	if got, want := End("  a long question?\u202e ", 18), "…question?<U+202E>"; got != want {
		t.Errorf("End = %q, want %q", got, want)
	}
	for n, want := range []string{"", "ü", "üb", "übe", "über", "über"} {
		if got := Begin("über", n); got != want {
			t.Errorf("Begin(%d) = %q, want %q", n, got, want)
		}
	}
}

// Whatever comes out of this package can be printed: it means nothing to a terminal and reads in
// the order of its bytes.
func FuzzLine(f *testing.F) {
	f.Add("Do you want to continue? [Y/n] ", 10)
	f.Add("\x1b[31mred"+bidi+"\u009b\x00\r\n\xff", 200)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = 1 + max(n, -n)%300
		rendered, _ := Render([]byte(s), -1)
		for name, got := range map[string]string{"Line": Line(s, n), "End": End(s, n),
			"Lines": Lines(s), "Render": rendered} {
			if !utf8.ValidString(got) {
				t.Errorf("%s: %q is not UTF-8", name, got)
			}
			if i := strings.IndexFunc(got, func(r rune) bool {
				return forbidden(r) && (r != '\n' || !strings.Contains("Lines Render", name))
			}); i >= 0 {
				t.Errorf("%s: %q has %q", name, got, got[i:])
			}
			if n < utf8.RuneCountInString(got) && (name == "Line" || name == "End") {
				t.Errorf("%s: %q is longer than %d", name, got, n)
			}
		}
	})
}

func forbidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
