package text

import (
	"io"
	"strings"
)

// Stream renders output to a writer while it comes: each line when it is done. A line that is not
// done – a progress bar, a question – is held back, because the next byte may still change it.
// Programs that move the cursor up to redraw lines get what they printed first; Writer, which can
// wait, does better.
type Stream struct {
	w   *Writer
	out io.Writer
	err error // of out; what comes after it is dropped

	live  bool
	shown string // of a terminal's last line
}

// NewStream returns a Stream to out, which Close does not close.
func NewStream(out io.Writer) *Stream {
	w := NewWriter(-1)
	w.window = 1
	return &Stream{w: w, out: out}
}

// NewTerminal returns a Stream to a person's terminal, in its usual (cooked) mode. It shows the
// line that is not done, too, and draws it anew when it changes. Nothing that is written to it
// reaches the terminal as a control, and the Stream holds some 64 Ki characters at most.
func NewTerminal(out io.Writer) *Stream {
	s := NewStream(out)
	s.live = true
	return s
}

// Write takes output in pieces of any size. Its error is that of the writer below.
func (s *Stream) Write(p []byte) (int, error) {
	_, _ = s.w.Write(p)
	done := string(s.w.kept.head)
	*s.w.kept = *newKeeper(-1)
	if s.live {
		s.show(done, string(s.w.lines[0]))
	} else {
		s.flush(done)
	}
	return len(p), s.err
}

// show writes what is new of the lines that are done and of the one that is not.
func (s *Stream) show(done, line string) {
	all := done + line
	rest, grown := strings.CutPrefix(all, s.shown)
	if !grown {
		rest = "\r\x1b[K" + all // ECMA-48, EL
	}
	s.flush(rest)
	s.shown = line
}

// Close writes the line that was held back, and ends it. On a terminal it stays as it is.
func (s *Stream) Close() error {
	if s.live {
		s.show("", s.w.String())
		return s.err
	}
	if rest := s.w.String(); rest != "" {
		s.flush(rest + "\n")
	}
	return s.err
}

// Take is the line that is held back, without an end, for who writes it in another way, as the
// prompt of a question; what is written from then on begins a line.
func (s *Stream) Take() string {
	rest := s.w.String()
	s.w = NewStream(nil).w
	return rest
}

func (s *Stream) flush(text string) {
	if text == "" || s.err != nil {
		return
	}
	_, s.err = io.WriteString(s.out, text)
}
