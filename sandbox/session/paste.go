package session

import (
	"bytes"
	"context"
)

// The brackets around a paste, for a program that asked for them.
const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// paste is what is known of the bracketed pastes in a session's input.
type paste struct {
	key     string // of the party whose paste has not ended; empty when there is none
	console *console

	typist string // who typed last, by key
	tail   []byte // the end of that, in which a bracket may have begun
}

// pastedLocked notes whether input of p left a paste open. A bracket may come in several writes.
func (w *writer) pastedLocked(p *party, c *console, data []byte) {
	var all []byte
	if w.paste.typist == p.Key {
		all = w.paste.tail
	}
	all = append(all, data...)
	begin, end := bytes.LastIndex(all, []byte(pasteBegin)), bytes.LastIndex(all, []byte(pasteEnd))
	switch {
	case begin > end:
		w.paste.key, w.paste.console = p.Key, c
	case end >= 0:
		w.paste.key = ""
	}
	w.paste.typist, w.paste.tail = p.Key, bytes.Clone(all[max(0, len(all)+1-len(pasteEnd)):])
}

// awaitBrackets waits, where another party than p has left a paste open, until the screen shows
// whether the program wants brackets: it is drawn behind the log. The caller holds writing, for
// which an answer of the display waits [answerTime] at most.
func (w *writer) awaitBrackets(ctx context.Context, p *party) error {
	s := w.s
	s.mu.Lock()
	open := w.paste.key != "" && w.paste.key != p.Key
	s.mu.Unlock()
	if !open {
		return nil
	}
	_, end := s.log.bounds()
	return s.display.sync(ctx, end)
}

// pasteBrokenLocked reports whether another party than p, who types now, has left a paste open: the
// keyboard was taken in the middle of it, and its end never comes. A program that still waits for
// that would take what p types for pasted text.
func (w *writer) pasteBrokenLocked(p *party, c *console) bool {
	s := w.s
	open := w.paste.console == c && w.paste.key != "" && w.paste.key != p.Key
	if open {
		w.paste.key = ""
	}
	return open && s.display.modes().BracketedPaste
}
