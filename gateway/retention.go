package gateway

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
)

const (
	pruneEvery   = time.Minute
	defaultTotal = 2 << 30
)

// prune removes records of sessions that have ended, the oldest first: those that are older than
// they are kept, and those of sandboxes whose records take too much room.
func (h *Hub) prune() {
	entries, err := os.ReadDir(h.options.Records)
	if err != nil {
		h.log.Warn("records cannot be listed", "err", err)
		return
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		h.mu.Lock()
		b := h.boxes[e.Name()]
		h.mu.Unlock()
		o := record.PruneOptions{Total: cmp.Or(h.options.RecordTotal, defaultTotal), Keep: h.options.RecordKeep, Now: time.Now()}
		if b != nil {
			o.Live = func(session string) bool { return b.sessions.Get(session) != nil }
		}
		removed, err := record.Prune(filepath.Join(h.options.Records, e.Name()), o)
		for _, name := range removed {
			h.log.Info("record removed", "sandbox", e.Name(), "record", name)
		}
		if err != nil {
			h.log.Warn("records cannot be removed", "sandbox", e.Name(), "err", err)
		}
	}
}
