package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManual(t *testing.T) {
	b := buildFacts{Version: "1.2.3", Date: "2026-01-02T03:04:05Z"}
	var pages [2]map[string]string
	for i := range pages {
		dir := t.TempDir()
		if err := writeManual((&cli{}).tree(), dir, b); err != nil {
			t.Fatal(err)
		}
		pages[i] = make(map[string]string)
		files, err := filepath.Glob(filepath.Join(dir, "*.1"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[i][filepath.Base(file)] = string(text)
		}
	}
	for _, name := range []string{"sandboxd.1", "sandboxd-new.1", "sandboxd-version.1"} {
		page := pages[0][name]
		if !strings.Contains(page, `"Jan 2026" "sandboxd 1.2.3"`) {
			t.Errorf("%s lacks date or version:\n%.300s", name, page)
		}
		if page != pages[1][name] {
			t.Errorf("%s differs from one run to the next", name)
		}
	}
	if _, ok := pages[0]["sandboxd-man.1"]; ok {
		t.Error("a hidden command has a page")
	}
}
