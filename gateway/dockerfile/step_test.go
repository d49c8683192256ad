package dockerfile

import (
	"slices"
	"testing"
)

// The output of a command is reported in whole lines, and a progress line with its last state.
func TestLines(t *testing.T) {
	var reported []string
	l := &lines{each: func(line string) { reported = append(reported, line) }}
	for _, part := range []string{"Reading 5%\rRead", "ing 100%\rReading done\r\n", "a\tb \n",
		"end"} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	l.end()
	if want := []string{"Reading done", "a b", "end"}; !slices.Equal(reported, want) ||
		!slices.Equal(l.last, want) {
		t.Errorf("reported %q, last %q, want %q", reported, l.last, want)
	}
}
