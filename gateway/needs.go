package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Needs is what a session needs a person for. It goes by the session's state alone: who holds the keyboard, and may be about to
// answer, is said beside it.
type Needs string

const (
	NeedsNothing   Needs = ""          // it works, is at its prompt, or has ended in order
	NeedsAnswer    Needs = "asks"      // a program waits for input, or the shell for the rest of a command
	NeedsAllow     Needs = "denied"    // a connection of what runs was refused: by whoever may allow it
	NeedsAttention Needs = "attention" // a program that listens beside its work has come to rest
	NeedsShell     Needs = "dead"      // its shell ended, and not with 0
)

// Need is what a session needs, with what there is to say about it. Its texts are plain: no control characters, one line.
type Need struct {
	Sandbox  string     `json:"sandbox"`
	Session  string     `json:"session"`
	Needs    Needs      `json:"needs"`
	Want     wire.Want  `json:"want,omitempty"` // when it asks
	Since    time.Time  `json:"since"`          // when Needs became that
	LastLine string     `json:"last_line"`      // of the screen; of a question, its line up to the cursor; empty in a private stretch
	Keyboard string     `json:"keyboard"`       // the holder, or empty
	Phase    wire.Phase `json:"phase"`
	ExitCode *int       `json:"exit_code,omitempty"` // when it is dead
	Signal   string     `json:"signal,omitempty"`    // when it is dead
	Gone     bool       `json:"gone,omitempty"`      // the session is no more

	owner string
	box   string // the sandbox's ID: another one may have its name later
}

// Target is where the session is.
func (n Need) Target() wire.Target { return wire.Target{Sandbox: n.Sandbox, Session: n.Session} }

// Label is what the session needs in one word, with what kind of input, or how its shell ended; empty for nothing.
func (n Need) Label() string {
	switch {
	case n.Needs == NeedsAnswer && n.Want != "" && n.Want != wire.WantLine:
		return string(n.Needs) + ":" + string(n.Want)
	case n.Needs == NeedsShell && n.ExitCode != nil:
		return string(n.Needs) + ":" + strconv.Itoa(*n.ExitCode)
	case n.Needs == NeedsShell && n.Signal != "":
		return string(n.Needs) + ":" + n.Signal
	}
	return string(n.Needs)
}

// Ago is how long ago t was, short. Of a time that is not known it is empty.
func Ago(t time.Time) string {
	if t.IsZero() || t.UnixMilli() == 0 {
		return ""
	}
	return Span(time.Since(t))
}

// Span is a time in one unit, rounded down: 30s, 12m, 3h, 2d.
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// needsOf is what a session in that state needs. Programs of their own, such as an image's, may end as they like.
func needsOf(name string, argv []string, st wire.State) Needs {
	switch {
	case st.Phase == wire.PhaseWaiting, st.Phase == wire.PhaseContinuation:
		return NeedsAnswer
	case st.Phase == wire.PhaseDead:
		if name != "entrypoint" && argv == nil && (st.ExitCode == nil || *st.ExitCode != 0) {
			return NeedsShell
		}
	case st.Attention == "likely":
		return NeedsAttention
	}
	return NeedsNothing
}

// need is what is known of what a session needs, as far as a change of it is worth telling.
type need struct {
	needs    Needs
	want     wire.Want
	phase    wire.Phase
	keyboard string
}

// noteNeedLocked brings what is known of the session's need up to its state, and tells those who watch. It is called with mu
// held, whenever the state or the keyboard may have changed.
func (l *Live) noteNeedLocked() {
	now := need{needsOf(l.name, l.argv, l.state), "", l.state.Phase, l.keyboard}
	if l.denials.shown != "" && (now.needs == NeedsNothing || now.needs == NeedsAttention) {
		now.needs = NeedsAllow
	}
	if now.needs == NeedsAnswer {
		switch w := l.state.Want; w {
		case wire.WantLine, wire.WantPassword, wire.WantRaw, wire.WantPager, wire.WantFullscreen:
			now.want = w
		}
	}
	if now == l.need && !l.needSince.IsZero() {
		return
	}
	if now.needs != l.need.needs || l.needSince.IsZero() {
		// The guest's clock is not trusted: not before the session began, and not the future.
		l.needSince = time.UnixMilli(max(l.begun, min(l.state.SinceUnix, time.Now().UnixMilli())))
	}
	l.need = now
	l.box.hub.needs.change()
}

// needed returns what the session needs. With its last line that takes a look at its screen.
func (l *Live) needed() Need {
	l.mu.Lock()
	st := l.state
	n := Need{Session: l.name, Needs: l.need.needs, Want: l.need.want, Since: l.needSince, Keyboard: plainLine(l.keyboard, 80), Phase: l.need.phase}
	private := l.private != ""
	denied := l.denials.shown
	l.mu.Unlock()
	f := l.box.get()
	n.Sandbox, n.owner, n.box = f.name, f.owner, l.box.id
	if n.Phase == wire.PhaseDead {
		n.ExitCode, n.Signal = st.ExitCode, plainLine(st.Signal, 20)
	}
	if private {
		return n
	}
	if n.Needs == NeedsAllow {
		n.LastLine = plainLine(denied, maxLastLine)
	}
	if n.Want != wire.WantPager && n.Want != wire.WantFullscreen && n.Needs == NeedsAnswer {
		n.LastLine = plainLine(st.Prompt, maxLastLine)
	}
	if n.LastLine == "" {
		n.LastLine = l.lastLine()
	}
	return n
}

const (
	maxLastLine = 200      // characters
	glanceAt    = 16 << 10 // bytes at the end of a log that draw its last line
)

// glance is the last line of a session's screen, as it was at an offset of the log.
type glance struct {
	at   uint64
	line string
}

// lastLine is the last line of text on the session's screen, as far as the end of the log has drawn it.
func (l *Live) lastLine() string {
	l.mu.Lock()
	end := l.replica.end
	if l.glance.at == end {
		defer l.mu.Unlock()
		return l.glance.line
	}
	cols, rows := l.cols, l.rows
	l.mu.Unlock()
	from, tail := l.tail(end)
	if from > 0 { // it may begin in the middle of a sequence
		if i := strings.IndexAny(string(tail), "\n\r\x1b"); i >= 0 {
			tail = tail[i:]
		}
	}
	s := screen.New(screen.Options{Cols: cols, Rows: rows})
	_, _ = s.Write(tail) // in memory: it takes everything
	var line string
	for y := rows - 1; y >= 0 && line == ""; y-- {
		line = plainLine(s.LineText(y), maxLastLine)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.glance = glance{end, line}
	return line
}

// tail reads the end of the log, up to end: of what the memory lacks, as after a restart of the daemon, the record knows. from is where it
// begins, behind the last gap.
func (l *Live) tail(end uint64) (from uint64, tail []byte) {
	from = end - min(end, glanceAt)
	tail = make([]byte, 0, end-from)
	for at := from; at < end; {
		n, _, err := l.readNow(at, tail[len(tail):end-from])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			at = lagged.To
			from, tail = at, tail[:0]
		case err != nil || n == 0:
			return at, nil
		default:
			at += uint64(n)
			tail = tail[:len(tail)+n]
		}
	}
	return from, tail
}

// plainLine is text.End of what may be very long: of a question the end is left.
func plainLine(s string, n int) string { return text.End(s[max(0, len(s)-16*n):], n) }

// Needs returns what p's sessions need, and those of sandboxes that are shared with it, by sandbox and session, from what is
// known already. A session that nobody waits for or watches may have begun to ask without having been noticed. name is a
// sandbox, or empty for all.
func (h *Hub) Needs(_ context.Context, p Principal, name string) ([]Need, error) {
	if name != "" {
		if _, _, err := h.reachable(p, name, wire.RightWatch, ""); err != nil {
			return nil, err
		}
	}
	all := []Need{}
	for _, b := range h.all() {
		if rights, _ := b.rightsOf(p.Name); rights == "" || name != "" && b.title() != name {
			continue
		}
		for _, l := range b.allLives() {
			if !l.final() {
				all = append(all, l.needed())
			}
		}
	}
	sortNeeds(all)
	return all, nil
}

// sortNeeds sorts by names. What is gone comes before what has its name now.
func sortNeeds(all []Need) {
	slices.SortFunc(all, func(a, b Need) int {
		if byName := cmp.Or(strings.Compare(a.Sandbox, b.Sandbox), strings.Compare(a.Session, b.Session)); byName != 0 || a.Gone == b.Gone {
			return byName
		}
		if a.Gone {
			return -1
		}
		return 1
	})
}

// needs wakes those who watch what sessions need, and knows of whose sessions the guests have to tell. Its lock is taken last.
type needs struct {
	mu      sync.Mutex
	changes uint64         // guarded by mu
	wake    chan struct{}  // guarded by mu; closed at the next change; nil while nobody waits
	watches map[string]int // guarded by mu; how many there are, by principal; the empty one's are of everybody's sessions
	turned  chan struct{}  // guarded by mu; closed and replaced when watches change, or for whom sandboxes are
}

func (n *needs) init() { n.watches, n.turned = make(map[string]int), make(chan struct{}) }

// change says that sandboxes, sessions or what they need may have changed.
func (n *needs) change() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes++
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

// since returns the number of changes, and what is closed at the next one if there was none since then.
func (n *needs) since(then uint64) (now uint64, wait <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changes == then {
		if n.wake == nil {
			n.wake = make(chan struct{})
		}
		return then, n.wake
	}
	return n.changes, nil
}

// watch counts one who watches, by is 1, or no longer does, -1.
func (n *needs) watch(principal string, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watches[principal] += by; n.watches[principal] == 0 {
		delete(n.watches, principal)
	}
	n.turnLocked()
}

// turn says that other principals may see a sandbox now than before.
func (n *needs) turn() {
	n.change()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.turnLocked()
}

func (n *needs) turnLocked() {
	close(n.turned)
	n.turned = make(chan struct{})
}

// turning returns what is closed when another answer of watched may be right than one that is asked for now.
func (n *needs) turning() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.turned
}

// watched reports whether one of the principals watches, or somebody who watches everybody's.
func (n *needs) watched(principals []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	watches := func(principal string) bool { return n.watches[principal] > 0 }
	return watches("") || slices.ContainsFunc(principals, watches)
}

// heed has the guest tell the session's state, on the replica's stream, while somebody watches what it needs. It returns when
// the stream or ctx ends.
func (l *Live) heed(ctx context.Context, client *wire.Client) {
	for {
		wanted, turned := l.watched()
		if !wanted {
			select {
			case <-turned:
				continue
			case <-client.Done():
			case <-ctx.Done():
			}
			return
		}
		asked, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { // ends with asked, or the stream
			_, err := client.Request(asked, wire.Request{Verb: wire.VerbHeed})
			done <- err
		}()
		for wanted {
			select {
			case <-turned:
				wanted, turned = l.watched()
			case err := <-done:
				cancel()
				if ctx.Err() == nil && client.Err() == nil { // a guest of a version that does not know how
					l.box.hub.log.Debug("session is not heeded", "sandbox", l.box.id, "session", l.name, "err", err)
					select {
					case <-client.Done():
					case <-ctx.Done():
					}
				}
				return
			}
		}
		cancel()
		<-done //nolint:errcheck // the end that was just made
	}
}

// watched reports whether somebody watches what the session needs, and returns what is closed when that may have changed.
func (l *Live) watched() (bool, <-chan struct{}) {
	turned := l.box.hub.needs.turning() // before looking: it tells of what changes meanwhile
	return l.box.hub.needs.watched(l.box.principals()), turned
}

// heeding runs heed beside the reading of a stream, until the returned function ends both.
func (l *Live) heeding(ctx context.Context, client *wire.Client) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.heed(ctx, client) })
	return func() {
		cancel()
		client.Close() // the guest may no longer read
		wg.Wait()
	}
}
