package command

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestAlmost(t *testing.T) {
	tests := []struct {
		name, other string
		want        bool
	}{
		{"dmeo", "demo", true},
		{"wbe", "web", true},
		{"stagign", "staging", true},
		{"satgign", "staging", true},
		{"dem0", "demo", true},
		{"demo", "demo", false},
		{"web2", "web1", false},
		{"web", "web2", false},
		{"task-10", "task-9", false},
		{"db", "dc", false},
		{"web", "api", false},
		{"one", "two", false},
		{"build", "built-it", false},
	}
	for _, tt := range tests {
		if got := almost(tt.name, tt.other); got != tt.want {
			t.Errorf("almost(%q, %q) = %v, want %v", tt.name, tt.other, got, tt.want)
		}
	}
}

// The sandbox is the first argument or the value of -n, before or after the other arguments.
func TestByName(t *testing.T) {
	for line, want := range map[string]string{
		"do web":                "web",
		"do -n web":             "web",
		"do --name=web":         "web",
		"do web x y":            "web x y",
		"do x y -n web":         "web x y",
		"do -n web -- x --json": "web x --json",
		"do web -- x":           "web x",
		"do -n web -- --":       "web --",
		"do --json web x":       "web x",
		"do":                    "",
		"early web -- ls -l":    "web ls -l",
		"early web ls -l":       "web ls -l",
		"early -n web -- ls -l": "web ls -l",
		"early -n web ls -- -l": "web ls -- -l",
	} {
		var got, checked []string
		root := &cobra.Command{Use: "root"}
		for _, name := range []string{"do", "early"} {
			cmd := &cobra.Command{
				Use:  name + " NAME",
				Args: func(_ *cobra.Command, args []string) error { checked = args; return nil },
				RunE: func(_ *cobra.Command, args []string) error { got = args; return nil },
			}
			cmd.Flags().Bool("json", false, "")
			cmd.Flags().SetInterspersed(name == "do")
			ByName(cmd)
			root.AddCommand(cmd)
		}
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err != nil || strings.Join(got, " ") != want ||
			!slices.Equal(got, checked) {
			t.Errorf("%s: got %q, checked %q, %v; want %q", line, got, checked, err, want)
		}
	}
}

// Flags of type and keys may follow the name. They end at the first word, or at --.
func TestFlagsAfterName(t *testing.T) {
	for line, want := range map[string]string{
		"type web y":                   "false web|y",
		"type web --stdin":             "true web|",
		"type --stdin web":             "true web|",
		"type -n web --stdin":          "true web|",
		"type web --stdin --json":      "true web|",
		"type web --timeout 5s y --no": "false web|y --no",
		"type web y --stdin":           "false web|y --stdin",
		"type web -- --stdin":          "false web|--stdin",
		"type web --stdin=0 -- -- x":   "false web|-- x",
		"type -n web -- --stdin":       "false web|--stdin",
		"type -- web --stdin":          "false web|--stdin",
		"type y -n web":                "false web|y",
		"type":                         "false |",
	} {
		cmd, root := &cobra.Command{Use: "type NAME"}, &cobra.Command{Use: "root"}
		got := ""
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{""}
			}
			got = cmd.Flag("stdin").Value.String() + " " + args[0] + "|" +
				strings.Join(args[1:], " ")
			return nil
		}
		cmd.Flags().Bool("json", false, "")
		cmd.Flags().Bool("stdin", false, "")
		cmd.Flags().String("timeout", "", "")
		cmd.Flags().SetInterspersed(false)
		ByName(cmd)
		flagsAfterName(cmd)
		root.AddCommand(cmd)
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"type web -x":       "write -- before a word that begins with -",
		"type -n web -x":    "write -- before a word that begins with -",
		"keys web --nosuch": "write -- before a word that begins with -",
		"type web --help":   "",
		"keys web -h":       "",
	} {
		root := Tree(&Env{})
		root.SetOut(io.Discard)
		root.SetArgs(strings.Fields(line))
		err := root.Execute()
		e, _ := errors.AsType[*wire.Error](err)
		if want == "" && err != nil || want != "" && (e == nil || e.Code != wire.CodeUsage ||
			!strings.Contains(e.Hint, want)) {
			t.Errorf("%s: got %v, hint %+v; want %q", line, err, e, want)
		}
	}
}

func TestNameFirst(t *testing.T) {
	for line, want := range map[string]string{
		"run -- web -- ls":    "|web -- ls",
		"run web -- ls -l":    "web|ls -l",
		"run web ls -- -l":    "|web ls -- -l",
		"run ls -l":           "|ls -l",
		"run -n web -- ls":    "web|ls",
		"run -n web ls -- -l": "web|ls -- -l",
		"run --kill web -- x": "web|x",
		"python web -- file":  "web|file",
		"python web -c 1 --":  "web|",
		"python -- web file":  "|web file",
		"python file":         "|file",
	} {
		root := &cobra.Command{Use: "root"}
		got := ""
		for _, use := range []string{"run", "python"} {
			cmd := &cobra.Command{Use: use, RunE: func(cmd *cobra.Command, args []string) error {
				args, err := NameFirst(cmd, args)
				got = cmd.Flag("name").Value.String() + "|" + strings.Join(args, " ")
				return err
			}}
			cmd.Flags().StringP("name", "n", "", "")
			cmd.Flags().StringP("code", "c", "", "")
			cmd.Flags().Bool("kill", false, "")
			cmd.Flags().SetInterspersed(use == "python")
			root.AddCommand(cmd)
		}
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", line, got, err, want)
		}
	}
}

// Every command that takes a sandbox takes it as an argument and with -n.
func TestEveryNameHasAFlag(t *testing.T) {
	for _, c := range Tree(&Env{}).Commands() {
		if f := c.Flags().Lookup("name"); (f != nil &&
			f.Shorthand == "n") != strings.Contains(c.Use, "NAME") {
			t.Errorf("%s: usage %q, flag %v", c.Name(), c.Use, f)
		}
	}
}

// run creates a missing sandbox, but not one with a mistyped name.
func TestRunRefusesMistypedName(t *testing.T) {
	w := newWorld(t)
	w.must(0, "run", "demo", "--", "true")
	code, stdout, stderr := w.command("run", "-n", "dmeo", "--", "true")
	if code != wire.ExitFailed || stdout != "" || !strings.Contains(stderr,
		"no sandbox dmeo; did you mean demo? To create dmeo, add --create") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
	for _, line := range []string{"describe dmeo", "describe --json dmeo", "exec dmeo -- true",
		"screen dmeo", "type dmeo x", "log dmeo", "stop dmeo", "rm dmeo"} {
		_, stdout, stderr := w.command(strings.Fields(line)...)
		if !strings.Contains(stdout+stderr, "did you mean demo?") {
			t.Errorf("%s: %q, %q", line, stdout, stderr)
		}
	}
	w.must(0, "run", "-n", "dmeo", "--create", "--", "true")
	w.must(0, "run", "dmeo", "--", "true")
	w.must(0, "describe", "-n", "dmeo")
	w.must(0, "exec", "-n", "dmeo", "--", "true")
	w.must(0, "stop", "-n", "dmeo", "demo")
}
