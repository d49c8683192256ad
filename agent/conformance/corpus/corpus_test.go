package corpus_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/corpus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCases checks the properties that other readers of the corpus rely on.
func TestCases(t *testing.T) {
	name := regexp.MustCompile(`^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$`)
	seen := make(map[string]bool)
	var check func(id string, steps []conformance.Step)
	check = func(id string, steps []conformance.Step) {
		for _, s := range steps {
			for _, w := range append([]conformance.Want{s.Want}, values(s.Without)...) {
				for _, text := range []*conformance.Text{w.Prompt, w.Output, w.Bytes, w.Stderr} {
					if text != nil {
						if _, err := regexp.Compile(text.Matches); err != nil {
							t.Errorf("%s: %v", id, err)
						}
					}
				}
			}
			check(id, s.Meanwhile)
		}
	}
	for _, c := range corpus.All() {
		switch {
		case seen[c.ID()]:
			t.Errorf("%s is there twice", c.ID())
		case !name.MatchString(c.Group), !name.MatchString(c.Name):
			t.Errorf("%q is no name", c.ID())
		case c.About == "":
			t.Errorf("%s does not say what it is about", c.ID())
		case (c.Do == nil) != (c.Func == ""), (c.Do == nil) == (len(c.Steps) == 0):
			t.Errorf("%s is neither steps nor a named function", c.ID())
		}
		seen[c.ID()] = true
		check(c.ID(), c.Steps)
		for tier, why := range c.Cannot {
			if tier == conformance.Full || why == "" {
				t.Errorf("%s is excused on %s by %q", c.ID(), tier, why)
			}
		}

		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back conformance.Case
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if again, err := json.Marshal(back); err != nil || !bytes.Equal(text, again) {
			t.Errorf("%s does not survive JSON: %v\n%s\n%s", c.ID(), err, text, again)
		}
	}
}

func values(m map[conformance.Tier]conformance.Want) []conformance.Want {
	var all []conformance.Want
	for _, w := range m {
		all = append(all, w)
	}
	return all
}
