package docs

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// errorPages have tables whose texts the program prints.
var errorPages = []string{"how-to/troubleshooting.md", "how-to/failures.md"}

// printedByOthers are texts of these tables that other programs print.
var printedByOthers = map[string]bool{
	"Permission denied (publickey)":  true, // OpenSSH
	"Could not resolve hostname sbx": true,
	"Host key verification failed":   true,
	"connection refused":             true, // the kernel
}

// TestErrorTexts looks for each text of the tables in the sources, so that a reader who searches a
// page for what was printed finds it. Words in capitals and … stand for anything.
func TestErrorTexts(t *testing.T) {
	sources := goSources(t)
	variable := regexp.MustCompile(`…|\b[A-Z]+\b`)
	found := 0
	for _, page := range errorPages {
		for line := range strings.Lines(read(t, page)) {
			for _, text := range errorTexts(line) {
				if printedByOthers[text] {
					continue
				}
				found++
				pattern := regexp.MustCompile(
					variable.ReplaceAllString(regexp.QuoteMeta(text), `.{0,80}?`))
				fixed := slices.MaxFunc(variable.Split(text, -1), func(a, b string) int {
					return cmp.Compare(len(a), len(b))
				})
				if !slices.ContainsFunc(sources, func(line string) bool {
					return strings.Contains(line, fixed) && pattern.MatchString(line)
				}) {
					t.Errorf("%s: no source has the text %q", page, text)
				}
			}
		}
	}
	if found < 30 {
		t.Fatalf("found %d texts: is the pattern right?", found)
	}
}

// command begins code spans that are commands.
var command = regexp.MustCompile(`^(sandboxd|kill|docker|serve|ssh) |--`)

// errorTexts returns the code spans of a row that are texts: they have a blank and are no command.
func errorTexts(row string) (texts []string) {
	if !strings.HasPrefix(row, "|") {
		return nil
	}
	for _, span := range codeSpan.FindAllString(row, -1) {
		text := strings.Trim(span, "`")
		if strings.Contains(text, " ") && !command.MatchString(text) {
			texts = append(texts, text)
		}
	}
	return texts
}

// goSources returns the lines with strings of the programs and packages, without tests. An
// expression that continues on the next line is one.
func goSources(t *testing.T) []string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"agent", "cmd", "gateway", "sandbox"} {
		err := fs.WalkDir(os.DirFS(".."), dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") &&
				!strings.HasSuffix(path, "_test.go") {
				all.WriteString(read(t, filepath.Join("..", path)))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	joined := regexp.MustCompile(`\+\s*\n\s*`).ReplaceAllString(all.String(), "+ ")
	joined = strings.ReplaceAll(joined, `" + "`, "")
	return slices.DeleteFunc(strings.Split(joined, "\n"), func(line string) bool {
		return !strings.Contains(line, `"`)
	})
}
