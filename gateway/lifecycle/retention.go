package lifecycle

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

// prune removes records of ended sessions, oldest first: those older than RecordKeep, and those of
// sandboxes whose records exceed RecordTotal.
func (reg *Registry) prune() {
	entries, err := os.ReadDir(reg.options.Records)
	if err != nil {
		reg.log.Warn("records cannot be listed", "err", err)
		return
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		sb := reg.roster.byID(e.Name())
		o := record.PruneOptions{Total: cmp.Or(reg.options.RecordTotal, defaultTotal),
			Keep: reg.options.RecordKeep, Now: time.Now()}
		if sb != nil {
			o.Live = func(session string) bool { return sb.sessions.Get(session) != nil }
		}
		removed, err := record.Prune(filepath.Join(reg.options.Records, e.Name()), o)
		for _, name := range removed {
			reg.log.Info("record removed", "sandbox", e.Name(), "record", name)
		}
		if err != nil {
			reg.log.Warn("records cannot be pruned", "sandbox", e.Name(), "err", err)
		}
	}
}
