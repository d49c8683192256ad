package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sdkDir has the SDKs of E2B, which scripts/setup test-slow installs, and programs that use them.
const sdkDir = "testdata/e2b"

// requireSDKs fails without the SDKs, or skips if that is allowed.
func requireSDKs(t *testing.T) (python, node string) {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(sdkDir, ".venv/bin/python"))
	if err != nil {
		t.Fatal(err)
	}
	node, err = exec.LookPath("node")
	for _, file := range []string{python, filepath.Join(sdkDir,
		"node_modules/@e2b/code-interpreter/package.json")} {
		if _, serr := os.Stat(file); serr != nil {
			err = serr
		}
	}
	if err == nil {
		return python, node
	}
	if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
		t.Fatalf("no SDKs of E2B: %v; run scripts/setup test-slow", err)
	}
	t.Skipf("no SDKs of E2B: %v; run scripts/setup test-slow", err)
	return "", ""
}

// sdk runs a program of the SDKs against the machine's daemon.
func (m *machine) sdk(t *testing.T, name string, args ...string) string {
	t.Helper()
	secret, err := os.ReadFile(*m.at.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(m.ctx(), name, args...)
	cmd.Dir = sdkDir
	cmd.Env = append(os.Environ(), "E2B_API_URL="+*m.at.HTTP+"/e2b",
		"E2B_SANDBOX_URL="+*m.at.HTTP+"/e2b", "E2B_API_KEY="+strings.TrimSpace(string(secret)),
		"PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// The published SDKs of E2B work with the daemon as they do with E2B.
func TestE2B(t *testing.T) {
	python, node := requireSDKs(t)
	m := newMachine(t)
	m.env = []string{"SANDBOXD_E2B_TEMPLATES=small=sandboxd/busybox", "SANDBOXD_MAX_SANDBOXES=100"}
	m.start("--http", "127.0.0.1:0")
	for name, args := range map[string][]string{"python": {python, "suite.py"},
		"python async": {python, "suite_async.py"}, "javascript": {node, "suite.mjs"},
		"run_code, python":       {python, "interpreter.py"},
		"run_code, python async": {python, "interpreter_async.py"},
		"run_code, javascript":   {node, "interpreter.mjs"}} {
		t.Run(name, func(t *testing.T) { t.Log("\n" + m.sdk(t, args[0], args[1:]...)) })
	}
	if left := m.list(); len(left) > 0 {
		t.Errorf("sandboxes are left: %v", left)
	}
	t.Run("the examples of docs/how-to/e2b.md", func(t *testing.T) {
		text, err := os.ReadFile("../../docs/how-to/e2b.md")
		if err != nil {
			t.Fatal(err)
		}
		run := 0
		for i, block := range strings.Split(string(text), "\n```")[1:] {
			language, code, _ := strings.Cut(block, "\n")
			// Beside the suite, where the module is found.
			file := fmt.Sprintf("example_%d.mjs", i)
			program := node
			switch language {
			case "python":
				file, program = fmt.Sprintf("example_%d.py", i), python
			case "ts":
			default:
				continue
			}
			if err := os.WriteFile(filepath.Join(sdkDir, file), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(filepath.Join(sdkDir, file)) })
			m.sdk(t, program, file)
			run++
		}
		if run < 4 {
			t.Errorf("%d examples were run, want those in Python and in TypeScript", run)
		}
	})
}

// The examples in docs/examples for E2B's SDKs print what they document.
func TestE2BExamples(t *testing.T) {
	python, node := requireSDKs(t)
	m := newMachine(t)
	m.start("--http", "127.0.0.1:0")
	for name, c := range map[string]struct{ program, as, want string }{
		"e2b_job.py": {python, "job_example.py", "exit code 1\nchecking\nok\n42 in a terminal\n"},
		// it has no types, so that any version of node runs it
		"e2b_job.ts": {node, "job_example.mjs", "served from inside\nkilled: true\nexit code 3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := os.ReadFile(filepath.Join("../../docs/examples", name))
			if err != nil {
				t.Fatal(err)
			}
			// Beside the suite, where the module is found.
			if err := os.WriteFile(filepath.Join(sdkDir, c.as), code, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(filepath.Join(sdkDir, c.as)) })
			if got := strings.ReplaceAll(m.sdk(t, c.program, c.as), "\r", ""); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if left := m.list(); len(left) > 0 {
		t.Errorf("sandboxes are left: %v", left)
	}
}

// The suite of each SDK makes every call that docs/reference/e2b.md lists.
func TestE2BCalls(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	suites := [2]string{read(filepath.Join(sdkDir, "suite.py")) +
		read(filepath.Join(sdkDir, "interpreter.py")), read(filepath.Join(sdkDir, "suite.mjs")) +
		read(filepath.Join(sdkDir, "interpreter.mjs"))}
	// The suites use short names for frequent calls.
	suites[0] = strings.NewReplacer("f = s.files", "", " f.", " files.", "(f.", "(files.", "[f.",
		"[files.").Replace(suites[0])
	suites[1] = strings.NewReplacer("const f = s.files", "", " f.", " files.", "(f.",
		"(files.").Replace(suites[1])
	_, table, _ := strings.Cut(read("../../docs/reference/e2b.md"), "<!-- calls: begin -->")
	table, _, ok := strings.Cut(table, "<!-- calls: end -->")
	calls := 0
	made := func(suite int, call string) {
		t.Helper()
		calls++
		if !strings.Contains(call, ".") {
			call = "." + call
		}
		if !regexp.MustCompile(regexp.QuoteMeta(call) + `\b`).MatchString(suites[suite]) {
			t.Errorf("%s: the suite has no %s", [...]string{"Python", "JavaScript"}[suite], call)
		}
	}
	// The first cell has Python's names. JavaScript's are the same in camel case, unless the second
	// says otherwise.
	name, elsewhere := regexp.MustCompile("`([A-Za-z_.]+)`"),
		regexp.MustCompile("in JavaScript `([A-Za-z.]+)`")
	camel := regexp.MustCompile(`_[a-z]`)
	for line := range strings.Lines(table) {
		cells := strings.SplitN(line, "|", 3)
		if len(cells) < 3 {
			continue
		}
		other := elsewhere.FindStringSubmatch(cells[2])
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			made(0, m[1])
			switch {
			case strings.Contains(cells[2], "Python only |"):
			case other != nil:
				made(1, other[1])
			default:
				made(1, camel.ReplaceAllStringFunc(m[1], func(s string) string {
					return strings.ToUpper(s[1:])
				}))
			}
		}
	}
	if !ok || calls < 80 {
		t.Errorf("the table has %d calls", calls)
	}
}

// Sandboxes with their ends and access tokens, and terminals, outlive the daemon. Commands end with
// it, as those over SSH without a session do.
func TestE2BRestart(t *testing.T) {
	python, _ := requireSDKs(t)
	m := newMachine(t)
	m.start("--http", "127.0.0.1:0")
	kept := filepath.Join(m.dir, "kept.json")
	m.sdk(t, python, "restart.py", "before", kept)
	m.kill()
	http := strings.TrimPrefix(*m.at.HTTP, "http://")
	m.start("--http", http)
	m.sdk(t, python, "restart.py", "after", kept)
}
