package player

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
)

// What a person saw is found when it appeared: in the middle of a flood, split by colours, typed
// key by key, and again after it was gone. What nobody saw is not.
func TestFind(t *testing.T) {
	var flood strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&flood, "line %d\r\n", i)
	}
	r, err := record.OpenReader(made(t,
		printed{1 * time.Second, "$ mak"}, printed{2 * time.Second, "e"},
		printed{3 * time.Second, " all\r\n"},
		printed{4 * time.Second, flood.String()},
		printed{5 * time.Second, "\x1b[31mER\x1b[1mROR\x1b[0m: no space\r\n"},
		printed{6 * time.Second, "\x1b]0;hidden title\a\x1b[2J\x1b[H"},
		printed{7 * time.Second, "error: again\r\n"},
		printed{8 * time.Second, strings.Repeat("x", 500) + "needle" + strings.Repeat("y", 500)},
		printed{9 * time.Second, "\r\n\x1b[?1049h\x1b[5;5Hin the editor"},
		printed{10 * time.Second, "\x1b[?1049l"}))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for sought, want := range map[string]string{
		"make":          "[2s $ make]",
		"MAKE ALL":      "[3s $ make all]",
		"line 7":        "", // more than the limit
		"line 15000":    "[4s line 15000]",
		"error":         "[5s ERROR: no space 7s error: again]",
		"hidden":        "[]",
		"in the editor": "[9s     in the editor]",
		"nothing":       "[]",
	} {
		all, more, err := Find(t.Context(), r, sought, 10)
		if err != nil {
			t.Errorf("%s: %v", sought, err)
		}
		var found []string
		for _, m := range all {
			found = append(found, fmt.Sprint(m.At, " ", m.Line))
		}
		if got := fmt.Sprint(found); want != "" && (got != want || more) {
			t.Errorf("%s: %s, want %s", sought, got, want)
		} else if want == "" && (len(all) != 10 || !more) {
			t.Errorf("%s: %d, more %v", sought, len(all), more)
		}
	}
	if all, _, err := Find(t.Context(), r, "needle", 10); err != nil || len(all) != 1 ||
		!strings.Contains(all[0].Line, "needle") || len(all[0].Line) > 300 {
		t.Errorf("%v, %v", all, err)
	}
}
