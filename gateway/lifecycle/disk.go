package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	diskEvery = time.Second // between checks of the free space
	// The pause after a measurement, as a multiple of its duration: at most a quarter of a core.
	diskRest   = 3
	diskWithin = time.Minute // for one measurement
	diskTries  = 3           // timeouts in a row after which the sandbox is stopped
)

// diskWatch watches the disk of one backend. It measures sandboxes and decides which of them stop;
// how a sandbox stops is the sandbox's own.
type diskWatch struct {
	diskLimits
	backend string // its name
	meter   sandbox.Meter
	list    func() []*Sandbox // every sandbox, of any backend
	log     *slog.Logger
	gauges  map[*Sandbox]*admission.Gauge
	lowest  int64 // free space when last below the floor; 0 if it is not below
	unknown bool  // the backend did not report its free space; logged once
}

// diskLimits say when a diskWatch measures, and what it allows.
type diskLimits struct {
	every  time.Duration // between checks of the free space
	within time.Duration // for one measurement
	floor  int64         // bytes that stay free; 0 is no limit
}

// watchDisks stops sandboxes above their disk limit. When free space is low, it stops the one that
// writes most.
func (reg *Registry) watchDisks(ctx context.Context, name string, meter sandbox.Meter) {
	o := &reg.options
	w := &diskWatch{diskLimits: diskLimits{o.diskEvery, o.diskWithin, o.MinFree}, backend: name,
		meter: meter, list: reg.All, log: reg.log, gauges: make(map[*Sandbox]*admission.Gauge)}
	w.run(ctx)
}

// run watches until ctx ends.
func (w *diskWatch) run(ctx context.Context) {
	tick := time.NewTicker(w.every)
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

// round checks every running sandbox once.
func (w *diskWatch) round(ctx context.Context) {
	running := make(map[*Sandbox]Record)
	for _, sb := range w.list() {
		f := sb.get()
		if f.writes() && f.Instance.Backend == w.backend && f.Instance.Limits.Disk > 0 {
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
	if errors.Is(err, sandbox.ErrUnsupported) { // each sandbox still has its limit
		room, err = math.MaxInt64, nil
	}
	if err != nil {
		if !w.unknown && ctx.Err() == nil {
			w.log.Warn("free disk space is unknown", "backend", w.backend, "err", err)
		}
		w.unknown = true
		return
	}
	w.unknown = false
	low := w.floor > 0 && room < w.floor
	pressed := low && (w.lowest == 0 || room < w.lowest-admission.Growth) // and still shrinking
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
		w.stop(worst, running[worst],
			fmt.Sprintf("this machine has only %s of disk left (disk.min_free is %s), and "+
				"the sandbox wrote %s just now",
				admission.Size(room), admission.Size(w.floor), admission.Size(grew)))
	}
}

// measure returns what sb uses, or nil if it was not measured now.
func (w *diskWatch) measure(ctx context.Context, sb *Sandbox, f Record, room int64,
	pressed bool) *admission.Gauge {
	g, now := w.gauges[sb], time.Now()
	limit := f.Instance.Limits.Disk
	if g == nil || !g.Since.Equal(f.Since) {
		g = &admission.Gauge{Since: f.Since, First: sb.disk.atStart()}
		w.gauges[sb] = g
	} else if !g.Due(now, room, limit, pressed) {
		return nil
	}
	if u, err := w.meter.Usage(ctx, f.Instance); err == nil && !g.Worked(now, room, u.CPU) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, w.within)
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
	sb.disk.set(used)
	return g
}

// missed records the result of a measurement of sb. A sandbox that makes measuring time out
// repeatedly is stopped like one above its limit; otherwise the limit could be evaded. Errors of
// the engine are only logged.
func (w *diskWatch) missed(sb *Sandbox, f Record, err error) {
	if err == nil || errors.Is(err, sandbox.ErrGone) {
		sb.disk.known()
		return
	}
	why, timeout := firstLine(err), errors.Is(err, context.DeadlineExceeded)
	if timeout {
		why = fmt.Sprintf("measuring its files took longer than %v", w.within)
	}
	stop := sb.disk.missed(why, timeout)
	w.log.Warn("disk usage not measured", "id", sb.id, "err", err)
	if stop {
		w.stop(sb, f, fmt.Sprintf("its disk usage cannot be measured: measuring its files took "+
			"longer than %v, %d times", w.within, diskTries))
	}
}

// stop stops sb as soon as no other act is under way.
func (w *diskWatch) stop(sb *Sandbox, f Record, why string) {
	delete(w.gauges, sb) // measured again if it still runs
	sb.stopFull(f, why)
}

// measureExcess measures a locked, stopped sandbox that may be above its disk limit. Its owner may
// start it to remove files, so usage at the start does not count as new writes.
func (sb *Sandbox) measureExcess(ctx context.Context, be sandbox.Backend, f Record) {
	known, _ := sb.disk.last()
	sb.disk.starts(sandbox.DiskUsage{})
	m, ok := be.(sandbox.Meter)
	limit := f.Instance.Limits.Disk
	if !ok || limit == 0 || !strings.HasPrefix(f.Reason, admission.DiskFull) &&
		known.Bytes <= limit && known.Files <= sandbox.MaxFiles(limit) {
		return
	}
	within, cancel := context.WithTimeout(ctx, sb.reg.options.diskWithin)
	defer cancel()
	used, err := m.Disk(within, f.Instance, sandbox.DiskUsage{})
	if err != nil {
		sb.reg.log.Warn("disk usage not measured", "id", sb.id, "err", err)
		return
	}
	sb.disk.starts(used)
	sb.disk.set(used)
}

// stopFull stops the sandbox for its disk usage in the background, as soon as no other act is under
// way, unless it has changed since f was read. Its processes are killed first, and its callers
// learn the reason. A creation is aborted.
func (sb *Sandbox) stopFull(f Record, why string) {
	why = admission.DiskFull + ": " + why
	if f.State == Creating {
		sb.abortCreation(f, &wire.Error{Code: wire.CodeUnavailable, Message: why,
			Hint: "nothing was left behind; write less, or raise the limit: --disk"})
		return
	}
	sb.expiry.once(func(ctx context.Context) { sb.stopFullNow(ctx, f, why) })
}

// stopFullNow is stopFull in its own goroutine.
func (sb *Sandbox) stopFullNow(ctx context.Context, f Record, why string) {
	reg := sb.reg
	if sb.lock(ctx) != nil {
		return
	}
	defer sb.unlock()
	if now := sb.get(); sb.isGone() || !now.writes() || !now.Since.Equal(f.Since) {
		return
	}
	reg.log.Warn("sandbox stopped", "id", sb.id, "name", f.Name, "why", why)
	reg.journal.add(sb.id, "limit", map[string]any{"limit": admission.DiskFull, "why": why})
	if f.State == Warm {
		reg.pooled.Rest(sb, oneLine(why, 300), time.Now())
		reg.pooled.giveUp(ctx, sb, why)
		return
	}
	within, cancel := context.WithTimeout(ctx, queryWithin)
	if c, err := reg.pool.Control(within, f.Instance); err == nil {
		if _, err := c.Do(within, wire.Control{Do: "rescue",
			Reason: admission.DiskFull}); err != nil {
			reg.log.Warn("processes not killed before stop", "id", sb.id, "err", err)
		}
	}
	cancel()
	if err := sb.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		reg.log.Error("sandbox above its disk limit was not stopped", "id", sb.id, "err", err)
	}
}

// roomToRun returns an error if the backend's disk has too little free space to create or start a
// sandbox.
func (reg *Registry) roomToRun(ctx context.Context, be sandbox.Backend) error {
	m, ok := be.(sandbox.Meter)
	floor := reg.options.MinFree
	if !ok || floor == 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	room, err := m.Room(within)
	if err != nil {
		return nil // the next call of the engine reports the error
	}
	return admission.Run(room, floor)
}

// SetDisk changes the sandbox's disk limit, in bytes, in every state. The code is usage for an
// invalid limit, unavailable where the backend cannot change it.
func (sb *Sandbox) SetDisk(ctx context.Context, limit int64) error {
	reg := sb.reg
	if limit == 0 {
		return wire.Errorf(wire.CodeUsage, "disk: no limit given")
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
			return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name +
				": its storage enforces a fixed disk limit",
				Hint: "remove files in it, or create another sandbox with --disk"}
		case !metered:
			return wire.Errorf(wire.CodeUnavailable,
				"sandbox %s: its backend enforces no disk limit", f.Name)
		}
		f.Instance.Limits.Disk = limit
		if err := reg.accounts.mayHaveDisk(ctx, sb, f); err != nil {
			return err
		}
		return sb.transition(ctx, func(f *Record) {
			f.Instance.Limits.Disk, f.Spec.Limits.Disk = limit, limit
		})
	})
}

// meter adds the backend's measurements to d.
func meter(ctx context.Context, sb *Sandbox, d *Description, f Record) {
	disk, u := sb.disk.last()
	if !u.since.IsZero() {
		d.Notes = append(d.Notes,
			fmt.Sprintf("disk_unknown: its disk has not been measured since %s: %s",
				u.since.UTC().Format(time.DateTime), u.why))
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
		d.Used = &Used{Memory: u.Memory, PIDs: u.PIDs, CPUms: u.CPU.Milliseconds(),
			OOMKills: u.OOMKills, PIDsRefused: u.PIDsRefused,
			Disk: disk.Bytes, Files: disk.Files}
		if u.OOMKills > 0 {
			d.Notes = append(d.Notes,
				fmt.Sprintf("oom_killed: %d of its processes were killed since its start, at the "+
					"limit of %s memory", u.OOMKills, admission.Size(d.Limits.Memory)))
		}
		if u.PIDsRefused > 0 {
			d.Notes = append(d.Notes,
				fmt.Sprintf("limit_pids: %d processes could not be started since its start, at "+
					"the limit of %d", u.PIDsRefused, d.Limits.PIDs))
		}
	}
	switch limit := d.Limits.Disk; {
	case limit > 0 && disk.Bytes > limit-limit/100:
		d.Notes = append(d.Notes, fmt.Sprintf("disk_full: its files occupy %s of %s",
			admission.Size(disk.Bytes), admission.Size(limit)))
	case limit > 0 && disk.Files > sandbox.MaxFiles(limit):
		d.Notes = append(d.Notes,
			fmt.Sprintf("disk_full: it has %d files; the limit is %d with %s disk", disk.Files,
				sandbox.MaxFiles(limit), admission.Size(limit)))
	}
}
