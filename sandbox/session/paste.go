package session

import (
	"bytes"
	"context"
)

// The brackets around a paste in bracketed paste mode.
const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// paste is the state of bracketed pastes in a session's input.
type paste struct {
	key     string // key of the party with an open paste; empty if there is none
	console *console

	typist string // key of the party that typed last
	tail   []byte // end of its input, which may have the start of a bracket
}

// pastedLocked records whether input of p left a paste open. A bracket may be split over writes.
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

// awaitBrackets waits if another party than p has left a paste open. It returns when the screen is
// up to date and shows whether the program uses brackets. The caller holds the writer's semaphore.
// An answer of the display waits for that for at most [answerTime].
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

// pasteBrokenLocked reports whether another party than p has left a paste open, because it lost the
// keyboard. The program would treat input of p as pasted text.
func (w *writer) pasteBrokenLocked(p *party, c *console) bool {
	s := w.s
	open := w.paste.console == c && w.paste.key != "" && w.paste.key != p.Key
	if open {
		w.paste.key = ""
	}
	return open && s.display.modes().BracketedPaste
}
