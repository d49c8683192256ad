package text

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStream(t *testing.T) {
	var out bytes.Buffer
	s := NewStream(&out)
	for _, step := range []struct{ in, want string }{
		{"one\r\ntw", "one\n"},
		{"o\r\n10%", "one\ntwo\n"},
		{"\r50%\r100%", "one\ntwo\n"},
		{"\r\nContinue? ", "one\ntwo\n100%\n"},
	} {
		if _, err := s.Write([]byte(step.in)); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != step.want {
			t.Errorf("after %q: got %q, want %q", step.in, got, step.want)
		}
	}
	if got := s.Take(); got != "Continue? " {
		t.Errorf("taken: %q", got)
	}
	if got := s.Take(); got != "" {
		t.Errorf("taken twice: %q", got)
	}
	s.Write([]byte("yes\r\nContinue? "))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "one\ntwo\n100%\nyes\nContinue? \n"; got != want {
		t.Errorf("after Close: got %q, want %q", got, want)
	}
}

// What is not done is on a terminal at once, and no control but those that draw it anew.
func TestTerminal(t *testing.T) {
	var out bytes.Buffer
	s := NewTerminal(&out)
	for _, step := range []struct{ in, want string }{
		{"one\r\ntw", "one\ntw"},
		{"o\r\n10%", "o\n10%"},
		{"\r50%", "\r\x1b[K50%"},
		{"\r100%\n", "\r\x1b[K100%\n"},
		{"\x1b]52;c;aGk=\x07\x1b]0;title\x1b\\\x1b[5n\x1bP$qm\x1b\\", ""},
		{"\u009b31m\u202e", "31m<U+202E>"},
		{"\x1b[", ""},
		{"2J\x1bcContinue? ", "Continue? "},
		{"\xc3", ""},
	} {
		out.Reset()
		if _, err := s.Write([]byte(step.in)); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != step.want {
			t.Errorf("after %q: got %q, want %q", step.in, got, step.want)
		}
	}
	out.Reset()
	if err := s.Close(); err != nil || out.String() != "\ufffd" {
		t.Errorf("Close: got %q, %v", out.String(), err)
	}
}

// A line without end is shown as it comes, and is not held.
func TestTerminalEndlessLine(t *testing.T) {
	var out bytes.Buffer
	s := NewTerminal(&out)
	var want strings.Builder
	for i := range 300 {
		piece := strings.Repeat(string(rune('a'+i%26)), 1000)
		want.WriteString(piece)
		s.Write([]byte(piece))
		if len(s.shown) > 2*windowRunes || len(s.w.lines[0]) > 2*windowRunes {
			t.Fatalf("holds %d bytes", len(s.shown))
		}
	}
	if out.String() != want.String() {
		t.Error("the line is shown otherwise than it was written")
	}
}

func FuzzTerminal(f *testing.F) {
	f.Add([]byte("a\rb\x1b[2K\x1b[3Ac\n\x1b]0;x\x07\u202e\xff"), 3)
	f.Fuzz(func(t *testing.T, p []byte, split int) {
		var out bytes.Buffer
		s := NewTerminal(&out)
		split = min(max(split, 0), len(p))
		s.Write(p[:split])
		s.Write(p[split:])
		s.Close()
		shown := strings.ReplaceAll(out.String(), "\r\x1b[K", "")
		if i := strings.IndexFunc(shown, func(r rune) bool {
			return forbidden(r) && r != '\n'
		}); i >= 0 || !utf8.ValidString(shown) {
			t.Errorf("%q has %q", shown, shown[max(i, 0):])
		}
	})
}
