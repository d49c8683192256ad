package syntax

import (
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		shell, command string
		whole          bool
	}{
		{"bash", "echo hi", true},
		{"bash", "", true},
		{"bash", "cat <<EOF\nx\nEOF", true},
		{"bash", "for i in 1 2; do echo $i; done", true},
		{"bash", "echo 'a\nb'", true},
		{"bash", `echo "unclosed`, false},
		{"bash", "echo 'unclosed", false},
		{"bash", "cat <<EOF\nx", false},
		{"bash", "cat <<EOF", false},
		{"bash", "cat <<EOF; echo a", false},
		{"bash", "cat <<EOF\n", false},
		{"bash", "cat <<EOF\nEOF", true},
		{"bash", "cat <<-'X'\n\tX\n", true},
		{"bash", "echo a\\", true},
		{"bash", "# a comment", true},
		{"dash", "cat <<EOF", false},
		{"bash", "for i in 1 2; do", false},
		{"bash", "if true; then", false},
		{"bash", "echo `date", false},
		{"bash", "echo $(date", false},
		{"bash", "f() {", false},
		{"bash", ")", true}, // wrong, but the shell says so by itself
		{"dash", "echo 'unclosed", false},
		{"busybox", "while true; do", false},
		{"fish", "echo 'unclosed", true}, // not ours to judge
	} {
		err := Check(c.shell, c.command)
		if (err == nil) != c.whole {
			t.Errorf("Check(%s, %q) = %v, whole: %v", c.shell, c.command, err, c.whole)
		}
		if err != nil && !errors.Is(err, &wire.Error{Code: wire.CodeSyntax}) {
			t.Errorf("Check(%s, %q): %v has another code", c.shell, c.command, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("cat <<EOF\nx\nEOF")
	f.Add("echo $(( 1 + ")
	f.Fuzz(func(t *testing.T, command string) {
		for _, shell := range []string{"bash", "dash"} {
			_ = Check(shell, command) // must come back, without a panic
		}
	})
}
