package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\pL\pN_\- ]`)
)

// TestLinks follows the links between our own pages: the file exists, and so does the heading.
func TestLinks(t *testing.T) {
	n := 0
	for _, page := range append(markdown(t), "../README.md", "../CONTRIBUTING.md",
		"../SECURITY.md") {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(read(t, page), ""),
			-1) {
			if strings.Contains(m[1], ":") {
				continue // an address elsewhere
			}
			n++
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: no such file", page, m[1])
				continue
			}
			if m[2] != "" && filepath.Ext(target) == ".md" && !hasHeading(read(t, target), m[2]) {
				t.Errorf("%s: link to %s#%s: no such heading", page, m[1], m[2])
			}
		}
	}
	if n < 50 {
		t.Fatalf("found %d links: is the pattern right?", n)
	}
}

// hasHeading reports whether a page has a heading with that anchor, as GitHub makes them.
func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		if slug == anchor {
			return true
		}
	}
	return false
}

// markdown returns the pages below this directory.
func markdown(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	return pages
}
