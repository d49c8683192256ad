package lifecycle

import (
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// diskState is what is known of one sandbox's disk usage.
type diskState struct {
	mu         sync.Mutex
	used       sandbox.DiskUsage // guarded by mu; last measurement
	unmeasured unmeasured        // guarded by mu; why the usage is unknown
	excess     sandbox.DiskUsage // guarded by mu; usage at a start above the limit; zero otherwise
}

// unmeasured says since when and why the disk usage of a sandbox is unknown.
type unmeasured struct {
	since time.Time // zero: it is known
	late  int       // timeouts in a row
	why   string
}

// last returns the last measurement, and why there is no newer one.
func (d *diskState) last() (sandbox.DiskUsage, unmeasured) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used, d.unmeasured
}

// atStart returns the usage at the last start, if that was above the limit; zero otherwise.
func (d *diskState) atStart() sandbox.DiskUsage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.excess
}

// set records a measurement.
func (d *diskState) set(used sandbox.DiskUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used = used
}

// starts records the usage at a start; zero unless it is above the limit.
func (d *diskState) starts(excess sandbox.DiskUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.excess = excess
}

// known records that the usage can be measured.
func (d *diskState) known() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unmeasured = unmeasured{}
}

// missed records a measurement that failed, and reports whether too many in a row timed out; the
// count then begins again.
func (d *diskState) missed(why string, timeout bool) (tooMany bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := &d.unmeasured
	if u.since.IsZero() {
		u.since = time.Now()
	}
	if u.why = why; timeout {
		u.late++
	}
	if tooMany = u.late >= diskTries; tooMany {
		*u = unmeasured{}
	}
	return tooMany
}
