package session_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// forger prints marks that end its own command with 0, and then exits with 1. It is given the
// secret and the number of the prompt, as a program of root could read them from the shell's
// memory.
const forger = `import sys
nonce, n = sys.argv[1], int(sys.argv[2]) + int(sys.argv[3])
tty = open("/dev/tty", "w")
tty.write("\x1b]7337;D;%s;%d;0\a\x1b]7337;A;%s;%d;0;0;/;%s\a$ \x1b]7337;B;%s;%d\a" % (nonce, n, nonce, n + 1, nonce, nonce, n + 1))
tty.flush()
sys.exit(1)
`

// TestForgedMarks has a user's program print marks that its command ended with 0. That Result and
// all later ones report the marks as disputed; earlier ones do not.
func TestForgedMarks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "forger.py")
	if err := os.WriteFile(file, []byte(forger), 0o600); err != nil {
		t.Fatal(err)
	}
	// Where each shell stores its secret and the number of its prompt in memory.
	secret := map[string]string{
		"bash": `"$__sbx_k" "$__sbx_n"`, "dash": `"$__sbx_k" "$__sbx_n"`,
		"zsh":  `"$(functions __sbx_p | grep -o '[0-9a-f]\{32\}' | head -n 1)" "$__sbx_n"`,
		"fish": `(functions __sbx_p | grep -o '[0-9a-f]\{32\}' | head -n 1) "$__sbx_n"`,
	}
	for name, path := range allShells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, path))
			for _, command := range []string{"true", "sh -c 'exit 0'", "echo a | cat",
				"sleep 100 &"} {
				res := run(t, c, command)
				if res.Ended != wire.Done || len(res.Disputed) > 0 || len(res.Notes) > 0 {
					t.Errorf(
						"%s: %s, disputed %v, notes %v; want a Result that nothing speaks against",
						command,
						res.Ended,
						res.Disputed,
						res.Notes,
					)
				}
			}
			for _, ahead := range []string{" 0", " 90000", " 0"} {
				res := run(t, c, "python3 "+file+" "+secret[name]+ahead)
				if res.Ended != wire.Done || !slices.Contains(res.Disputed, wire.BasisMark) {
					t.Errorf(
						"the forger's: %s, exit %d, disputed %v, notes %v, %q; want marks that "+
							"are disputed",
						res.Ended,
						code(res),
						res.Disputed,
						res.Notes,
						res.Output,
					)
				}
			}
			if res := run(t, c, "sh -c 'exit 3'"); res.Ended != wire.Done || code(res) != 3 {
				t.Errorf(
					"behind it: %s, %d, %+v; want a command that runs",
					res.Ended,
					code(res),
					res.Error,
				)
			}
			if res := run(t, c, "true"); !slices.Contains(res.Disputed, wire.BasisMark) {
				t.Errorf("behind it: disputed %v, want marks: the secret is known", res.Disputed)
			}
		})
	}
}

// TestAdvisory uses a session without a prober. Only the shell's marks report how its commands end.
func TestAdvisory(t *testing.T) {
	set := newSet(t, "/bin/bash")
	start := wire.Start{Without: []wire.Basis{wire.BasisProcess}}
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice"), Start: &start},
		wire.Handler{},
	)
	res := run(t, c, "sh -c 'exit 3'")
	if res.Ended != wire.Done || code(res) != 3 || strings.Join(res.Notes, " ") != "advisory" {
		t.Errorf(
			"%s, %d, notes %v; want 3 and a note that it is advisory",
			res.Ended,
			code(res),
			res.Notes,
		)
	}
}
