package admission

import (
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// DiskFull is the name of the limit of disk in notes, reasons and events.
const DiskFull = "disk_full"

// If the storage does not enforce the disk limit, the daemon measures the files of a sandbox, and
// stops one above its limit. It does not measure while nothing suggests a write: it first checks
// the free space of the disk and the sandbox's processor time, which costs next to nothing.
const (
	// Loss of free space since the last measurement that causes another.
	diskStep = 64 << 20
	// Age of the last measurement that causes another, if the sandbox has worked.
	diskAge = 30 * time.Second
	// Pause after a measurement as a multiple of its duration, unless the limit may be near.
	diskPace   = 20
	diskWorked = time.Millisecond // processor time below which nothing is written
	// Bytes that a sandbox which was started above its limit may write, to be cleaned up.
	diskRoomy = 64 << 20
	diskFew   = 1000 // likewise, files

	// Growth is how much lost free space counts as a write when the disk is nearly full.
	Growth = 1 << 20
)

// Gauge is the known disk usage of one sandbox since its start.
type Gauge struct {
	Since time.Time         // when it was started
	First sandbox.DiskUsage // usage at the start, if that was above its limit
	Used  sandbox.DiskUsage // last measurement

	room int64         // free bytes of the disk at the last measurement
	cpu  time.Duration // processor time by then
	at   time.Time     // time of the last check; zero before the first
	next time.Time     // no check before this time
}

// Fresh reports whether there was no check yet.
func (g *Gauge) Fresh() bool { return g.at.IsZero() }

// Due reports whether to check now. The disk has room free bytes, and the sandbox's limit is limit
// bytes. pressed says that the disk is nearly full, and still filling.
func (g *Gauge) Due(now time.Time, room, limit int64, pressed bool) bool {
	if g.Fresh() {
		return true
	}
	went := g.room - room
	urgent := pressed || went >= max(limit-g.Used.Bytes, Growth)
	return urgent || !now.Before(g.next) && (went >= diskStep || now.Sub(g.at) >= diskAge)
}

// Worked takes the sandbox's processor time and reports whether it may have written since the last
// measurement. If not, that counts as a check.
func (g *Gauge) Worked(now time.Time, room int64, cpu time.Duration) bool {
	if !g.Fresh() && cpu > 0 && cpu >= g.cpu && cpu-g.cpu < diskWorked {
		g.at, g.room = now, room
		return false
	}
	g.cpu = cpu
	return true
}

// Measured records a measurement that began at now and took so long.
func (g *Gauge) Measured(now time.Time, room int64, took time.Duration) {
	g.at, g.room, g.next = now, room, now.Add(took*(1+diskPace))
}

// Allowed returns the usage above which the sandbox is stopped: it may have been started to be
// cleaned up.
func (g *Gauge) Allowed(limit int64) sandbox.DiskUsage {
	most := sandbox.DiskUsage{Bytes: limit, Files: sandbox.MaxFiles(limit)}
	if g.First.Bytes > limit {
		most.Bytes = g.First.Bytes + diskRoomy
	}
	if g.First.Files > most.Files {
		most.Files = g.First.Files + diskFew
	}
	return most
}

// Above returns which limit is exceeded, or "".
func (g *Gauge) Above(limit int64) string {
	most := g.Allowed(limit)
	switch {
	case g.Used.Bytes > most.Bytes:
		return fmt.Sprintf("its files occupy more than %s (--disk)", Size(limit))
	case g.Used.Files > most.Files:
		return fmt.Sprintf("it has more than the %d files that go with %s (--disk)",
			sandbox.MaxFiles(limit), Size(limit))
	}
	return ""
}

// Run returns why nothing may be made or started on a disk with room free bytes, of which floor
// must stay free; nil if it may.
func Run(room, floor int64) error {
	if room >= floor {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable,
		"%s: this machine has only %s of disk left, and disk.min_free is %s", DiskFull, Size(room),
		Size(floor))
	e.Hint =
		"free disk space, for example with sandboxd rm or docker image prune, or lower " +
			"disk.min_free"
	return e
}

// Copy returns why a sandbox with that disk limit may not be copied into an image of weight bytes;
// nil if it may. 0 is no limit.
func Copy(weight, limit int64) error {
	if limit == 0 || weight <= limit {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable,
		"%s: an image of its files would have %s, and its limit is %s", DiskFull, Size(weight),
		Size(limit))
	e.Hint = "remove files in the sandbox; holes in files count, too"
	return e
}

// CopyTo returns why no image of weight bytes may be made on a disk with room free bytes, of which
// floor must stay free.
func CopyTo(weight, room, floor int64) error {
	if room-weight >= floor {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable,
		"%s: an image of its files would have %s, this machine has %s of disk left, and "+
			"disk.min_free is %s",
		DiskFull, Size(weight), Size(room), Size(floor))
	e.Hint = "free disk space, for example with sandboxd rm or docker image prune"
	return e
}
