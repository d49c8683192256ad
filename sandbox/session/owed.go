package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	answerTime = 200 * time.Millisecond // how long an answer waits to write
	// owedTime is how long a program may take from its query until it leaves canonical mode: bash's
	// read -d sends the query first.
	owedTime = 500 * time.Millisecond
	maxOwed  = 16 // limit of waiting batches of answers, against floods of queries
)

// owed is an answer to queries that waits for a reader. A query may also be part of a printed file:
// an answer without a reader would be typed to the shell and be echoed in the output.
type owed struct {
	c     *console
	text  []byte
	end   uint64 // log offset after the queries
	group int    // foreground group at the time of the queries; 0 if unknown
	until time.Time
}

// answers are pending answers to terminal queries. Its fields are guarded by session.mu.
type answers struct {
	s    *session
	owed []owed // in order
}

// askedUpTo returns how many of the n bytes of the log from offset at come from one asker.
func (w *answers) askedUpTo(at uint64, n int) int {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.console
	if c == nil {
		return n
	}
	ranTo, since := c.track.Bounds()
	for _, other := range []uint64{ranTo, since} {
		if at < other && other < at+uint64(n) {
			n = int(other - at)
		}
	}
	return n
}

// askerGoneLocked reports whether the asker of queries before end is gone: a command that has
// ended, or a line editor that has read its line. busybox asks at every prompt, and the command
// would read the answer. A shell that receives the key for a command may still wait for its answer.
func (w *answers) askerGoneLocked(c *console, end uint64) bool {
	ranTo, since := c.track.Bounds()
	switch {
	case !c.marked:
		return false
	case end <= ranTo:
		return true
	case c.marks.Key:
		return false
	}
	cmd := c.track.Command()
	return end <= since || cmd != nil && !cmd.Started && c.track.Marked() == wire.PhasePrompt
}

// owe queues an answer to queries in the log up to end. Answers are written in order.
func (w *answers) owe(text []byte, end uint64) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.console
	if c == nil || s.closed || len(w.owed) >= maxOwed {
		return
	}
	a := owed{c: c, text: text, end: end, until: time.Now().Add(owedTime)}
	if c.local != nil {
		a.group, _ = c.local.Front()
	}
	w.owed = append(w.owed, a)
	if len(w.owed) == 1 {
		s.spawn(w.pay)
	}
}

// pay writes the pending answers.
func (w *answers) pay() {
	s := w.s
	for {
		s.mu.Lock()
		a := w.owed[0]
		// Another group that asks is in the foreground: the earlier asker is not.
		late := time.Now().After(a.until) || s.ctx.Err() != nil ||
			len(w.owed) > 1 && w.owed[1].group != a.group
		s.mu.Unlock()
		verdict := w.verdictOn(a, late)
		if verdict == typeNow {
			verdict = w.answer(a, late)
		}
		if verdict == askLater && !late {
			select {
			case <-time.After(lookAgain):
			case <-s.ctx.Done():
			}
			continue
		}
		s.mu.Lock()
		w.owed = w.owed[1:]
		over := len(w.owed) == 0
		if over {
			w.owed = nil
			s.fireLocked()
		}
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// verdict is what to do with an answer.
type verdict int

const (
	drop     verdict = iota // the asker has ended, or there was none
	askLater                // the asker may be about to read
	typeNow
)

// verdictOn returns the verdict on a. late marks the last check: a program that does not read yet
// may still wait for the answer.
func (w *answers) verdictOn(a owed, late bool) verdict {
	s := w.s
	if f := w.keysFor(a, late); f != typeNow || a.c.local == nil {
		return f
	}
	c := a.c
	s.mu.Lock()
	// At the prompt of a shell that sends no queries, the asker is a background job, or a program
	// that a key of the line editor started.
	idle := c.marked && !c.marks.Asks && c.track.Marked() == wire.PhasePrompt && c.typist == nil &&
		len(c.ahead.text) == 0
	s.mu.Unlock()
	facts, err := s.probe(s.ctx, c)
	switch reads := facts.Blocked || facts.Listens || facts.Opaque; {
	case idle && (err != nil || reads && facts.Pid == c.stack.pid()):
		return drop
	case err == nil && !reads && !late:
		return w.unlessGone(a, askLater)
	}
	return w.unlessGone(a, typeNow)
}

// keysFor is verdictOn by the modes of the terminal. In canonical mode, no program can read an
// answer, because it ends no line. It would be echoed and kept for the next reader. Otherwise the
// shell's line editor may be reading. Then the shell has printed the mark of its prompt, which may
// still be unread. A foreground program is no such case: it has not ended, and may print at any
// time.
func (w *answers) keysFor(a owed, late bool) verdict {
	f := typeNow
	if c := a.c; c.local != nil {
		tty := c.local.TTY()
		lines := canonical(
			tty.Master,
		) // before the group, because a shell takes the terminal before it sets its modes
		group, err := c.local.Front()
		switch {
		case lines,
			err == nil && a.group != 0 && group != a.group,
			(!late || c.stack.withMarks() && group == c.stack.leader()) && c.unread():
			f = askLater
		}
	}
	return w.unlessGone(a, f)
}

// unlessGone returns f, or drop if the asker of a has ended.
func (w *answers) unlessGone(a owed, f verdict) verdict {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.c != s.console || !s.aliveLocked() || w.askerGoneLocked(a.c, a.end) {
		return drop
	}
	return f
}

// answer writes a, unless other input is blocked: then the program does not read.
func (w *answers) answer(a owed, late bool) verdict {
	s := w.s
	ctx, cancel := context.WithTimeout(s.ctx, answerTime)
	defer cancel()
	select {
	case s.writer.sem <- struct{}{}:
		defer func() { <-s.writer.sem }()
	case <-ctx.Done():
		return drop
	}
	if f := w.keysFor(a, late); f != typeNow {
		return f
	}
	c := a.c
	s.mu.Lock()
	s.track.Writes()
	_ = c.term.SetWriteDeadline(time.Now().Add(answerTime))
	s.mu.Unlock()
	_, err := c.term.Write(a.text)
	s.mu.Lock()
	s.track.Wrote(time.Now())
	s.mu.Unlock()
	if err != nil {
		s.set.log.Debug("answer to a terminal query", "session", s.name, "error", err)
	}
	return typeNow
}
