package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/gateway/command"
)

var update = flag.Bool("update", false, "rewrite docs/reference/cli.md")

// TestReference compares docs/reference/cli.md with the command line. -update writes it.
func TestReference(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	want := reference((&cli{}).tree())
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
		t.Errorf("docs/reference/cli.md differs from the command line (write it with go test "+
			"./cmd/sandboxd -run TestReference -update):\n%s", diff)
	}
}

// TestHelp checks that every command has a short help line, an example, and that the most used
// commands come first.
func TestHelp(t *testing.T) {
	root := (&cli{}).tree()
	var most []string
	for _, c := range root.Commands() {
		if c.GroupID == root.Groups()[0].ID {
			most = append(most, c.Name())
		}
		for _, c := range append(c.Commands(), c) {
			if c.IsAvailableCommand() && c.Name() != "help" &&
				(c.Short == "" || len(c.Short) > 66 || c.Example == "") {
				t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
			}
		}
	}
	if diff := cmp.Diff([]string{"cp", "exec", "log", "ls", "new", "rm", "run", "ssh", "stop",
		"up"}, most); diff != "" {
		t.Errorf("the most used commands:\n%s", diff)
	}
}

func reference(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString(
		"# Command line\n\nGenerated from the program by `go test ./cmd/sandboxd -run " +
			"TestReference -update`.\n\n" +
			"Commands marked *local* use this machine. All others run on the daemon, and can " +
			"also be\n" +
			"run with ssh alone: `ssh sandboxd@gw COMMAND`. For exit codes see\n" +
			"[exit-codes.md](exit-codes.md).\n\nFlags of every command:\n\n")
	flags(&b, root.PersistentFlags())
	table := command.Tree(&command.Env{}) // what the daemon runs
	local := func(c *cobra.Command) bool {
		found, _, err := table.Find(strings.Fields(c.CommandPath())[1:])
		return err != nil || found.Name() != c.Name()
	}
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		section(&b, c, local(c))
		for _, sub := range c.Commands() {
			section(&b, sub, local(sub))
		}
	}
	return b.Bytes()
}

func section(b *bytes.Buffer, c *cobra.Command, local bool) {
	fmt.Fprintf(b, "\n## %s\n\n", strings.TrimPrefix(c.CommandPath(), "sandboxd "))
	fmt.Fprintf(b, "    %s\n\n", strings.TrimSuffix(c.UseLine(), " [flags]"))
	text := c.Long
	if text == "" {
		text = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	b.WriteString(text)
	if local {
		b.WriteString(" *Local.*")
	}
	b.WriteString("\n")
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(c.Aliases, "`, `"))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\nFor example:\n\n%s\n", "  "+strings.ReplaceAll(c.Example, "\n", "\n  "))
	}
	if c.LocalFlags().HasAvailableFlags() {
		b.WriteString("\n")
		flags(b, c.LocalFlags())
	}
}

func flags(b *bytes.Buffer, set *pflag.FlagSet) {
	b.WriteString("| flag | meaning |\n| --- | --- |\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		usage := f.Usage
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" &&
			!strings.Contains(usage, "default") {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}
