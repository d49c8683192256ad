package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// makeVariable is a variable of the Makefile whose value is passed on to a program as it is.
const makeVariable = `BENCH|[A-Z]+FLAGS`

// TestMakeFlags runs make -n with each value that the documentation gives a variable, and with one that has a dollar sign:
// the recipe has it as it was written, and is a command that the shell can read.
func TestMakeFlags(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	users := make(map[string]string) // a target that uses the variable
	target := ""
	for line := range strings.Lines(string(makefile)) {
		if name, _, ok := strings.Cut(line, ":"); ok && regexp.MustCompile(`^[a-z-]+$`).MatchString(name) {
			target = name
		}
		if m := regexp.MustCompile(`\$\((?:value )?(` + makeVariable + `)\)`).FindStringSubmatch(line); m != nil && strings.HasPrefix(line, "\t") {
			users[m[1]] = target
		}
	}
	values := make(map[string][]string)
	for name := range users {
		values[name] = []string{`-run "^(exec|run)$"`}
		if name == "BENCH" { // stands between quotes in the recipe
			values[name] = []string{`^(Stream|Connect)$`}
		}
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../Makefile") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(`+makeVariable+`)=('[^']*'|[^\s'`+"`"+`;)]+)`).FindAllStringSubmatch(string(text), -1) {
			if m[1] == "GOFLAGS" { // Go's own
				continue
			}
			if users[m[1]] == "" {
				t.Errorf("%s sets %s, which no target uses", page, m[1])
				continue
			}
			values[m[1]] = append(values[m[1]], strings.Trim(m[2], "'"))
		}
	}
	if len(values) < 5 {
		t.Fatalf("the Makefile passes on %v: want BENCH, BENCHFLAGS, INTEROPFLAGS, SOAKFLAGS, TESTFLAGS and such", users)
	}
	for name, list := range values {
		for _, value := range list {
			out, err := exec.CommandContext(t.Context(), "make", "-n", "-C", "..", users[name], name+"="+value).CombinedOutput()
			if err != nil {
				t.Errorf("make -n %s %s='%s': %v\n%s", users[name], name, value, err, out)
				continue
			}
			if !strings.Contains(string(out), value) {
				t.Errorf("make -n %s %s='%s' does not pass it on as it is:\n%s", users[name], name, value, out)
			}
			check := exec.CommandContext(t.Context(), "sh", "-n")
			check.Stdin = strings.NewReader(string(out))
			if said, err := check.CombinedOutput(); err != nil {
				t.Errorf("make -n %s %s='%s': the shell cannot read it: %v\n%s", users[name], name, value, err, said)
			}
		}
	}
}
