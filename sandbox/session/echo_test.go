package session

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

func TestEchoOutput(t *testing.T) {
	bash := "\x1b[7337~\x15 {x&&:;}\n"
	for _, tt := range []struct{ name, typed, echo, want string }{
		{"bash", bash, " {x&&:;}\r\n\x1b[?2004l\r", "\x1b[?2004l"},
		{"nothing", bash, "", ""},
		{"wrapped", bash, " {x&&\r \r:;}\r\n", ""},
		{"wrapped at its end", bash, " {x&&:;} \r\x1b[A\x1b[C\x1b[C\x1b[K}\r\n\x1b[?2004l\r",
			"\x1b[?2004l"},
		{"wrapped at its end, with a line", bash,
			" {x&&:;} \r\x1b[A\x1b[C\x1b[C\x1b[K}\r\n\x1b[?2004l\rjob\r\n", "\x1b[?2004ljob\r\n"},
		{"redrawn", bash, "\x1b[3D\x1b[K {x&&:;}\r\n", ""},
		{"a line before", bash, "job\r\n {x&&:;}\r\n", "job\r\n"},
		{"a line between", bash, " {x&job\r\n&:;}\r\n", "job\r\n"},
		{"a line behind", bash, " {x&&:;}\r\n\x1b[?2004l\rjob\r\n", "\x1b[?2004ljob\r\n"},
		{"a line before the end", bash, " {x&&:;}job\r\n\r\n\x1b[?2004l\r", "\x1b[?2004ljob\r\n"},
		{"lines before the end", bash, " {x&&:;}<1>\r\n<2>\r\n\r\n\x1b[?2004l\r<3>\r\n",
			"\x1b[?2004l<1>\r\n<2>\r\n<3>\r\n"},
		{"the beginning of a line behind", bash, " {x&&:;}\r\n\x1b[?2004l\rjob", "\x1b[?2004ljob"},
		{"bell", bash, "\a {x&&:;}\r\n", ""},
		{"the end of a line", bash, "\r\n {x&&:;}\r\n\x1b[?2004l\r", "\x1b[?2004l\r\n"},
		{"canonical, the end of a line", "\x05\x15. /f\n", "\r\n^E\b \b\b \b. /f\r\n", "\r\n"},
		{"canonical", "\x05\x15. /f\n", "^E\b \b\b \b. /f\r\n", ""},
		{"canonical, with a line", "\x05\x15. /f\n", "^E\b \b\b \bjob\r\n. /f\r\n", "job\r\n"},
		{"letters of the line in others' output", bash,
			"x {x} \x1b[1;31m;&\x1b[m\a\r\n {x&&{x} &:;\r\n:;}{x} :;\r\n\r\n\x1b[?2004l\r {x&\r\n",
			"\x1b[?2004lx {x} \x1b[1;31m;&\x1b[m\a\r\n{x} &:;\r\n{x} :;\r\n {x&\r\n"},
		{"cut off", bash, " {x&\x1b[", ""},
	} {
		e := &echo{typed: []byte(tt.typed), bytes: []byte(tt.echo)}
		got := string(e.output())
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestEchoOfALineDrawnAgain changes the size of the terminal. The line editor then redraws the
// prompt and the unsent line, before it clears the line for the command.
func TestEchoOfALineDrawnAgain(t *testing.T) {
	const again, emptied = "\r\x1b[Kroot@demo:~# ", "\r\x1b[13C\x1b[K"
	for _, tt := range []struct{ name, before, behind, want string }{
		{"once", "", emptied, ""},
		{"a job's line before", "job\r\n", emptied, "job\n"},
		{"another line", "", "job\r\n", "rm -rf /srv/data job\n"},
	} {
		e := &echo{typed: []byte("\x1b[7337~\x15 {x&&:;}\n"), line: "rm -rf /srv/data"}
		if tt.name == "another line" {
			e.line = "rm -rf /srv/date"
		}
		e.add([]byte(tt.before))
		for range 2 {
			e.add([]byte(again))
			e.dropPrompt()
			e.add([]byte("rm -rf /srv/data "))
			if tt.name == "another line" {
				break
			}
		}
		e.add([]byte(tt.behind + " {x&&:;}\r\n"))
		if got, _ := text.Render(e.output(), -1); strings.Trim(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestEchoApart has a job print two lines at any two positions of the echo of bash's typed line.
// Only the job's lines must remain. They have no words in common with the typed line, because the
// result would be ambiguous.
func TestEchoApart(t *testing.T) {
	t.Parallel()
	in, ok := marks.For("/bin/bash", marks.Nonce{}, marks.Options{})
	if !ok {
		t.Fatal("bash is not known")
	}
	typed, _ := in.Command("true", 1)
	line := string(typed[bytes.IndexByte(typed, 0x15)+1:len(typed)-1]) + "\r\n" + pasteOff
	for _, lines := range [][2]string{{"<1>\r\n", "<212>\r\n"}, {"<26>\r\n", "<2>\r\n"},
		{"[1] 1201\r\n", "> 100%\r\n"}} {
		for i := range len(line) + 1 {
			for j := i; j <= len(line); j++ {
				if j > i+8 && j < len(line)-20 && j%7 != 0 {
					continue // one position stands for its neighbors
				}
				if within(line, i) || within(line, j) {
					continue
				}
				p := line[:i] + lines[0] + line[i:j] + lines[1] + line[j:]
				e := &echo{typed: typed, bytes: []byte(p)}
				if got, want := strings.TrimPrefix(string(e.output()), "\x1b[?2004l"),
					lines[0]+lines[1]; got != want {
					t.Errorf("%q: %q, want %q", p, got, want)
				}
			}
		}
	}
}

// within reports whether at is inside the line editor's single write after the line.
func within(line string, at int) bool {
	return at == strings.Index(line, "\r\n")+1 ||
		at > strings.Index(line, pasteOff) && at < len(line)
}
