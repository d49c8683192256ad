package session_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestRepair leaves the terminal in unusable modes. Only modes that the shell's own stty set stay.
func TestRepair(t *testing.T) {
	set := newSet(t, "/bin/bash")
	const modes = "stty -a | grep -oE -- '-(icanon|echo|isig|opost)\\b' | tr '\\n' ' '"
	for _, test := range []struct {
		name  string
		by    []string // in order
		modes string   // modes that are off afterwards
	}{
		{"killed", []string{"sh -c 'stty raw -echo; kill -9 $$'"}, ""},
		{"killed without a job of its own", []string{"(stty raw -echo; kill -9 $BASHPID)"}, ""},
		{"failed", []string{"sh -c 'stty raw -echo; exit 3'"}, ""},
		{"ended well", []string{"sh -c 'stty raw -echo'"}, ""},
		{"in a pipeline", []string{"true | stty raw -echo; true"}, ""},
		{"without signals", []string{"sh -c 'stty -isig'"}, ""},
		{"on purpose", []string{"stty -echo"}, "-echo "},
		{"on purpose, and it stays", []string{"stty -echo", "ls /", "true"}, "-echo "},
		{"on purpose, in a file", []string{"echo 'stty -echo' >/tmp/repair-$$; . /tmp/repair-$$; " +
			"rm /tmp/repair-$$"}, "-echo "},
		{"on purpose, then by a program", []string{"stty -isig; stty isig", "sh -c 'stty -echo'"},
			""},
		{"on purpose, with set -e, -u and an ERR trap",
			[]string{"set -u; trap 'echo trapped' ERR; set -e", "stty -echo"}, "-echo "},
		{"with another IFS and without hashing",
			[]string{"IFS=0123456789; set +h", "sh -c 'stty raw'"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := fresh(t, set)
			for _, command := range test.by {
				if res := run(t, c, command); res.Ended != wire.Done ||
					strings.Contains(res.Output, "trapped") {
					t.Fatalf("%s: %s, %q", command, res.Ended, res.Output)
				}
			}
			if test.name == "on purpose, and it stays" {
				// The program's failure resets the terminal.
				defer func() {
					run(t, c, "sh -c 'exit 1'")
					if res := run(t, c, modes); strings.TrimSpace(res.Output) != "" {
						t.Errorf("after a failure %q are off", res.Output)
					}
				}()
			}
			if res := run(t, c, modes); res.Output != test.modes {
				t.Errorf("%q are off, want %q", res.Output, test.modes)
			}
		})
	}
}

// TestRepairOthers is the same for shells that report less about what has run.
func TestRepairOthers(t *testing.T) {
	t.Parallel()
	ash := filepath.Join(t.TempDir(), "ash")
	for _, name := range []string{"dash", "zsh", "ash"} {
		path := "/bin/" + name
		if name == "ash" {
			busybox, err := exec.LookPath("busybox")
			if err != nil {
				t.Fatal("busybox is needed")
			}
			if err := os.Symlink(busybox, ash); err != nil {
				t.Fatal(err)
			}
			path = ash
		}
		out, err := exec.Command(path, "-c", "command -v stty").Output()
		if err != nil {
			t.Fatal(err)
		}
		built := string(out) == "stty\n"
		set := newSet(t, path)
		const modes = "stty -a | grep -oE -- '-(icanon|echo|isig|opost)\\b' | tr '\\n' ' '"
		for _, test := range []struct {
			name  string
			by    []string
			modes string
		}{
			{"killed", []string{"sh -c 'stty raw -echo; kill -9 $$'"}, ""},
			{"failed", []string{"sh -c 'stty raw -echo; exit 3'"}, ""},
			{"ended well", []string{"sh -c 'stty raw -echo'"}, ""},
			{"ended well, and one after it", []string{"sh -c 'stty raw -echo'; true"}, ""},
			{"on purpose", []string{"stty -isig"}, "-isig "},
			{"on purpose, and it stays", []string{"stty -isig", "ls /", "true"}, "-isig "},
			{"on purpose, in a file", []string{"echo 'stty -isig' >/tmp/repair-$$; . " +
				"/tmp/repair-$$; rm /tmp/repair-$$"}, "-isig "},
			{"on purpose, in a function", []string{"f() { stty -isig; }", "f"}, "-isig "},
			{"on purpose, then by a program",
				[]string{"stty -echo; stty echo", "sh -c 'stty -isig'"}, ""},
			{"with set -e and -u", []string{"set -u; set -e", "stty -isig", "ls /"}, "-isig "},
		} {
			if built && test.modes == "" && !strings.Contains(test.by[len(test.by)-1], "$$") &&
				!strings.Contains(test.by[0], "exit") {
				continue // whose stty it was is not known, and only a failure resets
			}
			t.Run(name+"/"+test.name, func(t *testing.T) {
				c := fresh(t, set)
				for _, command := range test.by {
					if res := run(t, c, command); res.Ended != wire.Done {
						t.Fatalf("%s: %s, %q", command, res.Ended, res.Output)
					}
				}
				if res := run(t, c, modes); res.Output != test.modes {
					t.Errorf("%q are off, want %q", res.Output, test.modes)
				}
			})
		}
	}
}
