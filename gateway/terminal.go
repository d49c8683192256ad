package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Terminal records one relayed terminal. Its methods are safe for concurrent use, because output
// and sizes come from different goroutines. A failed record does not stop the terminal unless
// records are strict: then Write fails, and its output must not be shown.
type Terminal struct {
	rec *record.Writer // nil when it could not be created
	log *slog.Logger

	strict bool // the terminal ends when it cannot be recorded

	mu  sync.Mutex
	off uint64 // guarded by mu
	bad bool   // guarded by mu; a failure was logged
}

// Terminal records a relayed terminal (pty-req and exec) that is not a session. The caller writes
// output here before the client sees it, and calls Close with the exit status.
func (r *Relay) Terminal(ctx context.Context, p Principal, name, command string,
	cols, rows int) (*Terminal, error) {
	sb, p, err := r.hub.reachable(p, name, wire.RightDrive, "commands")
	if err != nil {
		return nil, err
	}
	o := r.hub.options
	t := &Terminal{log: r.hub.registry.Log(), strict: o.RecordStrict}
	dir := record.Dir(sb.Records(), "exec-"+partyID(), 0)
	t.rec, err = record.Create(dir, record.Options{Title: oneLine(command, 200), Cols: cols,
		Rows: rows, Quota: o.RecordQuota, Whole: o.RecordStrict})
	if err != nil {
		t.trouble(err)
		if o.RecordStrict {
			return nil, wire.Errorf(wire.CodeUnavailable, "the terminal cannot be recorded: %s",
				live.Unrecordable(err))
		}
		return t, nil
	}
	e := wire.Event{Kind: wire.EventCommand, By: p.party(p.Kind, "").String(), Text: command}
	if err := t.rec.Event(e); err != nil {
		t.trouble(err)
	}
	sb.Log("terminal", map[string]any{"by": e.By, "command": oneLine(command, maxCommand),
		"record": filepath.Base(dir)})
	return t, nil
}

// trouble logs the first failure.
func (t *Terminal) trouble(err error) {
	if !t.bad {
		t.bad = true
		t.log.Warn("terminal record failed", "err", err)
	}
}

// Write records output.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rec != nil {
		if err := t.rec.Append(t.off, p); err != nil {
			t.trouble(err)
			if t.strict {
				t.log.Warn("terminal ended: it cannot be recorded, and records are strict",
					"err", err)
				return 0, fmt.Errorf("the terminal cannot be recorded: %w", err)
			}
		}
	}
	t.off += uint64(len(p))
	return len(p), nil
}

// Resize records a window-change.
func (t *Terminal) Resize(cols, rows int) {
	if t.rec == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.rec.Event(wire.Event{Kind: wire.EventResize, Cols: cols, Rows: rows}); err != nil {
		t.trouble(err)
	}
}

// Close finishes the record, after all other calls have returned. exit is -1 when the connection
// ended first.
func (t *Terminal) Close(exit int) {
	if t.rec == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state := wire.State{Phase: wire.PhaseDead, Offset: t.off, SinceUnix: time.Now().UnixMilli(),
		Basis: []wire.Basis{wire.BasisExit}}
	if exit >= 0 {
		state.ExitCode = &exit
	} else {
		state.Reason = "the connection ended"
	}
	if err := t.rec.Finish(state); err != nil {
		t.trouble(err)
	}
}
