package text

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestQuote checks that shells split a line of Quote into the words that it was made of.
func TestQuote(t *testing.T) {
	words := []string{"plain", "", "#comment", "a#b", "a b", "it's", `"$HOME"`, "$(id)", "`id`",
		"~", "~root", "a~b", "A=~", "A=b:~root", "*", "{a,b}", "!!", "=ls", "A=b", "-x", "a\nb", "a\tb", `a\b`, ";", "&", "ü", "^a", "a\rb"}
	const print = `printf '%s\0' "$@"`
	for _, shell := range []string{"sh", "bash"} {
		line := shell + " -c " + Quote(print) + " - " + Quote(words...)
		out, err := exec.Command(shell, "-c", line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", shell, err, out)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if !slices.Equal(got, words) {
			t.Errorf("%s: got %q, want %q", shell, got, words)
		}
	}
	if got := Quote("ssh", "-p", "22", "--color=auto", "demo~agent@host"); got !=
		"ssh -p 22 --color=auto demo~agent@host" {
		t.Errorf("quoted without need: %s", got)
	}
}
