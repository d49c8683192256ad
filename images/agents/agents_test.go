package agents

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestBuiltin checks each built-in description: its commands are shell code, its JSON files are
// JSON, and its version is pinned.
func TestBuiltin(t *testing.T) {
	if !slices.Contains(Names(), "claude") {
		t.Fatalf("names: %v", Names())
	}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			a, err := Find(name, "")
			if err != nil {
				t.Fatal(err)
			}
			if a.Version == "" || len(a.Secrets) == 0 || len(a.Hosts) == 0 {
				t.Errorf("version %q, secrets %v, hosts %v: want some", a.Version, a.Secrets,
					a.Hosts)
			}
			setup, err := a.Install("1.2.3")
			if err != nil {
				t.Fatal(err)
			}
			sh := exec.Command("sh", "-n")
			sh.Stdin = strings.NewReader(strings.Join(setup, "\n"))
			if out, err := sh.CombinedOutput(); err != nil {
				t.Errorf("setup: %v: %s", err, out)
			}
			if !strings.Contains(strings.Join(setup, "\n"), "1.2.3") {
				t.Error("setup does not install the version")
			}
			for i := range a.Secrets {
				files, err := a.Render(`/srv/a "b" <c>`, a.Secrets[i:i+1])
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					if strings.HasSuffix(f.Path, ".json") && !json.Valid([]byte(f.Text)) {
						t.Errorf("%s is not JSON: %s", f.Path, f.Text)
					}
					if strings.Contains(f.Text, "{{") {
						t.Errorf("%s: %s", f.Path, f.Text)
					}
				}
			}
		})
	}
}

// TestReady checks which screens of the programs take a prompt.
func TestReady(t *testing.T) {
	for name, screens := range map[string]map[string]bool{
		"claude": {
			"Claude Code\n❯\u00a0\n  ⏵⏵ bypass": true,
			"❯\n":                               true,
			"❯ Try \"fix lint errors\"\n":       true,
			" Do you trust it?\n ❯ 1. Yes\n":    false,
			"Do you want to proceed?\n❯ 1. Yes": false,
			"❯ typed already\n":                 false,
			"":                                  false,
		},
		"codex": {
			">_ OpenAI Codex\n\n› Ask Codex to do anything\n\n  ? for shortcuts": true,
			"›\n":                              true,
			"› 1. Yes, proceed (y)\n  2. No\n": false,
			"› typed already\n":                false,
		},
		"opencode": {
			"\n    ┃\n    ┃  Ask anything… \"Fix broken tests\"\n    ┃\n": true,
			"  ┃\n  ┃\n  ┃\n  ┃  Build auto · GPT\n":                      true,
			"  ┃\n  ┃  typed already\n  ┃\n  ┃  Build auto · GPT\n":       false,
			"  ┃   Allow once   Allow always   Reject\n":                  false,
			"\n\n": false, // it starts
		},
		"aider": {
			"Repo-map: using 4096 tokens\n────\n>": true,
			"────\nmade\n> \n":                     true,
			"────\n> typed already":                false,
			"────\n>\nfinished.":                   false,
			"Create new file? (Y)es/(N)o [Yes]:":   false,
		},
		"gemini": {
			"────\n YOLO Ctrl+Y\n\n *   Type your message or @path/to/file\n": true,
			"────\n\n >   Type your message or @path/to/file\n":               true,
			"│ Allow execution of [Shell]?\n│ ● 1. Allow once":                false,
			" > typed already\n": false,
		},
		"copilot": {
			" /srv/a [⎇ work]\n────\n❯\n────\n ? help": true,
			"────\n❯ typed already\n":                  false,
			"│ ❯ 1. Yes\n│   2. No\n":                  false,
		},
	} {
		a, err := Find(name, "")
		if err != nil {
			t.Fatal(err)
		}
		for screen, want := range screens {
			if got := a.IsReady(screen); got != want {
				t.Errorf("%s: %q: got %t", name, screen, got)
			}
		}
	}
}

func TestLastLine(t *testing.T) {
	for _, tt := range []struct{ name, screen, want string }{
		{"claude", "● done.\n\n────\n❯\u00a0\n────\n  ⏵⏵ bypass", "● done."},
		{"claude", " Proceed?\n ❯ 1. Yes\n", "❯ 1. Yes"},
		{"claude", "", ""},
		{"opencode", "     done.\n\n     ▣  Build · GPT · 5s\n\n\n  ┃\n  ┃\n  ┃\n  ┃  Build auto · GPT",
			"done."},
		{"aider", "Commit 1a2b add made\n────\nmade\n>", "Commit 1a2b add made"},
		{"gemini", "✦ done.\n\n   ? for shortcuts\n────\n YOLO Ctrl+Y\n\n *   Type your message",
			"✦ done."},
		{"copilot", " ● done.\n /srv/a [⎇ work]\n────\n❯\n────\n ? help", "● done."},
		{"codex", "• done.\n\n  Worked for 5s • 13:05\n\n\n› Ask Codex to do\n\n  GPT", "• done."},
	} {
		a, err := Find(tt.name, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := a.LastLine(tt.screen); got != tt.want {
			t.Errorf("%s: %q: got %q, want %q", tt.name, tt.screen, got, tt.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, text, wrong string }{
		{"least", "command: [x]", ""},
		{"empty", "", "the file is empty"},
		{"unknown key", "command: [x]\ncomand: [y]", "field comand not found"},
		{"two documents", "command: [x]\n---\ncommand: [y]", "more than one document"},
		{"no command", "title: X", "command: missing"},
		{"title", "command: [x]\ntitle: \"a\\e[31m\"", "not printable"},
		{"version", "command: [x]\nversion: 1; rm", "version"},
		{"variable", "command: [x]\nenv: {A-B: c}", "not the name of a variable"},
		{"secret", "command: [x]\nsecrets: [{host: a.example.com}]", "host and set are required"},
		{"relative path", "command: [x]\nfiles: [{path: a, text: b}]", "must be absolute"},
		{"path out of home", "command: [x]\nfiles: [{path: ~/../a, text: b}]", "must be absolute"},
		{"regular expression", "command: [x]\nready: '('", "ready: "},
		{"template", "command: [x]\nsetup: ['{{.Dir}}']", "setup: "},
		{"header", "command: [x]\nsecrets: [{host: h, set: s, header: 'X-Api-Key: {}'}]",
			"secrets[0]: header "},
		{"variable in setup", "command: [x]\nsetup: ['{{env \"A\"}}']", "setup: "},
		{"template of a file", "command: [x]\nfiles: [{path: ~/a, text: '{{.B}}'}]", "files: ~/a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("x", []byte(tt.text))
			if tt.wrong == "" && err != nil ||
				tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
				t.Errorf("got %v, want %q", err, tt.wrong)
			}
		})
	}
}

// TestFind checks that a user's own description comes before the built-in one.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "claude.yaml"), []byte("command: [own]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, own, want string }{
		{"claude", dir, "own"},
		{filepath.Join(dir, "claude.yaml"), "", "own"},
		{"claude", "", "claude"},
		{"claude", filepath.Join(dir, "missing"), "claude"},
	} {
		a, err := Find(tt.name, tt.own)
		if err != nil || a.Command[0] != tt.want || a.Name != "claude" {
			t.Errorf("%s, %s: got %+v, %v", tt.name, tt.own, a, err)
			continue
		}
		file := ""
		if tt.want == "own" {
			file = filepath.Join(dir, "claude.yaml")
		}
		if a.File != file {
			t.Errorf("%s, %s: file %q, want %q", tt.name, tt.own, a.File, file)
		}
	}
	for _, name := range []string{"none", "..", "", "Claude"} {
		if _, err := Find(name, dir); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: got %v, want ErrUnknown", name, err)
		}
	}
}

func TestVariables(t *testing.T) {
	a, err := Parse("x", []byte("command: [x]\nenv: {B: c}\nsecrets: [{host: h, set: s, env: A}]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Variables(a.Secrets); !slices.Equal(got, []string{"A=" + Sentinel, "B=c"}) {
		t.Errorf("with the secret: got %q", got)
	}
	if got := a.Variables(nil); !slices.Equal(got, []string{"B=c"}) {
		t.Errorf("without the secret: got %q", got)
	}
}

// A version that setup does not use, and a setup without the version that it uses, are errors.
func TestVersion(t *testing.T) {
	a, err := Parse("x", []byte("command: [x]\nsetup: [echo]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Install("2"); err == nil || !strings.Contains(err.Error(), "{{.Version}}") {
		t.Errorf("unused version: %v", err)
	}
	if _, err := Parse("x", []byte("command: [x]\nsetup: ['echo {{.Version}}']\n")); err == nil ||
		!strings.Contains(err.Error(), "version: missing") {
		t.Errorf("without a version: %v", err)
	}
	if _, err := Parse("keep", []byte("command: [x]\n")); err == nil {
		t.Error("an agent has the name of a command")
	}
}

func TestAnswers(t *testing.T) {
	a, err := Parse("x", []byte("command: [x]\nprint: [run, '{{.Prompt}}']\n"))
	if err != nil {
		t.Fatal(err)
	}
	const prompt = "a {{.Prompt}} {{nothing}}\n'b'"
	if got, err := a.Answers(prompt); err != nil || !slices.Equal(got, []string{"run", prompt}) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Parse("x", []byte("command: [x]\nprint: [run]\n")); err == nil ||
		!strings.Contains(err.Error(), "print: no {{.Prompt}}") {
		t.Errorf("without a prompt: %v", err)
	}
	a = &Agent{}
	if got, err := a.Answers(prompt); err != nil || len(got) != 0 {
		t.Errorf("without print: %q, %v", got, err)
	}
}

// TestClaudeSecrets checks that Claude Code is configured for the secret that it uses.
func TestClaudeSecrets(t *testing.T) {
	a, err := Find("claude", "")
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range a.Secrets {
		files, err := a.Render("/srv", a.Secrets[i:i+1])
		if err != nil {
			t.Fatal(err)
		}
		token := slices.Contains(a.Variables(a.Secrets[i:i+1]),
			"CLAUDE_CODE_OAUTH_TOKEN="+Sentinel)
		helper := slices.ContainsFunc(files, func(f File) bool {
			return strings.Contains(f.Text, "apiKeyHelper")
		})
		if key := s.Header == "x-api-key"; helper != key || token == key {
			t.Errorf("%s: helper %v, token %v", s.Set, helper, token)
		}
	}
}
