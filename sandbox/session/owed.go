package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	answerTime = 200 * time.Millisecond // how long an answer waits for the right to write
	// owedTime is how long a program may take from its query until it takes keys as they come:
	// bash's read -d asks first.
	owedTime = 500 * time.Millisecond
	maxOwed  = 16 // batches of answers that may wait; a flood of queries is no conversation
)

// owed is an answer to queries, until there is somebody who can be waiting for it. The bytes of a
// query may as well come from a file that a program shows: an answer that nobody reads is typed to
// the shell, and stands in the output as the terminal's echo.
type owed struct {
	c     *console
	text  []byte
	end   uint64 // the queries are in the log before here
	group int    // which had the terminal when they were found; 0 when that is not known
	until time.Time
}

// answers are what the terminal owes to queries. Its fields are guarded by session.mu.
type answers struct {
	s    *session
	owed []owed // in their order
}

// askedUpTo returns how many of the n bytes of the log from the offset at on are of one asker.
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

// askerGoneLocked reports whether what asked in the log up to end was a command that is over, or a
// line editor that has read its line since: busybox asks at every prompt, and the answer would be
// what the command reads. A shell that is told to read a command by a key may still be asking when
// it gets the key, and wait for its answer.
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

// owe answers queries in the log up to end, once somebody reads. Answers keep their order.
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

// pay types what is owed, until nothing is.
func (w *answers) pay() {
	s := w.s
	for {
		s.mu.Lock()
		a := w.owed[0]
		// Another group that asks has the terminal: who asked before has lost it.
		late := time.Now().After(a.until) || s.ctx.Err() != nil || len(w.owed) > 1 && w.owed[1].group != a.group
		s.mu.Unlock()
		fate := w.fateOf(a, late)
		if fate == typeNow {
			fate = w.answer(a, late)
		}
		if fate == askLater && !late {
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

// fate is what becomes of an answer.
type fate int

const (
	drop     fate = iota // who asked is gone, or nobody did
	askLater             // who asked may be about to read
	typeNow
)

// fateOf says what becomes of a. late is the last time that it is asked: a program that reads later
// than that can still be waiting.
func (w *answers) fateOf(a owed, late bool) fate {
	s := w.s
	if f := w.keysFor(a, late); f != typeNow || a.c.local == nil {
		return f
	}
	c := a.c
	s.mu.Lock()
	// At the prompt of a shell that asks nothing, it is a job in the background that asks, or what
	// a key of the line editor started.
	idle := c.marked && !c.marks.Asks && c.track.Marked() == wire.PhasePrompt && c.typist == nil && len(c.ahead.text) == 0
	s.mu.Unlock()
	facts, err := s.probe(s.ctx, c)
	switch reads := facts.Blocked || facts.Listens || facts.Opaque; {
	case idle && (err != nil || reads && facts.Pid == c.local.TTY().SessionPID):
		return drop
	case err == nil && !reads && !late:
		return w.unlessGone(a, askLater)
	}
	return w.unlessGone(a, typeNow)
}

// keysFor is fateOf as far as the terminal tells. One that gathers lines gives nobody an answer,
// which ends no line: it would echo it, and keep it for who reads next. One that gives keys as they
// come may do so for the shell's line editor: then the mark of the prompt was printed before, and
// may be part of what is unread. Time makes no difference to that. A program that has the terminal
// has not ended, and may print all the time.
func (w *answers) keysFor(a owed, late bool) fate {
	f := typeNow
	if c := a.c; c.local != nil {
		tty := c.local.TTY()
		lines := canonical(tty.Master) // before the group: a shell takes the terminal, then sets it up
		group, err := c.local.Front()
		switch {
		case lines,
			err == nil && a.group != 0 && group != a.group,
			(!late || c.marked && group == tty.SessionPID) && c.unread():
			f = askLater
		}
	}
	return w.unlessGone(a, f)
}

// unlessGone is f, or drop when who asked for a is gone.
func (w *answers) unlessGone(a owed, f fate) fate {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.c != s.console || !s.aliveLocked() || w.askerGoneLocked(a.c, a.end) {
		return drop
	}
	return f
}

// answer types a, unless somebody else's input is stuck: then the program is not reading, and no
// answer would reach it.
func (w *answers) answer(a owed, late bool) fate {
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
