package gateway

import (
	"context"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Terminal is the record of one relayed terminal. One goroutine at a time uses it. Its methods do not fail: the terminal
// goes on when the record cannot.
type Terminal struct {
	rec *record.Writer // nil when it could not be made
	hub *Hub
	off uint64
	bad bool // a failure was logged
}

// Terminal records a relayed terminal – pty-req and exec – that is no session. The caller writes what it relays to the
// client before the client sees it, and closes it with the exit status.
func (h *Hub) Terminal(ctx context.Context, p Principal, name, command string, cols, rows int) (*Terminal, error) {
	b, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	t := &Terminal{hub: h}
	dir := record.Dir(h.records(b.id), "exec-"+partyID(), 0)
	t.rec, err = record.Create(dir, record.Options{Title: oneLine(command, 200), Cols: cols, Rows: rows, Quota: h.options.RecordQuota})
	if err != nil {
		t.trouble(err)
		return t, nil
	}
	e := wire.Event{Kind: wire.EventCommand, By: p.party(p.Kind, "").String(), Text: command}
	if err := t.rec.Event(e); err != nil {
		t.trouble(err)
	}
	h.journal.add(b.id, "terminal", map[string]any{"by": e.By, "command": oneLine(command, maxCommand), "record": filepath.Base(dir)})
	return t, nil
}

func (t *Terminal) trouble(err error) {
	if !t.bad {
		t.bad = true
		t.hub.log.Warn("recording of a terminal is held up; it goes on", "err", err)
	}
}

// Write records output.
func (t *Terminal) Write(p []byte) (int, error) {
	if t.rec != nil {
		if err := t.rec.Append(t.off, p); err != nil {
			t.trouble(err)
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
	if err := t.rec.Event(wire.Event{Kind: wire.EventResize, Cols: cols, Rows: rows}); err != nil {
		t.trouble(err)
	}
}

// Close finishes the record; exit is -1 when the connection ended first.
func (t *Terminal) Close(exit int) {
	if t.rec == nil {
		return
	}
	state := wire.State{Phase: wire.PhaseDead, Offset: t.off, SinceUnix: time.Now().UnixMilli(), Basis: []wire.Basis{wire.BasisExit}}
	if exit >= 0 {
		state.ExitCode = &exit
	} else {
		state.Reason = "the connection ended"
	}
	if err := t.rec.Finish(state); err != nil {
		t.trouble(err)
	}
}
