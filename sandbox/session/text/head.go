package text

import "strings"

// Head is a writer that keeps the first Limit bytes and discards the rest. Its writes never fail.
// It is not safe for concurrent use.
type Head struct {
	Limit int
	Cut   bool // bytes were discarded

	kept []byte
}

func (h *Head) Write(p []byte) (int, error) {
	n := min(len(p), max(0, h.Limit-len(h.kept)))
	h.kept = append(h.kept, p[:n]...)
	h.Cut = h.Cut || n < len(p)
	return len(p), nil
}

// Bytes returns the kept bytes. They are valid until the next Write.
func (h *Head) Bytes() []byte { return h.kept }

// String returns the kept bytes as text, with U+FFFD in place of invalid UTF-8.
func (h *Head) String() string { return strings.ToValidUTF8(string(h.kept), "\uFFFD") }
