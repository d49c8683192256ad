package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// plain returns the lines of plain.txt: the packages and pages that TestWords holds to the
// project's style. Add one once it is clean; none is ever taken out.
func plain(t *testing.T) (packages, pages []string) {
	t.Helper()
	for _, line := range strings.Fields(read(t, "plain.txt")) {
		if strings.HasSuffix(line, ".md") {
			pages = append(pages, line)
		} else {
			packages = append(packages, line)
		}
	}
	return packages, pages
}

// glossary maps each word or phrase that the project avoids to the one to use instead. Words are
// matched whole and in any case.
var glossary = []struct{ avoid, use string }{
	{`doors?`, "server, endpoint or API"},
	{`in E2B's shape`, "E2B-compatible API"},
	{`chords?`, "prefix key"},
	{`stands? ready|shelf|shelves`, "pooled, the pool"},
	{`standing`, "shared attachment"},
	{`for ever|forever`, "indefinitely"},
	{`whoever|whosoever|somebody|one who|those who`, "the client, the owner, the caller or the user"},
	{`only look`, "read-only"},
	{`that remembers`, "stateful"},
	{`told`, "reported or returned"},
	{`lobby`, "control host"},
	{`private stretch(es)?`, "private mode"},
	{`heed|heeds|heeded|hearing`, "monitor"},
	{`mend|mends|mended`, "fix"},
	{`set-ups?`, "setup"},
	{`daemon's own user`, "the admin"},
	{`weighs?|weighed`, "measure"},
	{`thaws?|thawed`, "unfreeze"},
	{`doom|doomed|fate`, "why it ended"},
	{`behind the daemon's back`, "outside the daemon"},
	{`taken as it is`, "an existing machine"},
	{`not to be had|cannot be had`, "not available"},
	{`cut short`, "interrupted"},
	{`called at once`, "safe for concurrent use"},
	{`word on standard error`, "warning"},
}

// columns is the longest line, with tabs of four columns. Lines of raw strings are exempt: scripts
// and JSON keep theirs.
const columns = 100

// TestWords holds what plain.txt lists to the glossary, and its lines to 100 columns: comments and
// strings of packages, and the text of pages without their code blocks.
func TestWords(t *testing.T) {
	packages, pages := plain(t)
	for _, page := range pages {
		for _, s := range paragraphs(t, filepath.Join("..", page)) {
			checkWords(t, s)
		}
	}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pkg, len(files), err)
		}
		for _, file := range files {
			for _, s := range proseOf(t, file) {
				checkWords(t, s)
			}
			checkColumns(t, file)
		}
	}
}

// TestTexts holds what the programs print to the glossary: the strings of every package.
func TestTexts(t *testing.T) {
	n := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(name, ".git") || name == "testdata" ||
			name == "scripts"):
			return filepath.SkipDir
		case filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		for _, s := range stringsOf(t, path) {
			n++
			checkWords(t, s)
		}
		return nil
	})
	if err != nil || n < 5000 {
		t.Fatalf("%d strings: %v", n, err)
	}
}

// prose is the text of a comment or a string, and where it begins.
type prose struct{ at, text string }

// avoided matches every word of the glossary.
var avoided = sync.OnceValue(func() *regexp.Regexp {
	var all []string
	for _, g := range glossary {
		all = append(all, g.avoid)
	}
	return regexp.MustCompile(`(?i)(?:^|[^\pL\d_'-])(` + strings.Join(all, "|") + `)(?:$|[^\pL\d_'-])`)
})

// checkWords reports the first word of s that the glossary replaces.
func checkWords(t *testing.T, s prose) {
	t.Helper()
	m := avoided().FindStringSubmatch(s.text)
	if m == nil {
		return
	}
	for _, g := range glossary {
		if regexp.MustCompile(`(?i)^(?:` + g.avoid + `)$`).MatchString(m[1]) {
			t.Errorf("%s: %q: use %s", s.at, m[1], g.use)
			return
		}
	}
}

// wireNames are words of the glossary that are names in a protocol, and so stay.
var wireNames = map[string]bool{`"heed"`: true}

// stringsOf returns the strings of a file, except tags and import paths.
func stringsOf(t *testing.T, file string) (all []prose) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.BasicLit:
			if n.Kind == token.STRING && !wireNames[n.Value] {
				p := set.Position(n.Pos())
				all = append(all, prose{fmt.Sprintf("%s:%d", p.Filename, p.Line), n.Value})
			}
		}
		return true
	})
	return all
}

// proseOf returns the comments and the strings of a file. A comment block is one text, so that
// phrases are found across its lines.
func proseOf(t *testing.T, file string) []prose {
	t.Helper()
	all := stringsOf(t, file)
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range f.Comments {
		p := set.Position(c.Pos())
		text := strings.Join(strings.Fields(c.Text()), " ")
		all = append(all, prose{fmt.Sprintf("%s:%d", p.Filename, p.Line), text})
	}
	return all
}

// paragraphs returns the text of a page by paragraph, without code blocks and code spans. It
// reports lines that are too long, other than those of tables, headings and links.
func paragraphs(t *testing.T, page string) (all []prose) {
	t.Helper()
	var text []string
	first, code := 0, false
	end := func(next int) {
		if len(text) > 0 {
			all = append(all, prose{fmt.Sprintf("%s:%d", page, first), strings.Join(text, " ")})
		}
		text, first = nil, next
	}
	for i, line := range strings.Split(read(t, page), "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence:
			code = !code
		case code || strings.HasPrefix(line, "    ") && len(text) == 0:
		case strings.TrimSpace(line) == "":
			end(i + 2)
		default:
			exempt := line[0] == '|' || line[0] == '#' || strings.Contains(line, "](")
			if n := len([]rune(line)); n > columns && !exempt {
				t.Errorf("%s:%d: %d columns; the limit is %d", page, i+1, n, columns)
			}
			text = append(text, codeSpan.ReplaceAllString(line, "`"))
		}
	}
	end(0)
	return all
}

// codeSpan is inline code, which is no prose.
var codeSpan = regexp.MustCompile("`[^`]*`")

// unbroken matches the lines that may be longer: rows of tables, which are elements of composite
// literals, long strings, tables in comments, and directives of the linter.
var unbroken = regexp.MustCompile(`^\t+(([^\s:=]+|"[^"]*"):?\s*)?\{.*\},?( //.*)?$|` +
	`^\t+"([^"\\]|\\.)*":? .*,( //.*)?$|"([^"\\]|\\.){50,}"|^\s*//\t|//nolint:|` + "`")

// checkColumns reports the lines of a file that are too long. Raw strings are exempt, too.
func checkColumns(t *testing.T, file string) {
	t.Helper()
	raw := false
	for i, line := range strings.Split(read(t, file), "\n") {
		was := raw
		if strings.Count(line, "`")%2 == 1 {
			raw = !raw
		}
		n := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
		if n > columns && !was && !raw && !unbroken.MatchString(line) {
			t.Errorf("%s:%d: %d columns; the limit is %d", file, i+1, n, columns)
		}
	}
}
