package command

import (
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A name from another tool suggests our command once. Any other unknown name suggests nothing.
func TestGuesses(t *testing.T) {
	for name, want := range map[string]string{
		"attach": "did you mean: watch",
		"delete": "did you mean: rm",
		"status": "did you mean: ls",
		"foo":    "see: sandboxd help",
	} {
		err := unknown(Tree(&Env{}), name)
		if e := new(wire.Error); !errors.As(err, &e) || e.Hint != want {
			t.Errorf("%s: got %v, want the hint %q", name, err, want)
		}
	}
	root := Tree(&Env{})
	for alias, want := range map[string]string{"create": "new", "inspect": "describe",
		"kill": "stop", "logs": "log", "port-forward": "port", "ps": "ls",
		"disconnect": "kick", "dashboard": "page"} {
		if c, _, err := root.Find([]string{alias}); err != nil || c.Name() != want {
			t.Errorf("%s is %s, %v; want %s", alias, c.Name(), err, want)
		}
	}
	for name := range guesses {
		if c, _, err := root.Find([]string{name}); err != nil || c.Name() != name {
			t.Errorf("there is no command %s", name)
		}
	}
}
