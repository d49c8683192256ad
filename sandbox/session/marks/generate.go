//go:build ignore

// Generate writes the scripts for the shells in the form that is embedded: without comments, empty
// lines and indentation. Every sandbox gets every byte of them.
package main

import (
	"log"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	for _, name := range []string{"bash.sh", "posix.sh", "zsh.sh", "fish.fish"} {
		text, err := os.ReadFile(name)
		if err != nil {
			log.Fatal(err)
		}
		var short strings.Builder
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimLeft(line, " \t"); line != "\n" && !strings.HasPrefix(line, "#") {
				// No script contains this in quotes.
				if text, _, comment := strings.Cut(line, " # "); comment {
					line = strings.TrimRight(text, " ") + "\n"
				}
				short.WriteString(line)
			}
		}
		if err := os.WriteFile(strings.TrimSuffix(name, filepath.Ext(name))+".min",
			[]byte(short.String()), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
