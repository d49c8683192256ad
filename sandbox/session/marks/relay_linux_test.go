package marks

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// relayed starts the shell at path without marks, as behind a relay, and types the script to it.
func relayed(t testing.TB, path string, args ...string) *shell {
	t.Helper()
	s := &shell{t: t, nonce: NewNonce()}
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"HOME=" + cmd.Dir, "PATH=" + searchable(os.Getenv("PATH")), "PS1=ready> ",
		"TERM=xterm-256color", "LANG=C.UTF-8", "INPUTRC=/dev/null"}
	s.begin(cmd)
	s.until("prompt", func() bool { return strings.Contains(s.line(), "ready> ") })
	s.typ(string(Ask(s.nonce)))
	shell := s.next(Ready).Shell
	in, ok := For("/bin/"+shell, s.nonce, Options{Relay: true})
	if !ok {
		t.Fatalf("For(%q): not known", shell)
	}
	s.in = in
	s.typ(string(Feed(in.Script)))
	s.prompt()
	return s
}

// Commands run in a shell behind a relay as in one that was started with marks.
func TestRelay(t *testing.T) {
	differ := []string{
		"ENV is unset", "script descriptor is closed", // of how the other shells start
		"nothing in the environment", // PS1, without the secret
		"functions end nothing",
	}
	paths := shells(t)
	for _, test := range commandTests() {
		for _, name := range []string{"bash", "dash", "ash"} {
			if !slices.Contains(strings.Fields(test.shells), name) ||
				slices.Contains(differ, test.name) {
				continue
			}
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				args := []string{"-i"}
				if name == "bash" {
					args = []string{"--norc", "-i"}
				}
				test.run(t, relayed(t, paths[name], args...))
			})
		}
	}
}

// Another program may read the beginning of a typed line, and a shell the rest: it must not name a
// file in the shell's directory.
func TestTypedLines(t *testing.T) {
	n := NewNonce()
	hasPath := func(line string) bool { return strings.ContainsRune(line, '/') }
	for _, path := range []string{"/bin/bash", "/bin/dash", "/bin/ash", "/usr/bin/zsh"} {
		for _, opt := range []Options{{}, {File: "/dev/shm/d/f", PID: 12}, {Relay: true}} {
			in, ok := For(path, n, opt)
			if !ok {
				continue
			}
			if typed, _ := in.Command("cd /tmp; ./no", 1); hasPath(string(typed)) {
				t.Errorf("%s: a path in %q", path, typed)
			}
			if opt.File == "" {
				continue
			}
			// A shell that reads an end that begins in quotes reads an open quote.
			for i, part := range strings.Split(string(in.Enter()), "'") {
				if i%2 == 0 && hasPath(part) {
					t.Errorf("%s: a path in %q", path, in.Enter())
				}
			}
		}
	}
	// Commands for one relayed shell are none for another, which may be around its relay.
	for _, path := range []string{"/bin/bash", "/bin/dash"} {
		one, _ := For(path, n, Options{Relay: true})
		other, _ := For(path, NewNonce(), Options{Relay: true})
		typed, _ := one.Command("true", 1)
		line, _, _ := strings.Cut(string(typed), "\n")
		name := one.reader + " "
		if path == "/bin/dash" {
			name = one.reader + "&&"
		}
		if !strings.Contains(line, name) ||
			!strings.Contains(string(one.Script), one.reader+"()") ||
			strings.Contains(string(other.Script), one.reader) ||
			strings.Contains(line, n.String()[:8]) {
			t.Errorf("%s: %q", path, line)
		}
	}
	// A shell reads the whole line before it runs any of it, and an end has a parenthesis too many.
	question := string(Ask(n))
	if hasPath(question) || !strings.HasSuffix(question, `)")"`+"\n") {
		t.Errorf("%q", question)
	}
}

// A shell that has not been asked, or has answered already, prints no Ready mark.
func TestReady(t *testing.T) {
	n := NewNonce()
	p := NewParser(n)
	ready := "\x1b]7337;R;" + n.String() + ";0;\a"
	if out, all := p.Parse([]byte("a" + ready + "b")); string(out) != "ab" || len(all) != 1 ||
		all[0] != (Mark{Kind: Ready, Shell: "ash", At: 1}) {
		t.Errorf("%q, %v", out, all)
	}
	if _, all := p.Parse([]byte("\x1b]7337;A;" + n.String() + ";1;0;0;/;" + n.String() +
		"\a" + ready)); len(all) != 1 || all[0].Kind != PromptStart {
		t.Errorf("after a prompt: %v", all)
	}
}

// What is typed has only digits, in lines that a terminal takes.
func TestFeed(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("\\", 3000), "\x03\x7f\xff\n\t \r"} {
		fed := string(Feed([]byte(text)))
		if !strings.HasSuffix(fed, "\n") || text != "" && !strings.HasSuffix(fed, "\n\n") ||
			strings.Contains(strings.TrimSuffix(fed, "\n"), "\n\n") {
			t.Errorf("Feed(%.10q) ends %.10q", text, fed)
		}
		for line := range strings.Lines(fed) {
			if len(line) > 500 || strings.Trim(line, "01234567\n") != "" {
				t.Errorf("Feed(%.10q): line %.40q of %d bytes", text, line, len(line))
			}
		}
	}
}
