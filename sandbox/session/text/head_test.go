package text

import "testing"

// A Head keeps the first bytes, takes all others, and reports that it was cut.
func TestHead(t *testing.T) {
	h := Head{Limit: 5}
	for _, p := range []string{"abc", "", "de"} {
		if n, err := h.Write([]byte(p)); n != len(p) || err != nil || h.Cut {
			t.Errorf("%q: %d, %v, cut %v", p, n, err, h.Cut)
		}
	}
	if n, err := h.Write([]byte("fg")); n != 2 || err != nil || !h.Cut || h.String() != "abcde" {
		t.Errorf("%d, %v, cut %v, kept %q", n, err, h.Cut, h.String())
	}
	h = Head{Limit: 3}
	if _, _ = h.Write([]byte("aéü")); h.String() != "aé" {
		t.Errorf("kept %q", h.String())
	}
	h = Head{Limit: 2}
	if _, _ = h.Write([]byte("aé")); h.String() != "a\uFFFD" {
		t.Errorf("half a character: kept %q", h.String())
	}
}
