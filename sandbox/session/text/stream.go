package text

import "io"

// Stream renders output to a writer while it comes: each line when it is done. A line that is not done – a progress
// bar, a question – is held back, because the next byte may still change it. Programs that move the cursor up to redraw
// lines get what they printed first; Writer, which can wait, does better.
type Stream struct {
	w   *Writer
	out io.Writer
	err error // of out; what comes after it is dropped
}

// NewStream returns a Stream to out, which Close does not close.
func NewStream(out io.Writer) *Stream {
	w := NewWriter(-1)
	w.window = 1
	return &Stream{w: w, out: out}
}

// Write takes output in pieces of any size. Its error is that of the writer below.
func (s *Stream) Write(p []byte) (int, error) {
	_, _ = s.w.Write(p)
	s.flush(string(s.w.kept.head))
	*s.w.kept = *newKeeper(-1)
	return len(p), s.err
}

// Close writes the line that was held back, and ends it.
func (s *Stream) Close() error {
	if rest := s.w.String(); rest != "" {
		s.flush(rest + "\n")
	}
	return s.err
}

// Take is the line that is held back, without an end, for who writes it in another way, as the prompt of a question; what is written
// from then on begins a line.
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
