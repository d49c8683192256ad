package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite docs/reference/configuration.md")

// TestReference compares docs/reference/configuration.md with the settings. -update writes it.
func TestReference(t *testing.T) {
	const path = "../../../docs/reference/configuration.md"
	introduction, err := os.ReadFile("testdata/introduction.md")
	if err != nil {
		t.Fatal(err)
	}
	want := reference(introduction)
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/reference/configuration.md is stale: go test ./cmd/sandboxd/config "+
			"-update\n%s", diff)
	}
}

// reference returns the introduction and a table of each section.
func reference(introduction []byte) []byte {
	b := bytes.NewBuffer(bytes.Clone(introduction))
	title, about := "General", ""
	for _, section := range append([]section{{}}, sections()...) {
		if section.Key != "" {
			title, about = section.Key, section.Meaning+"\n\n"
		}
		fmt.Fprintf(b, "\n## %s\n\n%s| key | type | default | meaning | variable, flag |\n", title,
			about)
		b.WriteString("| --- | --- | --- | --- | --- |\n")
		for _, f := range fields() {
			in, _, nested := strings.Cut(f.Key, ".")
			if nested && in == section.Key || !nested && section.Key == "" {
				row(b, f)
			}
		}
	}
	return b.Bytes()
}

// row writes a line of a table of the reference.
func row(b *bytes.Buffer, f *field) {
	kind, standard, meaning := f.Kind, f.Computed, f.Meaning
	if f.Default != "" {
		standard = "`" + f.Default + "`"
	}
	if len(f.OneOf) > 0 {
		kind = "`" + strings.Join(f.OneOf, "`, `") + "`"
	}
	if f.Old != "" {
		meaning += " Former name: `" + f.Old + "`."
	}
	set := "`" + f.variable() + "`"
	if f.Flag != "" {
		set += ", `" + f.Flag + "`"
	}
	meaning = strings.ReplaceAll(meaning, "|", `\|`)
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", f.Key, kind, standard, meaning, set)
}
