package live

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxLastLine = 200      // characters
	glanceAt    = 16 << 10 // bytes at the end of a log that draw its last line
)

// observeLocked follows what the session needs, whenever its state or keyboard may have changed,
// and tells the board.
func (s *Session) observeLocked() {
	e := attention.Evidence{Session: s.name, Argv: s.argv, Begun: s.begun, State: s.state,
		Keyboard: s.keyboard, Blocked: s.denials.shown != "",
		Watched: slices.ContainsFunc(s.members,
			func(m Member) bool { return m.Party().Kind == wire.Person })}
	if s.need.Observe(e, time.Now()) {
		s.set.options.Board.Change()
	}
	if due := s.need.Due(); due.IsZero() {
		s.again.Stop()
	} else {
		s.again.Reset(time.Until(due))
	}
}

// Brief is what the session needs, as far as a change of it is reported.
func (s *Session) Brief() attention.Brief {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.need.Brief
}

// Need is what the session needs, without its sandbox. For its last line that may draw the end of
// the log.
func (s *Session) Need() attention.Need {
	s.mu.Lock()
	st := s.state
	n := attention.Need{Session: s.name, Needs: s.need.Needs, Want: s.need.Want,
		Since:    s.need.Since,
		Keyboard: plainLine(s.keyboard, 80), Watched: s.need.Watched, Phase: s.need.Phase}
	private := s.private != ""
	denied := s.denials.shown
	s.mu.Unlock()
	if n.Phase == wire.PhaseDead {
		n.ExitCode, n.Signal = st.ExitCode, plainLine(st.Signal, 20)
	}
	if private {
		return n
	}
	if n.Needs == attention.Allow {
		n.LastLine = plainLine(denied, maxLastLine)
	}
	if n.Want != wire.WantPager && n.Want != wire.WantFullscreen && n.Needs == attention.Answer {
		n.LastLine = plainLine(st.Prompt, maxLastLine)
	}
	if n.LastLine == "" {
		n.LastLine = s.LastLine()
	}
	return n
}

// glance is the last line of a session's screen, as it was at an offset of the log.
type glance struct {
	at   uint64
	line string
}

// LastLine is the last line of text on the session's screen, as far as the end of the log has drawn
// it.
func (s *Session) LastLine() string {
	s.mu.Lock()
	end := s.replica.end
	if s.glance.at == end {
		defer s.mu.Unlock()
		return s.glance.line
	}
	cols, rows := s.cols, s.rows
	s.mu.Unlock()
	from, p := tail(s, end)
	if from > 0 { // it may begin in the middle of a sequence
		if i := strings.IndexAny(string(p), "\n\r\x1b"); i >= 0 {
			p = p[i:]
		}
	}
	sc := screen.New(screen.Options{Cols: cols, Rows: rows})
	_, _ = sc.Write(p) // in memory: it takes everything
	var line string
	for y := rows - 1; y >= 0 && line == ""; y-- {
		line = plainLine(sc.LineText(y), maxLastLine)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.glance = glance{end, line}
	return line
}

// tail reads the end of the log of s, up to end; what memory lacks, as after a restart of the
// daemon, comes from the record. from is where it begins, behind the last gap.
func tail(s *Session, end uint64) (from uint64, p []byte) {
	from = end - min(end, glanceAt)
	p = make([]byte, 0, end-from)
	for at := from; at < end; {
		n, _, err := s.ReadNow(at, p[len(p):end-from])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			at = lagged.To
			from, p = at, p[:0]
		case err != nil || n == 0:
			return at, nil
		default:
			at += uint64(n)
			p = p[:len(p)+n]
		}
	}
	return from, p
}

// plainLine is text.End of what may be very long.
func plainLine(s string, n int) string { return text.End(s[max(0, len(s)-16*n):], n) }

// Situation is how a session stands at one moment, for a person who looks at it. Parties are named
// as by Party.String.
type Situation struct {
	Keyboard string // the holder, or empty
	Asking   string // who asks for the keyboard, or empty
	Private  string // who is in private mode, or empty
	Typed    string // who typed last, or empty
	State    wire.State
	Denied   string // the newest blocked connection of what runs, or empty
	Denials  uint64 // how many there have been

	// The sandbox stops so long after everybody has left, for nothing runs in it; 0 when it does
	// not.
	Idle   time.Duration
	Others int // attached parties beside one and the holder of the keyboard
}

// Situation is how the session stands for self, one of its parties. Idle is left to the caller.
func (s *Session) Situation(self wire.Party) Situation {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := Situation{Keyboard: s.keyboard, Asking: s.asking, Private: s.private, Typed: s.typed,
		State:  s.state,
		Denied: s.denials.shown, Denials: s.denials.told}
	for _, m := range s.members {
		if p := m.Party(); p.ID != self.ID && p.String() != s.keyboard && !rests(m, s.keyboard) {
			now.Others++
		}
	}
	return now
}
