package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errNoRecord is why a session without a record is not recorded.
var errNoRecord = errors.New("its record could not be made")

// reasonOf is why something could not be recorded, for those who have no business with the daemon's files.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, record.ErrStopped):
		return record.WhyQuota
	case errors.Is(err, errNoRecord):
		return errNoRecord.Error()
	}
	return record.WhyFull
}

// strict ends a session whose output could not be recorded, where records are strict, and reports whether it did. The
// output is shown to nobody.
func (l *Live) strict(err error) bool {
	if !l.box.hub.options.RecordStrict || errors.Is(err, record.ErrPrivate) {
		return false
	}
	why := "not recorded: " + reasonOf(err)
	l.mu.Lock()
	l.unkept = why
	l.mu.Unlock()
	l.end(wire.State{Phase: wire.PhaseDead, Reason: why, SinceUnix: time.Now().UnixMilli(), Offset: l.Len(), Basis: []wire.Basis{}})
	l.box.hub.log.Warn("a session is ended: it cannot be recorded, and records are strict", "sandbox", l.box.id, "session", l.name, "err", err)
	return true
}

// closeUnkept ends the session in the guest, too, after strict.
func (l *Live) closeUnkept(ctx context.Context, c *connect.Control) {
	if l.notKept() == "" {
		return
	}
	if _, err := ask(ctx, c, wire.Request{Verb: wire.VerbClose, Session: l.name}); err != nil {
		l.box.hub.log.Warn("a session that cannot be recorded was not ended", "sandbox", l.box.id, "session", l.name, "err", err)
	}
}

// notKept says why the session was ended by strict, or is empty.
func (l *Live) notKept() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unkept
}

// lostUnkept is what a request gets in the place of its answer, which may tell of output that nobody may see; nil while the
// session is recorded.
func (l *Live) lostUnkept() *wire.Error {
	why := l.notKept()
	if why == "" {
		return nil
	}
	return wire.LostError(wire.LostRecord, fmt.Sprintf("session %s was ended: %s", l.name, why))
}

// farewell ends a stream of a session that was ended because it cannot be recorded. What the guest says of output that
// nobody may see is not passed on: requests are answered by an error.
func (st *stream) farewell(why string) error {
	state := st.live.State()
	event := wire.Event{Kind: wire.EventEnded, Offset: st.sent, TimeUnix: time.Now().UnixMilli(), State: &state, Text: why}
	if err := st.client.WriteJSON(wire.FrameEvent, 0, event); err != nil {
		return err
	}
	refused, err := json.Marshal(wire.Reply{Error: st.live.lostUnkept()})
	if err != nil {
		return err
	}
	patience := time.NewTimer(lastFrames)
	defer patience.Stop()
	for {
		st.mu.Lock()
		more, over, held := st.more, st.over, st.held
		st.held = nil
		if len(held) > 0 {
			st.changedLocked()
		}
		st.mu.Unlock()
		for _, h := range held {
			if h.frame.Type != wire.FrameReply {
				continue
			}
			if err := st.client.Write(wire.Frame{Type: wire.FrameReply, ID: h.frame.ID, Data: refused}); err != nil {
				return err
			}
		}
		if over {
			return errEnded
		}
		select {
		case <-more:
		case <-patience.C:
			return errEnded
		}
	}
}
