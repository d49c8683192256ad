package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestPages runs the shell blocks of the README and of the tutorials, each page as a story of its
// own, and compares the output with what the page shows.
func TestPages(t *testing.T) {
	p := story(t)
	pages, err := filepath.Glob("../../docs/tutorials/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d tutorials, %v", len(pages), err)
	}
	dir := t.TempDir()
	for _, page := range append(pages, "../../README.md") {
		page, err := filepath.Abs(page)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if name == "kubernetes" { // all of it needs a cluster; scripts/k8s/chart has the same steps
			continue
		}
		file := filepath.Join(dir, strings.ToLower(name)+".txtar")
		if err := os.WriteFile(file, []byte("page "+page+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p.Files = append(p.Files, file)
	}
	testscript.Run(t, p)
}

// needs begins the first line of a block that the tests do not run: it says what the block needs.
const needs = "# needs "

// prelude comes before the blocks of a page. A command may end with 0, or with 123 for a question.
// OpenSSH ignores HOME, so ssh is given its configuration.
const prelude = `ssh() { command ssh -F "$HOME/.ssh/config" -o LogLevel=ERROR "$@"; }
trap 'code=$?; [ $code = 123 ] || exit $code' ERR
cd
`

// pageCmd runs the sh blocks of a page, in order and in one shell, and compares the output of each
// with the text block that follows it.
//
//	page FILE
func pageCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: page FILE")
	}
	text, err := os.ReadFile(args[0])
	ts.Check(err)
	blocks := shellBlocks(string(text))
	if len(blocks) == 0 {
		ts.Fatalf("%s: no block to run", args[0])
	}
	script := prelude
	for _, b := range blocks {
		script += b.script + endOf(b)
	}
	file := ts.MkAbs("page.sh")
	ts.Check(os.WriteFile(file, []byte(script), 0o600))
	failed := ts.Exec("bash", "-c", `exec bash "$0" 2>&1`, file)
	out := ts.ReadFile("stdout")
	for _, b := range blocks {
		printed, rest, done := strings.Cut(out, fmt.Sprintf("@@ %d @@\n", b.line))
		if !done {
			ts.Fatalf("%s:%d: %v; output:\n%s", args[0], b.line, failed, out)
		}
		if out = rest; b.shown != "" && !shows(b.shown, printed) {
			ts.Fatalf("%s:%d: the page shows\n%s\nbut the output is\n%s",
				args[0], b.line, b.shown, printed)
		}
	}
	ts.Check(failed)
}

// endOf marks the end of a block's output.
func endOf(b shellBlock) string { return fmt.Sprintf("echo '@@ %d @@'\n", b.line) }

// shellBlock is an sh block of a page, and the text block behind it.
type shellBlock struct {
	line   int // of its fence
	script string
	shown  string // empty where no output is shown
}

// shellBlocks returns the sh blocks of a page, but for those that need what a test has not.
func shellBlocks(page string) (blocks []shellBlock) {
	lines := strings.SplitAfter(page, "\n")
	var last *shellBlock // the block before, if it was run
	for i := 0; i < len(lines); i++ {
		kind, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "```")
		if !ok {
			continue
		}
		first := i + 1
		for i++; i < len(lines) && !strings.HasPrefix(strings.TrimSpace(lines[i]), "```"); i++ {
		}
		body := strings.Join(lines[first:i], "")
		switch {
		case kind == "sh" && !strings.HasPrefix(body, needs):
			blocks = append(blocks, shellBlock{line: first, script: body})
			last = &blocks[len(blocks)-1]
			continue
		case kind == "text" && last != nil:
			last.shown = body
		}
		last = nil
	}
	return blocks
}

var (
	spans  = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)?(ms|s|m|h)\b`)
	digits = regexp.MustCompile(`[0-9]+`)
	gaps   = regexp.MustCompile(`[ \t]+`)
)

// shows reports whether a page shows the lines of this output. Their order does not count: stdout
// and stderr arrive separately. Numbers, times and the width of columns may differ; … stands for
// anything, on a line of its own for any lines.
func shows(page, output string) bool {
	lines := slices.Collect(strings.Lines(plainOutput(output)))
	more := false
	for line := range strings.Lines(plainOutput(page)) {
		if line == "…\n" {
			more = true
			continue
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
		i := slices.IndexFunc(lines, regexp.MustCompile("^"+quoted+"$").MatchString)
		if i < 0 {
			return false
		}
		lines = slices.Delete(lines, i, i+1)
	}
	return more || len(lines) == 0
}

// plainOutput is output as it is compared. Pages have root as the name of who runs the commands.
func plainOutput(s string) string {
	s = strings.ReplaceAll(s, "\r", "")
	if who, err := user.Current(); err == nil {
		s = strings.ReplaceAll(s, "agent:"+who.Username, "agent:root")
	}
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = spans.ReplaceAllString(strings.TrimSpace(line), "0")
		line = digits.ReplaceAllString(line, "0")
		b.WriteString(gaps.ReplaceAllString(line, " ") + "\n")
	}
	return b.String()
}

func TestShows(t *testing.T) {
	for _, tt := range []struct {
		page, output string
		want         bool
	}{
		{"ready in 0.3 s\n", "ready in 1.27 s\n", true},
		{"took 7ms\n", "took 1.05s\n", true},
		{"A  B\n1  2\n", "A   B\n10  2\n", true},
		{"a\n…\nz\n", "a\nb\nc\nz\n", true},
		{"a\n…\n", "a\n", true},
		{"a … c\n", "a b c\n", true},
		{"a\n", "a\nb\n", false},
		{"a\nb\n", "b\na\n", true},
		{"a\na\n", "a\nb\n", false},
		{"a.c\n", "abc\n", false},
	} {
		if got := shows(tt.page, tt.output); got != tt.want {
			t.Errorf("%q shows %q: %v, want %v", tt.page, tt.output, got, tt.want)
		}
	}
}

func TestShellBlocks(t *testing.T) {
	page := "```sh\none\n```\n\nshows\n\n```text\nout\n```\n```text\nmore\n```\n" +
		"```sh\n# needs a person\ntwo\n```\n```text\nseen\n```\n```yaml\nx\n```\n```sh\nthree\n```\n"
	got := shellBlocks(page)
	want := []shellBlock{{1, "one\n", "out\n"}, {23, "three\n", ""}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("blocks %+v, want %+v", got, want)
	}
}
