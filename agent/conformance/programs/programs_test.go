package programs

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent/conformance"
)

// standIn is a bash program that behaves like the real ones: it reads the keyboard all the time,
// echoes typed text, works after Enter and prints an answer. WORK, ANSWER and REST are its parts.
const standIn = `
stty raw -echo
printf 'ready> '
while IFS= read -rn1 -d '' -t 60 k && [[ $k != [$'\r\n'] ]]; do printf %s "$k"; done
WORK
printf ' ANSWER'
while REST; do :; done
`

// standInFor returns a stand-in with these parts.
func standInFor(work, answer, rest string) program {
	script := strings.NewReplacer("WORK", work, "ANSWER", answer, "REST", rest).Replace(standIn)
	return program{
		title:   "stand-in",
		ready:   "ready>",
		asks:    "may I?",
		command: "bash -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'",
	}
}

// TestSituations runs situations with programs that behave as expected, and with others.
func TestSituations(t *testing.T) {
	// Its verdicts are tested, not the speed of this machine.
	w := conformance.World{Client: sandboxOf(t), Tier: conformance.Full, Slow: 10}
	const (
		spins   = `for ((i = 0; i < 70; i++)); do read -rn1 -t 0.1 k; printf '\b%s' $((i % 10)); done`
		pauses  = `read -rn1 -t 7 k`
		nothing = `:`
		listens = `read -rn1 -t 60 k`
		waits   = `read -rn1 k`
	)
	for _, tt := range []struct {
		name      string
		situation string
		program   program
		wrong     string // in the error; empty when it must hold
	}{
		{"idle", "idle", standInFor(nothing, "", listens), ""},
		{"works", "answering", standInFor(spins, "word23", listens), ""},
		{"pauses at work", "answering", standInFor(pauses, "word23", listens),
			"in the middle of the work"},
		{"waits", "asking", standInFor(nothing, "may I?", waits), "got waiting"},
		{"asks", "asking", standInFor(nothing, "may I?", listens), ""},
		{"does not ask", "asking", standInFor(nothing, "done", listens), `without "may I?"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range situations {
				if s.name != tt.situation {
					continue
				}
				err := s.play(t.Context(), w, tt.program)
				if tt.wrong == "" && err != nil ||
					tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
					t.Errorf("%v, want %q", err, tt.wrong)
				}
			}
		})
	}
}

// TestFiles checks the files of the cases.
func TestFiles(t *testing.T) {
	for name, text := range map[string]string{"agents.sh": script, "claude.json": claudeConfig,
		"codex.toml": codexConfig} {
		if !strings.Contains(text, filepath.Clean(dir)) {
			t.Errorf("%s does not name %s", name, dir)
		}
	}
	for name, text := range map[string]string{"claude.json": claudeConfig,
		"gemini.json": geminiConfig} {
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is not JSON", name)
		}
	}
	sh := exec.Command("sh", "-n")
	sh.Stdin = strings.NewReader(script)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Errorf("agents.sh: %v: %s", err, out)
	}
	for name := range programs {
		if !strings.Contains(script, "\n"+name+") package=") {
			t.Errorf("agents.sh does not install %s", name)
		}
	}
}
