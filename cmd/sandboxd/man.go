package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages that make install and make release install. It is hidden:
// users read them with man(1).
func manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "write the manual pages of all commands into a directory",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("man: missing directory", "usage: sandboxd man DIR")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return writeManual(root, args[0], build)
		},
	}
}

// writeManual writes sandboxd.1 and a page for each visible command into dir. The same build
// writes the same bytes at any time: pages carry the date of the commit.
func writeManual(root *cobra.Command, dir string, b buildFacts) error {
	at, err := time.Parse(time.RFC3339, b.Date)
	if err != nil { // not recorded
		at = time.Unix(0, 0)
	}
	at = at.UTC()
	header := &doc.GenManHeader{Section: "1", Source: "sandboxd " + b.Version, Manual: "sandboxd",
		Date: &at}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, header, dir); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	return nil
}
