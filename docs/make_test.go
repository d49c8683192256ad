package docs

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// makeVariable is a variable of a Makefile whose value is passed on to a program as it is.
const makeVariable = `BENCH|[A-Z]+FLAGS`

// makefiles are the directories of the Makefiles that the documentation may name.
var makefiles = []string{"..", "../scripts"}

// TestMakeFlags runs make -n with each value that the documentation gives a variable, and with one
// that has a dollar sign: the recipe has it as it was written, and the shell can read it.
func TestMakeFlags(t *testing.T) {
	users := make(map[string]user)
	for _, dir := range makefiles {
		maps.Copy(users, usersIn(t, dir))
	}
	values := make(map[string][]string)
	for name := range users {
		values[name] = []string{`-run "^(exec|run)$"`}
		if name == "BENCH" { // stands between quotes in the recipe
			values[name] = []string{`^(Stream|Connect)$`}
		}
	}
	setting := regexp.MustCompile(`\b(` + makeVariable + `)=('[^']*'|[^\s'` + "`" + `;)]+)`)
	for _, page := range pages(t) {
		for _, m := range setting.FindAllStringSubmatch(read(t, page), -1) {
			if m[1] == "GOFLAGS" { // Go's own
				continue
			}
			if users[m[1]].target == "" {
				t.Errorf("%s sets %s, which no target uses", page, m[1])
				continue
			}
			values[m[1]] = append(values[m[1]], strings.Trim(m[2], "'"))
		}
	}
	if len(values) < 5 {
		t.Fatalf("the Makefiles pass on %v: want BENCH, SOAKFLAGS, TESTFLAGS and such", users)
	}
	for name, list := range values {
		for _, value := range list {
			users[name].check(t, name+"="+value, value)
		}
	}
	// The root's bench passes it on to the other Makefile.
	user{"..", "bench"}.check(t, `BENCHFLAGS=-run "^exec$"`, `-run "^exec$"`)
}

// TestMakeTargets holds that each target which the documentation names exists.
func TestMakeTargets(t *testing.T) {
	target := regexp.MustCompile(`(?m)^([a-z-]+):`)
	targets := make(map[string]bool)
	for _, dir := range makefiles {
		for _, m := range target.FindAllStringSubmatch(read(t, dir+"/Makefile"), -1) {
			targets[dir+" "+m[1]] = true
		}
	}
	named := regexp.MustCompile("(?m)(?:`|^    )make (-C scripts )?([a-z-]+)")
	found := 0
	for _, page := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, page), -1) {
			dir := ".."
			if m[1] != "" {
				dir = "../scripts"
			}
			if found++; !targets[dir+" "+m[2]] {
				t.Errorf("%s: there is no make %s%s", page, m[1], m[2])
			}
		}
	}
	if found < 30 {
		t.Errorf("the documentation names %d targets: is the pattern right?", found)
	}
}

// user is a target that passes a variable on.
type user struct{ dir, target string }

// check runs make -n with a setting: the recipe has want in it.
func (u user) check(t *testing.T, setting, want string) {
	t.Helper()
	args := []string{"-n", "--no-print-directory", "-C", u.dir, u.target, setting}
	out, err := exec.CommandContext(t.Context(), "make", args...).CombinedOutput()
	if err != nil {
		t.Errorf("make %q: %v\n%s", args, err, out)
		return
	}
	if !strings.Contains(string(out), want) {
		t.Errorf("make %q does not pass it on as it is:\n%s", args, out)
	}
	check := exec.CommandContext(t.Context(), "sh", "-n")
	check.Stdin = strings.NewReader(string(out))
	if said, err := check.CombinedOutput(); err != nil {
		t.Errorf("make %q: the shell cannot read it: %v\n%s", args, err, said)
	}
}

// usersIn returns a target for each variable that the Makefile of dir passes on.
func usersIn(t *testing.T, dir string) map[string]user {
	t.Helper()
	rule := regexp.MustCompile(`^([a-z-]+):`)
	use := regexp.MustCompile(`^\t.*\$\((?:value )?(` + makeVariable + `)\)`)
	users := make(map[string]user)
	target := ""
	for line := range strings.Lines(read(t, dir+"/Makefile")) {
		if m := rule.FindStringSubmatch(line); m != nil {
			target = m[1]
		}
		if m := use.FindStringSubmatch(line); m != nil {
			users[m[1]] = user{dir, target}
		}
	}
	return users
}

// pages are the files that name targets and variables.
func pages(t *testing.T) []string {
	t.Helper()
	return append(markdown(t), "../README.md", "../CONTRIBUTING.md", "../Makefile",
		"../scripts/Makefile")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
