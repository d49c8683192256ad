package gateway

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// replicaParty is the daemon itself on a session.
var replicaParty = wire.Party{Name: "daemon", Kind: wire.Agent, Rights: wire.RightWatch, ID: "replica"}

// maxLives is how many sessions of one sandbox are followed. Honest guests have fewer.
const maxLives = 256

// maxLog is beyond every honest log. Files have signed offsets.
const maxLog = 1 << 61

// adopt returns the replica of a session that the guest has, with its record: that which was begun before, if it is of
// the same run, else a new one.
func (b *box) adopt(info wire.SessionInfo) (*Live, error) {
	b.amu.Lock()
	defer b.amu.Unlock()
	old := b.live(info.Name)
	if old != nil {
		if old.begun == info.Created && !old.final() {
			old.mu.Lock()
			defer old.mu.Unlock()
			old.floor = max(old.floor, info.Offset)
			return old, nil
		}
		b.drop(old, "lost: another session has its name")
	}
	b.mu.Lock()
	full := len(b.lives) >= maxLives
	b.mu.Unlock()
	if full {
		return nil, wire.Errorf(wire.CodeLimitSessions, "sandbox %s says that it has more than %d sessions", b.title(), maxLives)
	}
	rec, again, err := b.recordOf(info)
	l := newLive(b, info, rec)
	l.again = again
	if err != nil {
		l.trouble(err)
	}
	l.floor = info.Offset
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lives[info.Name] = l
	b.hub.board.Change()
	return l, nil
}

// recordOf opens or makes a session's record. again says that there was a session of its name before.
func (b *box) recordOf(info wire.SessionInfo) (rec *record.Writer, again bool, err error) {
	h := b.hub
	dir := record.Dir(h.records(b.id), info.Name, 0)
	rec, err = record.Open(dir, record.Options{Quota: h.options.RecordQuota, Whole: h.options.RecordStrict})
	switch {
	case err == nil && rec.Begun().UnixMilli() == info.Created && !rec.Finished():
		return rec, false, nil
	case err == nil:
		again = true
		// The session that it is of ended while nobody looked.
		if err := rec.Finish(wire.State{Phase: wire.PhaseDead, Reason: "lost", Offset: rec.End(), Basis: []wire.Basis{}}); err != nil {
			h.log.Warn("record not finished", "sandbox", b.id, "session", info.Name, "err", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		h.log.Warn("record cannot be gone on with; it is set aside", "sandbox", b.id, "session", info.Name, "err", err)
	}
	rec, err = record.Create(dir, record.Options{Title: b.title() + "~" + info.Name, Begun: time.UnixMilli(info.Created),
		Cols: info.Cols, Rows: info.Rows, Quota: h.options.RecordQuota, Whole: h.options.RecordStrict})
	return rec, again, err
}

// noteAgain adds shell_restarted to the first Result of a session whose shell ended with its sandbox: the guest knows only of
// shells of its own.
func (l *Live) noteAgain(r *wire.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r == nil || !l.again || r.Ended == wire.Refused {
		return
	}
	l.again = false
	if !slices.Contains(r.Notes, wire.NoteShellRestarted) {
		r.Notes = append(r.Notes, wire.NoteShellRestarted)
	}
}

// rerecord begins the record of a session for which there was no space.
func (b *box) rerecord(l *Live) {
	b.amu.Lock()
	defer b.amu.Unlock()
	if b.live(l.name) != l {
		return // the name's record is another session's by now
	}
	rec, _, err := b.recordOf(l.info())
	if err != nil {
		l.trouble(err)
		return
	}
	l.mu.Lock()
	// Until here nothing was recorded; from here on everything is.
	if err = rec.Skip(l.replica.end, record.WhyFull); err == nil && !l.ended {
		l.rec, rec = rec, nil
	}
	l.mu.Unlock()
	if rec != nil {
		_ = rec.Close() // it has no byte that anybody misses
	}
}

// drop ends a session that the guest no longer has.
func (b *box) drop(l *Live, reason string) {
	l.end(wire.State{Phase: wire.PhaseDead, Reason: reason, SinceUnix: time.Now().UnixMilli(), Offset: l.Len(), Basis: []wire.Basis{}})
	b.forget(l)
}

// forget lets a session that has ended go; who reads it still can.
func (b *box) forget(l *Live) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lives[l.name] == l {
		delete(b.lives, l.name)
		b.hub.board.Change()
	}
}

// follow reads the session's replica stream on c, and again when it breaks, until c or the session ends.
func (l *Live) follow(ctx context.Context, c *connect.Control) {
	l.mu.Lock()
	if l.claim == c {
		l.mu.Unlock()
		return
	}
	l.claim = c
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.claim == c {
			l.claim = nil
		}
	}()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		began := time.Now()
		err := l.read(ctx, c)
		switch {
		case l.final():
			l.closeUnkept(ctx, c)
			l.box.forget(l)
			return
		case ctx.Err() != nil || c.Err() != nil:
			return
		case errors.Is(err, &wire.Error{Code: wire.CodeNotFound}), errors.Is(err, io.EOF) && !l.still(ctx, c):
			l.box.drop(l, "closed")
			return
		}
		l.box.hub.log.Debug("replica stream ended", "sandbox", l.box.id, "session", l.name, "err", err)
		if time.Since(began) > time.Minute {
			pause = 50 * time.Millisecond
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// still reports whether the guest has the session that l is of, and not another of its name.
func (l *Live) still(ctx context.Context, c *connect.Control) bool {
	infos, err := list(ctx, c)
	return err != nil || slices.ContainsFunc(infos, func(i wire.SessionInfo) bool { return i.Name == l.name && i.Created == l.begun })
}

// read reads one replica stream to its end.
func (l *Live) read(ctx context.Context, c *connect.Control) error {
	s, err := c.OpenStream(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	from, after := l.replica.end, l.seq
	l.mu.Unlock()
	over := make(chan struct{}) // closed by the handler: the session has ended, or the guest speaks nonsense
	stop := func() {
		select {
		case <-over:
		default:
			close(over)
		}
	}
	party := replicaParty
	client, err := wire.Open(ctx, s, wire.Attach{Session: l.name, From: wire.At(from), After: after, Party: &party, Keep: true}, wire.Handler{
		Output: func(off uint64, p []byte) {
			if !l.output(off, p) {
				stop()
			}
		},
		Event: func(e wire.Event) {
			if l.event(inboundEvent(e)); l.final() {
				stop()
			}
		},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	l.snapshot(client.Attached())
	defer l.heeding(ctx, client)()
	select {
	case <-client.Done():
		return client.Err()
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// snapshot takes the state at the time of attaching, unless events have told us a newer one already.
func (l *Live) snapshot(a wire.Attached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Seq < l.seq {
		return
	}
	l.becomeLocked(inboundState(a.State))
	l.keyboard, l.private = cut(a.Keyboard, maxWord), cut(a.Private, maxWord)
	l.cols, l.rows = wire.ClampSize(uint32(max(a.Cols, 0)), uint32(max(a.Rows, 0)))
	l.noteNeedLocked()
	l.changeLocked()
}

// becomeLocked makes st the session's state.
func (l *Live) becomeLocked(st wire.State) {
	before := l.busyLocked()
	l.state = st
	if before || !l.busyLocked() {
		return
	}
	d := &l.denials
	if d.starts++; d.late(time.Now()) {
		d.shown = DenialText(d.newest.Denial)
	}
}

// output takes bytes at offset off: into the record, then into the replica, then to whoever waits. It reports whether the
// stream makes sense.
func (l *Live) output(off uint64, p []byte) bool {
	l.mu.Lock()
	end, rec := l.replica.end, l.rec
	l.mu.Unlock()
	if off > maxLog || l.final() {
		return false
	}
	if off < end {
		if end-off >= uint64(len(p)) {
			return true
		}
		p = p[end-off:]
		off = end
	}
	recorded := false
	if rec != nil {
		if rec.Private() && l.Private() == "" { // its end was told while nobody listened
			l.trouble(rec.EndPrivate())
		}
		err := rec.Append(off, p)
		if recorded = err == nil; !recorded && l.strict(err) {
			return false
		}
		l.trouble(err)
	} else if l.strict(errNoRecord) {
		return false
	}
	l.mu.Lock()
	l.replica.skip(off)
	l.replica.add(p, recorded)
	l.printed = time.Now()
	l.changeLocked()
	l.mu.Unlock()
	if recorded {
		rec.Mark()
	}
	return true
}

// event takes an event: into the record, then into what we know of the session.
func (l *Live) event(e wire.Event) {
	l.mu.Lock()
	rec := l.rec
	l.mu.Unlock()
	if e.Kind == wire.EventEnded && e.Text != "" { // closed; without a reason its shell has ended, and can be started again
		state := wire.State{Phase: wire.PhaseDead, Reason: "closed", Basis: []wire.Basis{}}
		if e.State != nil {
			state = *e.State
		}
		state.Offset = l.Len()
		l.end(state)
		return
	}
	// A guest is not asked what time it is: of what it held back it may tell when that was, but not the future.
	if now := time.Now().UnixMilli(); e.TimeUnix > now || e.TimeUnix < l.begun {
		e.TimeUnix = now
	}
	if e.Kind == wire.EventLagged && e.Text == wire.WhyPrivate {
		l.skipPrivate(e.Offset)
		return
	}
	if rec != nil && e.Seq != 0 {
		if err := rec.Event(e); err != nil {
			l.trouble(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || e.Seq != 0 && e.Seq <= l.seq {
		return
	}
	l.seq = max(l.seq, e.Seq)
	switch e.Kind {
	case wire.EventState, wire.EventEnded:
		if e.State != nil {
			l.becomeLocked(*e.State)
		}
	case wire.EventBegun:
		if e.Op == "" { // it was typed
			l.denials.begun("", time.Now())
		}
		e.Offset = min(e.Offset, l.replica.end)
		l.announced.add(e)
		l.edges.add(e)
	case wire.EventOver:
		l.edges.add(e)
	case wire.EventKeyboard:
		l.keyboard, l.asking = e.Keyboard, ""
	case wire.EventInput, wire.EventCommand:
		l.typed = e.By
		if e.Kind == wire.EventCommand {
			l.denials.begun(e.Op, time.Now())
		}
	case wire.EventAsk:
		l.asking = e.By
	case wire.EventPrivate:
		l.private = e.By
	case wire.EventResize:
		l.cols, l.rows = wire.ClampSize(uint32(max(e.Cols, 0)), uint32(max(e.Rows, 0)))
		l.display.resized(l.replica.end, l.cols, l.rows)
	}
	l.noteNeedLocked()
	l.changeLocked()
}
