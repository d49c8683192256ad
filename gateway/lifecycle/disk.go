package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
	reg    *Registry
	name   string
	meter  sandbox.Meter
	gauges map[*Sandbox]*admission.Gauge
	lowest int64 // what was free when that was below the floor last; 0: it is not
	deaf   bool  // the backend did not say what is free; said once
}

// watchDisks stops sandboxes that are above their limit of disk, or write most while there is
// hardly any left.
func (reg *Registry) watchDisks(ctx context.Context, name string, meter sandbox.Meter) {
	w := &diskWatch{reg: reg, name: name, meter: meter, gauges: make(map[*Sandbox]*admission.Gauge)}
	tick := time.NewTicker(reg.options.diskEvery)
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
	running := make(map[*Sandbox]Record)
	for _, sb := range w.reg.All() {
		if f := sb.get(); f.writes() && f.Instance.Backend == w.name && f.Instance.Limits.Disk > 0 {
			running[sb] = f
		}
	}
	for sb := range w.gauges {
		if _, runs := running[sb]; !runs {
			delete(w.gauges, sb)
		}
	}
	if len(running) == 0 {
		return
	}
	room, err := w.meter.Room(ctx)
	if err != nil {
		if !w.deaf && ctx.Err() == nil {
			w.reg.log.Warn("it is not known how much disk is free", "backend", w.name, "err", err)
		}
		w.deaf = true
		return
	}
	w.deaf = false
	floor := w.reg.options.MinFree
	low := floor > 0 && room < floor
	pressed := low && (w.lowest == 0 || room < w.lowest-admission.Growth) // and it goes on
	if w.lowest = 0; low {
		w.lowest = room
	}
	var worst *Sandbox
	var grew int64
	for sb, f := range running {
		before := int64(-1)
		if g := w.gauges[sb]; g != nil && g.Since.Equal(f.Since) {
			before = g.Used.Bytes
		}
		g := w.measure(ctx, sb, f, room, pressed)
		if ctx.Err() != nil {
			return
		}
		if g == nil {
			continue
		}
		if why := g.Above(f.Instance.Limits.Disk); why != "" {
			w.stop(sb, f, why)
			continue
		}
		if d := g.Used.Bytes - before; before >= 0 && d > max(grew, admission.Growth) {
			worst, grew = sb, d
		}
	}
	if pressed && worst != nil {
		w.stop(worst, running[worst], fmt.Sprintf("this machine has only %s of disk left (disk.min_free is %s), and it wrote %s just now",
			admission.Size(room), admission.Size(floor), admission.Size(grew)))
	}
}

// measure returns what sb uses, nil unless it was measured now.
func (w *diskWatch) measure(ctx context.Context, sb *Sandbox, f Record, room int64, pressed bool) *admission.Gauge {
	g, now := w.gauges[sb], time.Now()
	limit := f.Instance.Limits.Disk
	if g == nil || !g.Since.Equal(f.Since) {
		sb.disk.mu.Lock()
		g = &admission.Gauge{Since: f.Since, First: sb.disk.excess}
		sb.disk.mu.Unlock()
		w.gauges[sb] = g
	} else if !g.Due(now, room, limit, pressed) {
		return nil
	}
	if u, err := w.meter.Usage(ctx, f.Instance); err == nil && !g.Worked(now, room, u.CPU) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, w.reg.options.diskWithin)
	used, err := w.meter.Disk(within, f.Instance, g.Allowed(limit))
	cancel()
	took := time.Since(now)
	if ctx.Err() == nil {
		w.missed(sb, f, err)
	}
	first := g.Fresh()
	g.Measured(now, room, took)
	sleep(ctx, took*diskRest)
	if err != nil {
		if first {
			delete(w.gauges, sb)
		}
		return nil
	}
	g.Used = used
	sb.disk.mu.Lock()
	sb.disk.used = used
	sb.disk.mu.Unlock()
	return g
}

// diskState is what is known of one sandbox's disk.
type diskState struct {
	mu         sync.Mutex
	used       sandbox.DiskUsage // guarded by mu; as measured last
	unmeasured unmeasured        // guarded by mu; what keeps it from being known
	excess     sandbox.DiskUsage // guarded by mu; what there was when it was started above its limit; zero: it was not
}

// unmeasured is a sandbox of which nobody knows how much disk it has.
type unmeasured struct {
	since time.Time // zero: it is known
	late  int       // measures in a row that took too long
	why   string
}

// missed notes how a measure of sb went. A limit that cannot be looked after is none: who makes
// measuring take too long, again and again, is stopped like one that is above it. Errors of the
// engine are not the sandbox's doing, and are told only.
func (w *diskWatch) missed(sb *Sandbox, f Record, err error) {
	sb.disk.mu.Lock()
	if err == nil || errors.Is(err, sandbox.ErrGone) {
		sb.disk.unmeasured = unmeasured{}
		sb.disk.mu.Unlock()
		return
	}
	u := &sb.disk.unmeasured
	if u.since.IsZero() {
		u.since = time.Now()
	}
	if u.why = firstLine(err); errors.Is(err, context.DeadlineExceeded) {
		u.late++
		u.why = fmt.Sprintf("looking at its files took longer than %v", w.reg.options.diskWithin)
	}
	late := u.late
	if late >= diskTries {
		sb.disk.unmeasured = unmeasured{}
	}
	sb.disk.mu.Unlock()
	w.reg.log.Warn("disk of a sandbox not measured", "id", sb.id, "err", err)
	if late >= diskTries {
		w.stop(sb, f, fmt.Sprintf("how much it has cannot be measured: looking at its files took longer than %v, %d times", w.reg.options.diskWithin, late))
	}
}

// weigh measures sb, which is locked and does not run, if it may be above its limit of disk: it is
// perhaps started to be tidied up, and what is there by then is not what it writes from now on.
func weigh(ctx context.Context, sb *Sandbox, be sandbox.Backend, f Record) {
	sb.disk.mu.Lock()
	known := sb.disk.used
	sb.disk.excess = sandbox.DiskUsage{}
	sb.disk.mu.Unlock()
	m, ok := be.(sandbox.Meter)
	limit := f.Instance.Limits.Disk
	if !ok || limit == 0 || !strings.HasPrefix(f.Reason, admission.DiskFull) && known.Bytes <= limit && known.Files <= sandbox.MaxFiles(limit) {
		return
	}
	within, cancel := context.WithTimeout(ctx, sb.reg.options.diskWithin)
	defer cancel()
	used, err := m.Disk(within, f.Instance, sandbox.DiskUsage{})
	if err != nil {
		sb.reg.log.Warn("disk of a sandbox not measured", "id", sb.id, "err", err)
		return
	}
	sb.disk.mu.Lock()
	sb.disk.used, sb.disk.excess = used, used
	sb.disk.mu.Unlock()
}

// stop stops sb as soon as nobody else acts on it: what writes is killed first, and its callers are
// told why. The others are measured meanwhile.
func (w *diskWatch) stop(sb *Sandbox, f Record, why string) {
	delete(w.gauges, sb) // it is measured anew if it still runs
	if f.State == Creating {
		sb.abortCreation(f, &wire.Error{Code: wire.CodeUnavailable, Message: admission.DiskFull + ": " + why, Hint: "nothing was left behind; have it write less, or give it more: --disk"})
		return
	}
	sb.expiry.once(func(ctx context.Context) { w.stopFull(ctx, sb, f, why) })
}

func (w *diskWatch) stopFull(ctx context.Context, sb *Sandbox, f Record, why string) {
	reg := sb.reg
	if sb.lock(ctx) != nil {
		return
	}
	defer sb.unlock()
	if now := sb.get(); sb.isGone() || !now.writes() || !now.Since.Equal(f.Since) {
		return
	}
	why = admission.DiskFull + ": " + why
	reg.log.Warn("sandbox stopped", "id", sb.id, "name", f.Name, "why", why)
	reg.journal.add(sb.id, "limit", map[string]any{"limit": admission.DiskFull, "why": why})
	if f.State == Warm {
		reg.pooled.Rest(sb, oneLine(why, 300), time.Now())
		reg.pooled.giveUp(ctx, sb, why)
		return
	}
	within, cancel := context.WithTimeout(ctx, lookWithin)
	if c, err := reg.pool.Control(within, f.Instance); err == nil {
		if _, err := c.Do(within, wire.Control{Do: "rescue", Reason: admission.DiskFull}); err != nil {
			reg.log.Warn("processes not killed first", "id", sb.id, "err", err)
		}
	}
	cancel()
	if err := sb.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		reg.log.Error("a sandbox above its limit of disk is not stopped", "id", sb.id, "err", err)
	}
}

// roomToRun returns an error if there is too little of a backend's disk left for anything to be
// made or started.
func (reg *Registry) roomToRun(ctx context.Context, be sandbox.Backend) error {
	m, ok := be.(sandbox.Meter)
	floor := reg.options.MinFree
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
func (sb *Sandbox) SetDisk(ctx context.Context, limit int64) error {
	reg := sb.reg
	if limit == 0 {
		return wire.Errorf(wire.CodeUsage, "no limit of disk is given: which one?")
	}
	if err := (sandbox.Limits{Disk: limit}).Check(); err != nil {
		return wire.Errorf(wire.CodeUsage, "%v", err)
	}
	return sb.act(ctx, func(ctx context.Context, f Record) error {
		be, err := reg.options.backend(f.Instance.Backend)
		if err != nil {
			return err
		}
		_, metered := be.(sandbox.Meter)
		switch {
		case f.Instance.DiskQuota:
			return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name + ": its storage holds the limit of disk that it was made with",
				Hint: "remove files in it, or make another with --disk"}
		case !metered:
			return wire.Errorf(wire.CodeUnavailable, "sandbox %s: its disk has no limit of sandboxd's", f.Name)
		}
		f.Instance.Limits.Disk = limit
		err = reg.accounts.withKept(ctx, f.Owner, "", func(kept int64) error {
			reg.mu.Lock()
			defer reg.mu.Unlock()
			return admission.Disk(reg.options.Quota, reg.accounts.usageLocked(f.Owner, sb, kept), f.limits())
		})
		if err != nil {
			return err
		}
		return sb.become(ctx, func(f *Record) { f.Instance.Limits.Disk, f.Spec.Limits.Disk = limit, limit })
	})
}

// meter says in d what the backend counts.
func meter(ctx context.Context, sb *Sandbox, d *Description, f Record) {
	sb.disk.mu.Lock()
	disk, u := sb.disk.used, sb.disk.unmeasured
	sb.disk.mu.Unlock()
	if !u.since.IsZero() {
		d.Notes = append(d.Notes, fmt.Sprintf("disk_unknown: its disk has not been measured since %s: %s", u.since.UTC().Format(time.DateTime), u.why))
	}
	be, err := sb.reg.options.backend(f.Instance.Backend)
	if err != nil {
		return
	}
	m, ok := be.(sandbox.Meter)
	if !ok {
		return
	}
	if u, err := m.Usage(ctx, f.Instance); err == nil {
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
