package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	diskEvery  = time.Second // between looks at what is free
	diskRest   = 3           // times as long as any measuring took in which nothing is measured: a quarter of a core at most
	diskWithin = time.Minute // for one measure
	diskTries  = 3           // measures in a row that took longer, upon which the sandbox is stopped
)

// diskWatch is the watching of one backend's disk.
type diskWatch struct {
	hub    *Hub
	name   string
	meter  sandbox.Meter
	gauges map[*box]*admission.Gauge
	lowest int64 // what was free when that was below the floor last; 0: it is not
	deaf   bool  // the backend did not say what is free; said once
}

// watchDisks stops sandboxes that are above their limit of disk, or write most while there is
// hardly any left.
func (h *Hub) watchDisks(ctx context.Context, name string, meter sandbox.Meter) {
	w := &diskWatch{hub: h, name: name, meter: meter, gauges: make(map[*box]*admission.Gauge)}
	tick := time.NewTicker(h.options.diskEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.round(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// round looks at every sandbox that runs.
func (w *diskWatch) round(ctx context.Context) {
	running := make(map[*box]facts)
	for _, b := range w.hub.all() {
		if f := b.get(); f.writes() && f.inst.Backend == w.name && f.inst.Limits.Disk > 0 {
			running[b] = f
		}
	}
	for b := range w.gauges {
		if _, runs := running[b]; !runs {
			delete(w.gauges, b)
		}
	}
	if len(running) == 0 {
		return
	}
	room, err := w.meter.Room(ctx)
	if err != nil {
		if !w.deaf && ctx.Err() == nil {
			w.hub.log.Warn("it is not known how much disk is free", "backend", w.name, "err", err)
		}
		w.deaf = true
		return
	}
	w.deaf = false
	floor := w.hub.options.MinFree
	low := floor > 0 && room < floor
	pressed := low && (w.lowest == 0 || room < w.lowest-admission.Growth) // and it goes on
	if w.lowest = 0; low {
		w.lowest = room
	}
	var worst *box
	var grew int64
	for b, f := range running {
		before := int64(-1)
		if g := w.gauges[b]; g != nil && g.Since.Equal(f.since) {
			before = g.Used.Bytes
		}
		g := w.measure(ctx, b, f, room, pressed)
		if ctx.Err() != nil {
			return
		}
		if g == nil {
			continue
		}
		if why := g.Above(f.inst.Limits.Disk); why != "" {
			w.stop(b, f, why)
			continue
		}
		if d := g.Used.Bytes - before; before >= 0 && d > max(grew, admission.Growth) {
			worst, grew = b, d
		}
	}
	if pressed && worst != nil {
		w.stop(worst, running[worst], fmt.Sprintf("this machine has only %s of disk left (disk.min_free is %s), and it wrote %s just now",
			admission.Size(room), admission.Size(floor), admission.Size(grew)))
	}
}

// writes reports whether there may be processes that write: what does not answer may well run, so
// does what stands ready, and what is being made has an instance while it is set up.
func (f facts) writes() bool {
	return f.state == Running || f.state == Broken || f.state == Warm || f.state == Creating && f.inst.ID != ""
}

// measure returns what b uses, nil unless it was measured now.
func (w *diskWatch) measure(ctx context.Context, b *box, f facts, room int64, pressed bool) *admission.Gauge {
	g, now := w.gauges[b], time.Now()
	limit := f.inst.Limits.Disk
	if g == nil || !g.Since.Equal(f.since) {
		b.mu.Lock()
		g = &admission.Gauge{Since: f.since, First: b.excess}
		b.mu.Unlock()
		w.gauges[b] = g
	} else if !g.Due(now, room, limit, pressed) {
		return nil
	}
	if u, err := w.meter.Usage(ctx, f.inst); err == nil && !g.Worked(now, room, u.CPU) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, w.hub.options.diskWithin)
	used, err := w.meter.Disk(within, f.inst, g.Allowed(limit))
	cancel()
	took := time.Since(now)
	if ctx.Err() == nil {
		w.missed(b, f, err)
	}
	first := g.Fresh()
	g.Measured(now, room, took)
	sleep(ctx, took*diskRest)
	if err != nil {
		if first {
			delete(w.gauges, b)
		}
		return nil
	}
	g.Used = used
	b.mu.Lock()
	b.disk = used
	b.mu.Unlock()
	return g
}

// unmeasured is a sandbox of which nobody knows how much disk it has.
type unmeasured struct {
	since time.Time // zero: it is known
	late  int       // measures in a row that took too long
	why   string
}

// missed notes how a measure of b went. A limit that cannot be looked after is none: who makes
// measuring take too long, again and again, is stopped like one that is above it. Errors of the
// engine are not the sandbox's doing, and are told only.
func (w *diskWatch) missed(b *box, f facts, err error) {
	b.mu.Lock()
	if err == nil || errors.Is(err, sandbox.ErrGone) {
		b.unmeasured = unmeasured{}
		b.mu.Unlock()
		return
	}
	u := &b.unmeasured
	if u.since.IsZero() {
		u.since = time.Now()
	}
	if u.why = firstLine(err); errors.Is(err, context.DeadlineExceeded) {
		u.late++
		u.why = fmt.Sprintf("looking at its files took longer than %v", w.hub.options.diskWithin)
	}
	late := u.late
	if late >= diskTries {
		b.unmeasured = unmeasured{}
	}
	b.mu.Unlock()
	w.hub.log.Warn("disk of a sandbox not measured", "id", b.id, "err", err)
	if late >= diskTries {
		w.stop(b, f, fmt.Sprintf("how much it has cannot be measured: looking at its files took longer than %v, %d times", w.hub.options.diskWithin, late))
	}
}

// weigh measures b, which is locked and does not run, if it may be above its limit of disk: it is
// perhaps started to be tidied up, and what is there by then is not what it writes from now on.
func (b *box) weigh(ctx context.Context, be sandbox.Backend, f facts) {
	b.mu.Lock()
	known := b.disk
	b.excess = sandbox.DiskUsage{}
	b.mu.Unlock()
	m, ok := be.(sandbox.Meter)
	limit := f.inst.Limits.Disk
	if !ok || limit == 0 || !strings.HasPrefix(f.reason, admission.DiskFull) && known.Bytes <= limit && known.Files <= sandbox.MaxFiles(limit) {
		return
	}
	within, cancel := context.WithTimeout(ctx, b.hub.options.diskWithin)
	defer cancel()
	used, err := m.Disk(within, f.inst, sandbox.DiskUsage{})
	if err != nil {
		b.hub.log.Warn("disk of a sandbox not measured", "id", b.id, "err", err)
		return
	}
	b.mu.Lock()
	b.disk, b.excess = used, used
	b.mu.Unlock()
}

// stop stops b as soon as nobody else acts on it: what writes is killed first, and its callers are
// told why. The others are measured meanwhile.
func (w *diskWatch) stop(b *box, f facts, why string) {
	delete(w.gauges, b) // it is measured anew if it still runs
	if f.state == Creating {
		b.abortCreation(f, &wire.Error{Code: wire.CodeUnavailable, Message: admission.DiskFull + ": " + why, Hint: "nothing was left behind; have it write less, or give it more: --disk"})
		return
	}
	b.once(func(ctx context.Context) { b.stopFull(ctx, f, why) })
}

func (b *box) stopFull(ctx context.Context, f facts, why string) {
	h := b.hub
	if b.lock(ctx) != nil {
		return
	}
	defer b.unlock()
	if now := b.get(); b.isGone() || !now.writes() || !now.since.Equal(f.since) {
		return
	}
	why = admission.DiskFull + ": " + why
	h.log.Warn("sandbox stopped", "id", b.id, "name", f.name, "why", why)
	h.journal.add(b.id, "limit", map[string]any{"limit": admission.DiskFull, "why": why})
	if f.state == Warm {
		h.pooled.Rest(b, oneLine(why, 300), time.Now())
		b.giveUp(ctx, why)
		return
	}
	within, cancel := context.WithTimeout(ctx, lookWithin)
	if c, err := h.pool.Control(within, f.inst); err == nil {
		if _, err := c.Do(within, wire.Control{Do: "rescue", Reason: admission.DiskFull}); err != nil {
			h.log.Warn("processes not killed first", "id", b.id, "err", err)
		}
	}
	cancel()
	if err := b.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		h.log.Error("a sandbox above its limit of disk is not stopped", "id", b.id, "err", err)
	}
}

// roomToRun returns an error if there is too little of a backend's disk left for anything to be
// made or started.
func (h *Hub) roomToRun(ctx context.Context, be sandbox.Backend) error {
	m, ok := be.(sandbox.Meter)
	floor := h.options.MinFree
	if !ok || floor == 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	room, err := m.Room(within)
	if err != nil {
		return nil // an engine that does not answer is what is reported next
	}
	return admission.Run(room, floor)
}

// SetDisk changes the limit of disk of a sandbox, whether it runs or not.
func (h *Hub) SetDisk(ctx context.Context, p Principal, name string, limit int64) error {
	if limit == 0 {
		return wire.Errorf(wire.CodeUsage, "no limit of disk is given: which one?")
	}
	if err := (sandbox.Limits{Disk: limit}).Check(); err != nil {
		return wire.Errorf(wire.CodeUsage, "%v", err)
	}
	return h.act(ctx, p, name, "changing limits", func(ctx context.Context, b *box, f facts) error {
		be, err := h.backend(f.inst.Backend)
		if err != nil {
			return err
		}
		_, metered := be.(sandbox.Meter)
		switch {
		case f.inst.DiskQuota:
			return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + name + ": its storage holds the limit of disk that it was made with",
				Hint: "remove files in it, or make another with --disk"}
		case !metered:
			return wire.Errorf(wire.CodeUnavailable, "sandbox %s: its disk has no limit of sandboxd's", name)
		}
		f.inst.Limits.Disk = limit
		err = h.withKept(ctx, p.Name, "", func(kept int64) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			return admission.Disk(h.options.Quota, h.usageLocked(f.owner, b, kept), f.limits())
		})
		if err != nil {
			return err
		}
		return b.become(ctx, func(f *facts) { f.inst.Limits.Disk, f.spec.Limits.Disk = limit, limit })
	})
}

// meter says in d what the backend counts.
func (b *box) meter(ctx context.Context, d *Description, f facts) {
	b.mu.Lock()
	disk, u := b.disk, b.unmeasured
	b.mu.Unlock()
	if !u.since.IsZero() {
		d.Notes = append(d.Notes, fmt.Sprintf("disk_unknown: its disk has not been measured since %s: %s", u.since.UTC().Format(time.DateTime), u.why))
	}
	be, err := b.hub.backend(f.inst.Backend)
	if err != nil {
		return
	}
	m, ok := be.(sandbox.Meter)
	if !ok {
		return
	}
	if u, err := m.Usage(ctx, f.inst); err == nil {
		d.Used = &Used{Memory: u.Memory, PIDs: u.PIDs, CPUms: u.CPU.Milliseconds(), OOMKills: u.OOMKills, PIDsRefused: u.PIDsRefused,
			Disk: disk.Bytes, Files: disk.Files}
		if u.OOMKills > 0 {
			d.Notes = append(d.Notes, fmt.Sprintf("oom_killed: %d of its processes were killed since it was started, at the limit of %s memory", u.OOMKills, admission.Size(d.Limits.Memory)))
		}
		if u.PIDsRefused > 0 {
			d.Notes = append(d.Notes, fmt.Sprintf("limit_pids: %d processes could not be started since it was, at the limit of %d", u.PIDsRefused, d.Limits.PIDs))
		}
	}
	switch limit := d.Limits.Disk; {
	case limit > 0 && disk.Bytes > limit-limit/100:
		d.Notes = append(d.Notes, fmt.Sprintf("disk_full: its files occupy %s of %s", admission.Size(disk.Bytes), admission.Size(limit)))
	case limit > 0 && disk.Files > sandbox.MaxFiles(limit):
		d.Notes = append(d.Notes, fmt.Sprintf("disk_full: it has %d files, and %d go with %s", disk.Files, sandbox.MaxFiles(limit), admission.Size(limit)))
	}
}
