//go:build ignore

// Generate writes the scripts for the shells as they are embedded: without comments, empty lines
// and indentation, since every byte of them is in every sandbox.
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
				// None of them has that in quotes.
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
