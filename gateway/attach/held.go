package attach

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Frames from the guest wait here until the stream's client has the output before them.

// asked is a request without an answer to the client.
type asked struct {
	call *call
	held bool // the guest's answer waits for its turn
	lost bool // it was answered as lost: the guest's answer is dropped
}

// heldFrame is a frame of the guest that is due once the client has output up to an offset.
type heldFrame struct {
	frame wire.Frame
	after uint64
	seq   uint64 // of an event
	// It is the daemon's own answer to a lost call, and need not wait for the guest's output.
	lost bool
}

// maxHeld and maxHeldBytes limit the frames that wait for a client that does not read. Then the
// guest waits, for this stream only. One frame may exceed the limit.
const (
	maxHeld      = 256
	maxHeldBytes = 1 << 20
)

// maxAsked limits the requests of a stream that the guest has not answered. It is far more than the
// guest accepts.
const maxAsked = 4096

// ask records request id, which waits for its answer. An error ends the stream.
func (st *stream) ask(id uint32, a asked) error {
	st.mu.Lock()
	_, twice := st.asked[id]
	full := len(st.asked) >= maxAsked
	if !twice && !full {
		st.asked[id] = a
	}
	st.mu.Unlock()
	switch {
	case twice:
		a.call.End()
		return fmt.Errorf("request %d is under way already", id)
	case full:
		a.call.End()
		return fmt.Errorf("more than %d requests at once", maxAsked)
	}
	return nil
}

// forget returns the requests that the guest has not answered. Its later answers to them are
// dropped.
func (st *stream) forget() map[uint32]asked {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := make(map[uint32]asked)
	for id, a := range st.asked {
		if a.lost || a.held {
			continue
		}
		all[id] = a
		a.lost = true
		st.asked[id] = a
	}
	return all
}

// dropStuck returns and drops the answers that wait for output which the copy does not have. A
// paused sandbox sends no more output.
func (st *stream) dropStuck() map[uint32]asked {
	length := st.live.Len()
	st.mu.Lock()
	defer st.mu.Unlock()
	all := make(map[uint32]asked)
	st.held = slices.DeleteFunc(st.held, func(h heldFrame) bool {
		a, ok := st.asked[h.frame.ID]
		if !ok || !a.held || h.frame.Type != wire.FrameReply || h.after <= length {
			return false
		}
		all[h.frame.ID] = a
		delete(st.asked, h.frame.ID)
		st.weight -= len(h.frame.Data)
		return true
	})
	st.changedLocked()
	return all
}

// hold adds a frame of the guest to the queue. It waits until there is room.
func (st *stream) hold(h heldFrame) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for (len(st.held) >= maxHeld || st.weight >= maxHeldBytes) && !st.over {
		more := st.more
		st.mu.Unlock()
		<-more
		st.mu.Lock()
	}
	if a, asked := st.asked[h.frame.ID]; asked && h.frame.Type == wire.FrameReply {
		if a.lost { // meanwhile
			delete(st.asked, h.frame.ID)
			return
		}
		a.held = true
		a.call.End()
		st.asked[h.frame.ID] = a
	}
	st.held = append(st.held, h)
	st.weight += len(h.frame.Data)
	st.changedLocked()
}

// holdLost adds the answer to a lost call to the queue, before frames that wait for later output:
// there may be none. It waits for room among the answers to lost calls.
func (st *stream) holdLost(h heldFrame) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for n, weight := st.lostLocked(); (n >= maxHeld || weight >= maxHeldBytes) && !st.over; n,
		weight = st.lostLocked() {
		more := st.more
		st.mu.Unlock()
		<-more
		st.mu.Lock()
	}
	at := slices.IndexFunc(st.held, func(other heldFrame) bool { return other.after > h.after })
	if at < 0 {
		at = len(st.held)
	}
	st.held = slices.Insert(st.held, at, h)
	st.weight += len(h.frame.Data)
	st.changedLocked()
}

// lostLocked returns how many answers to lost calls wait, and their size in bytes.
func (st *stream) lostLocked() (n, weight int) {
	for _, h := range st.held {
		if h.lost {
			n++
			weight += len(h.frame.Data)
		}
	}
	return n, weight
}

// owedLocked reports whether the client waits for an answer of the guest.
func (st *stream) owedLocked() bool {
	for _, a := range st.asked {
		if !a.lost && !a.held {
			return true
		}
	}
	return false
}

// nextLocked returns the first held frame. It also removes the frame if it is due: the client has
// output up to seen, or gets no more because the output has ended. Without a frame, it returns the
// zero value.
func (st *stream) nextLocked(seen uint64, ended bool) (h heldFrame, due bool) {
	if len(st.held) == 0 {
		return h, false
	}
	h = st.held[0]
	if h.after > seen && !ended {
		return h, false
	}
	if h.frame.Type == wire.FrameReply && !h.lost {
		delete(st.asked, h.frame.ID)
	}
	st.weight -= len(h.frame.Data)
	st.held = slices.Delete(st.held, 0, 1)
	st.changedLocked()
	return h, true
}

// farewell ends a stream whose session was ended because it cannot be recorded. It answers requests
// with an error, because the guest's answers may describe output that nobody may see.
func (st *stream) farewell(why string) error {
	state := st.live.State()
	event := wire.Event{Kind: wire.EventEnded, Offset: st.sent, TimeUnix: time.Now().UnixMilli(),
		State: &state, Text: why}
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
			if err := st.client.Write(wire.Frame{Type: wire.FrameReply, ID: h.frame.ID,
				Data: refused}); err != nil {
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
