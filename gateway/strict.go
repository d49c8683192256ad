package gateway

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// lostUnrecorded answers a request in place of the guest, whose answer may tell of output that nobody may see; nil while
// the session is recorded.
func lostUnrecorded(l *live.Session) *wire.Error {
	why := l.Unrecorded()
	if why == "" {
		return nil
	}
	return wire.LostError(wire.LostRecord, fmt.Sprintf("session %s was ended: %s", l.Name(), why))
}

// farewell ends a stream of a session that was ended because it cannot be recorded. What the guest says of output that
// nobody may see is not passed on: requests are answered by an error.
func (st *stream) farewell(why string) error {
	state := st.live.State()
	event := wire.Event{Kind: wire.EventEnded, Offset: st.sent, TimeUnix: time.Now().UnixMilli(), State: &state, Text: why}
	if err := st.client.WriteJSON(wire.FrameEvent, 0, event); err != nil {
		return err
	}
	refused, err := json.Marshal(wire.Reply{Error: lostUnrecorded(st.live)})
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
