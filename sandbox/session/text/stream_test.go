package text

import (
	"bytes"
	"testing"
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
