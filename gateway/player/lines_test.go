package player

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
)

// The lines of a record are those that scrolled off and those on the screen, with their colours and
// nothing else. Of many, the newest are kept.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		name  string
		in    string
		count int
		first string
		last  string
	}{
		{"nothing", "", 0, "", ""},
		{"one", "one", 1, "one", "one"},
		{"colours", "\x1b]0;title\a\x1b[31mre\x1b[1md\x1b[0m plain\x1b[6n\r\n", 1,
			"\x1b[31mre\x1b[1md\x1b[m plain", "\x1b[31mre\x1b[1md\x1b[m plain"},
		{"a full-screen program", "a\r\nb\r\n\x1b[?1049h\x1b[Heditor", 3, "a", "editor"},
		{"empty lines between", "a\r\n\r\nb\r\n\r\n", 3, "a", "b"},
		{"many", strings.Repeat("x\r\n", maxLines+500) + "end", maxLines, "x", "end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := record.OpenReader(made(t, printed{time.Second, tt.in}))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			got, err := Lines(t.Context(), r)
			if err != nil || len(got) != tt.count {
				t.Fatalf("%d lines, %v, want %d", len(got), err, tt.count)
			}
			if tt.count > 0 && (got[0] != tt.first || got[len(got)-1] != tt.last) {
				t.Errorf("from %q to %q", got[0], got[len(got)-1])
			}
		})
	}
}

// Lines with many colours are bounded by their size. The beginning of a long record is not read.
func TestLinesOfALongRecord(t *testing.T) {
	line := strings.Repeat("\x1b[31ma\x1b[32mb", 30) + "\x1b[m\r\n"
	lines := strings.Repeat(line, linesOf/20/len(line))
	var all []printed
	for i := range 24 {
		all = append(all, printed{time.Duration(i) * time.Second,
			lines + fmt.Sprintf("part %d\r\n", i)})
	}
	r, err := record.OpenReader(made(t, all...))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := Lines(t.Context(), r)
	if err != nil || got[len(got)-1] != "part 23" {
		t.Fatalf("%d lines, %v", len(got), err)
	}
	size := 0
	for _, l := range got {
		size += len(l)
	}
	if size > maxText || size < maxText/2 || strings.Contains(strings.Join(got, "\n"), "part 0\n") {
		t.Errorf("%d bytes", size)
	}
}
