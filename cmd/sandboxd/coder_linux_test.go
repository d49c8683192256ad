package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/images/agents"
)

// newProject creates a repository with a commit and an untracked .env in a directory of the
// machine.
func (m *machine) newProject() string {
	m.t.Helper()
	dir := filepath.Join(m.dir, "project")
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	for name, text := range map[string]string{"README": "one\n", ".env": "TOKEN=host-only\n",
		".gitignore": ".env\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	git(m.t, dir, "init", "-q", "-b", "main")
	git(m.t, dir, "config", "user.name", "Ann Example")
	git(m.t, dir, "config", "user.email", "ann@example.com")
	git(m.t, dir, "add", ".")
	git(m.t, dir, "commit", "-q", "-m", "one")
	return dir
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// treeHash returns the hash of all files of a work tree, and of its branch and index.
func treeHash(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == ".git" {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(sum, git(t, dir, "for-each-ref", "refs/heads"), git(t, dir, "ls-files", "-s"))
	return hex.EncodeToString(sum.Sum(nil))
}

// inDir is cli in a directory.
func (m *machine) inDir(dir string, want int, args ...string) string {
	m.t.Helper()
	cmd := m.command(args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
		m.t.Fatalf("sandboxd %v: %v, want exit code %d: %s", args, err, want, out)
	}
	return string(out)
}

// coderCase is a coding agent with its scripted model.
type coderCase struct {
	agent, host string
	secret      string   // preset of secret set
	args        []string // of the program
}

// TestCodingAgents runs coding agents from their packages: a prompt goes in, a commit comes back.
// The key of the API is only at the API, and the work tree of this machine does not change. Without
// SANDBOXD_TEST_AGENTS, it runs the first: each installs up to a GB.
func TestCodingAgents(t *testing.T) {
	for _, tt := range []coderCase{
		{agent: "claude", host: "api.anthropic.com", secret: "anthropic"},
		{agent: "codex", host: "api.openai.com", secret: "openai"},
		{agent: "opencode", host: "api.openai.com", secret: "openai"},
		{agent: "aider", host: "api.openai.com", secret: "openai"},
		// Without --model, it sends each request to two models.
		{agent: "gemini", host: "generativelanguage.googleapis.com", secret: "google",
			args: []string{"--model", "gemini-2.5-pro"}},
		{agent: "copilot", host: "api.openai.com", secret: "openai"},
		{agent: "claude", host: "api.anthropic.com", secret: "claude"}, // with a subscription
	}[:times(t, "SANDBOXD_TEST_AGENTS", 1)] {
		t.Run(tt.agent+" "+tt.secret, func(t *testing.T) { testCodingAgent(t, tt) })
	}
}

func testCodingAgent(t *testing.T, tt coderCase) {
	model := &scriptedModel{}
	address, ca := serveTLS(t, tt.host, model)
	// The sandbox installs the program from the registry, whose authority this machine knows.
	bundle, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	ca = append(append(bundle, '\n'), ca...)
	m := newUpstreamMachine(t, address, ca, []string{tt.host})
	dir := m.newProject()
	image := ""
	t.Cleanup(func() { // it has hundreds of MiB
		if image != "" {
			m.cli("", 0, "rm", "--force", "--discard", "work")
			m.engine("rmi", image)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			model.mu.Lock()
			defer model.mu.Unlock()
			t.Logf("the model's requests: %d for the task, %q", model.asks, model.seen)
			for _, args := range [][]string{{"agent", "ls", "--json"},
				{"wait", "work~" + coding.Session, "--json", "--screen=always", "--timeout=1s"},
				{"exec", "work", "git", "-C", dir, "log", "--oneline"}} {
				out, _ := m.command(args...).CombinedOutput()
				t.Logf("%v: %s", args, out)
			}
		}
	})
	before := treeHash(t, dir)
	out := m.inDir(dir, 125, "agent", tt.agent, coderPrompt, "-n", "work")
	if !strings.Contains(out, "sandboxd secret set "+tt.secret+" ") {
		t.Errorf("without a secret: %s", out)
	}
	m.cli("", 0, "secret", "set", tt.secret, "--from-env", "API_KEY")
	out = m.inDir(dir, 0, append([]string{"agent", tt.agent, coderPrompt, "-n", "work", "--"},
		tt.args...)...)
	if !strings.Contains(out, "sandboxd fetch work") {
		t.Errorf("got %s", out)
	}
	image = m.list()["work"].Image
	m.eventually("the agent has committed and is idle", func() bool {
		var i coding.Info
		out := m.inDir(dir, 0, "agent", "ls", "--json")
		if err := json.Unmarshal([]byte(out), &i); err != nil {
			t.Fatalf("agent ls: %v: %s", err, out)
		}
		return i.Attention == "likely" && strings.Contains(m.shell("work",
			"git -C "+dir+" log --format=%s"), "add made")
	})
	m.inDir(dir, 0, "fetch", "work")
	if got := git(t, dir, "show", "sandboxes/work/work:made"); got != "made by the agent" {
		t.Errorf("made: %q", got)
	}
	if got := git(t, dir, "log", "-1", "--format=%an: %s", "sandboxes/work/work"); got !=
		"Ann Example: add made" {
		t.Errorf("commit: %q", got)
	}
	if out := m.inDir(dir, 0, "diff", "work", "--stat"); !strings.Contains(out, "1 file changed") {
		t.Errorf("diff: %s", out)
	}
	if out := m.inDir(dir, 0, "agent", "ls"); !strings.Contains(out, "1 file, +1 −0") ||
		!strings.Contains(out, "likely") {
		t.Errorf("agent ls: %s", out)
	}
	if after := treeHash(t, dir); after != before {
		t.Error("the work tree of this machine has changed")
	}
	if out := m.shell("work", "cd "+dir+" && git status --porcelain && ls -A"); strings.Contains(
		out, ".env\n") || strings.Contains(out, "??") {
		t.Errorf("work tree in the sandbox: %s", out)
	}
	model.mu.Lock()
	if model.cut != 0 {
		t.Error("the model did not get all lines of the prompt")
	}
	if model.asks != 1 || len(model.keys) != 1 {
		t.Errorf("the model got %d requests for the task, keys %v: %v", model.asks, model.keys,
			model.seen)
	}
	for key := range model.keys {
		if !strings.Contains(key, realKey) || strings.Contains(key, agents.Sentinel) {
			t.Errorf("the model got the key %q", key)
		}
	}
	model.mu.Unlock()
	m.hasNowhere(realKey, "work~"+coding.Session)
	if tt.agent == "codex" {
		m.hasExecServer("work")
	}

	// The same work without a terminal.
	cmd := m.command(append([]string{"agent", tt.agent, "--print", coderPrompt, "-n", "quick",
		"--"}, tt.args...)...)
	cmd.Dir = dir
	var notes strings.Builder
	cmd.Stderr = &notes
	answer, err := cmd.Output()
	if err != nil || tt.agent != "aider" && !strings.Contains(string(answer), "finished.") {
		t.Fatalf("--print: %v: %s\n%s", err, answer, notes.String())
	}
	if got := git(t, dir, "show", "sandboxes/quick/quick:made"); got != "made by the agent" {
		t.Errorf("--print: made: %q", got)
	}
	m.cli("", 0, "rm", "--force", "quick")
	model.mu.Lock()
	defer model.mu.Unlock()
	if model.asks != 2 || len(model.keys) != 1 {
		t.Errorf("--print: the model got %d requests for the task, keys %v", model.asks-1,
			model.keys)
	}
}

// hasExecServer starts what the environment of Codex names, and checks that Codex's server answers.
func (m *machine) hasExecServer(name string) {
	m.t.Helper()
	var file configFile
	out := m.cli("", 0, "mcp-config", "codex", "--environment", "-n", name, "--json")
	if err := json.Unmarshal([]byte(out), &file); err != nil {
		m.t.Fatalf("mcp-config: %v: %s", err, out)
	}
	var args []string
	for line := range strings.Lines(file.Text) {
		if list, ok := strings.CutPrefix(line, "args = "); ok {
			if err := json.Unmarshal([]byte(list), &args); err != nil {
				m.t.Fatalf("args: %v: %s", err, file.Text)
			}
		}
	}
	cmd := m.command(args...)
	in, err := cmd.StdinPipe()
	must(m.t, err)
	answers, err := cmd.StdoutPipe()
	must(m.t, err)
	must(m.t, cmd.Start())
	defer cmd.Wait() // it ends with its input
	defer in.Close()
	fmt.Fprintln(in, `{"id":1,"method":"initialize","params":{"clientName":"test"}}`)
	answer, err := bufio.NewReader(answers).ReadString('\n')
	if err != nil || !strings.Contains(answer, `"environmentInfo"`) {
		m.t.Errorf("exec-server: %v: %s", err, answer)
	}
}
