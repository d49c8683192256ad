package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSlowTests holds that make test and make test-slow together run every test. make test skips
// what scripts/slow-tests lists, in every package; make test-slow runs that in the listed packages.
// So each line names a test that exists, and a test of that name in any package is listed too.
func TestSlowTests(t *testing.T) {
	packages := testsOf(t, "..") // by test
	text, err := os.ReadFile("../scripts/slow-tests")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string][]string) // packages by test, with its subtest
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		pkg, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, why, _ := strings.Cut(rest, " ")
		top, sub, parts := strings.Cut(name, "/")
		if !regexp.MustCompile(`^Test\w+(/[\w-]+)?$`).MatchString(name) || why == "" {
			t.Errorf("slow-tests: %q: want a package, a test and why it is slow", line)
		}
		if !slices.Contains(packages[top], pkg) {
			t.Errorf("slow-tests: %s has no test %s", pkg, top)
		}
		if parts { // a story; other subtests have no file to be checked against
			story := filepath.Join("..", pkg, "testdata/script", sub+".txtar")
			if _, err := os.Stat(story); top != "TestScripts" || err != nil {
				t.Errorf("slow-tests: %s is no story: %v", name, err)
			}
		}
		listed[name] = append(listed[name], pkg)
	}
	for name, in := range listed {
		top, _, _ := strings.Cut(name, "/")
		slices.Sort(in)
		if !slices.Equal(in, packages[top]) {
			t.Errorf("%s is in %v and slow in %v: neither target runs the others", name,
				packages[top], in)
		}
	}
	if len(listed) == 0 || len(packages) < 1000 {
		t.Errorf("%d tests, %d slow ones", len(packages), len(listed))
	}
}

// TestTestTargets holds that the targets and CI run what the list is for.
func TestTestTargets(t *testing.T) {
	for file, lines := range map[string][]string{
		"../Makefile": {"\tscripts/test fast $(value TESTFLAGS)", "\tscripts/test slow $(value TESTFLAGS)", "\tscripts/test all $(value TESTFLAGS)"},
		"../scripts/test": {
			`		run . -skip "$slow" "$@" "${longest[@]}" ./...`,
			`		run scripts -skip "$slow" "$@" ./...`,
			`		run . -run "$slow" "$@" "${slow_packages[@]}"`,
			`		run scripts -run "$slow" "$@" "${slow_scripts[@]}"`,
		},
		"../.ci/run": {"exec make test-all"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !slices.Contains(strings.Split(string(text), "\n"), line) {
				t.Errorf("%s has no line %q", file, line)
			}
		}
	}
}

// testsOf returns the packages below root that have each test, by its name, sorted.
func testsOf(t *testing.T, root string) map[string][]string {
	t.Helper()
	test := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	all := make(map[string]map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"node_modules", ".venv", ".git", "bin"},
			d.Name()):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg := "./" + filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root+"/"))
		for _, m := range test.FindAllSubmatch(text, -1) {
			if all[string(m[1])] == nil {
				all[string(m[1])] = make(map[string]bool)
			}
			all[string(m[1])][pkg] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sorted := make(map[string][]string)
	for name, in := range all {
		sorted[name] = slices.Sorted(maps.Keys(in))
	}
	return sorted
}
