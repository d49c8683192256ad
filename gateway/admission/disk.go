package admission

import (
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// DiskFull is the name of the limit of disk in notes, reasons and events.
const DiskFull = "disk_full"

// Where the storage does not hold the limit of disk, the files of a sandbox are measured, and one
// above its limit is stopped. A sandbox is not measured while nothing suggests that it wrote: the
// free space of the disk and its processor time are asked for first, and cost next to nothing.
const (
	diskStep   = 64 << 20         // bytes that went since a sandbox was measured, upon which it is measured again
	diskAge    = 30 * time.Second // after which it is measured again in any case, if it worked
	diskPace   = 20               // times as long as measuring took until the next time, unless the limit may be near
	diskWorked = time.Millisecond // of processor time, less than which nobody writes with
	diskRoomy  = 64 << 20         // bytes that a sandbox which was started above its limit may write, to be tidied up
	diskFew    = 1000             // likewise, files

	// Growth is how many bytes count as writing when the disk is nearly full.
	Growth = 1 << 20
)

// Gauge is what is known of the disk of one sandbox since it was started.
type Gauge struct {
	Since time.Time         // when it was started
	First sandbox.DiskUsage // what there was by then, if that was above its limit
	Used  sandbox.DiskUsage // as measured last

	room int64         // free bytes of the disk when it was measured last
	cpu  time.Duration // what it had worked by then
	at   time.Time     // when it was looked at last; zero before that
	next time.Time     // until when it is left alone
}

// Fresh reports whether it has not been looked at yet.
func (g *Gauge) Fresh() bool { return g.at.IsZero() }

// Due reports whether it is to be looked at now: the disk has room free bytes, and its limit is
// limit bytes. pressed says that the disk is nearly full, and fills.
func (g *Gauge) Due(now time.Time, room, limit int64, pressed bool) bool {
	if g.Fresh() {
		return true
	}
	went := g.room - room
	urgent := pressed || went >= max(limit-g.Used.Bytes, Growth)
	return urgent || !now.Before(g.next) && (went >= diskStep || now.Sub(g.at) >= diskAge)
}

// Worked takes the processor time that it has used and reports whether it may have written since it
// was measured. If not, that counts as a look.
func (g *Gauge) Worked(now time.Time, room int64, cpu time.Duration) bool {
	if !g.Fresh() && cpu > 0 && cpu-g.cpu < diskWorked {
		g.at, g.room = now, room
		return false
	}
	g.cpu = cpu
	return true
}

// Measured notes that measuring began at now and took so long.
func (g *Gauge) Measured(now time.Time, room int64, took time.Duration) {
	g.at, g.room, g.next = now, room, now.Add(took*(1+diskPace))
}

// Allowed is what may be there before the sandbox is stopped: it may have been started to be tidied
// up.
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

// Above says in which way there is too much; it is empty if there is not.
func (g *Gauge) Above(limit int64) string {
	most := g.Allowed(limit)
	switch {
	case g.Used.Bytes > most.Bytes:
		return fmt.Sprintf("its files occupy more than %s (--disk)", Size(limit))
	case g.Used.Files > most.Files:
		return fmt.Sprintf("it has more than the %d files that go with %s (--disk)", sandbox.MaxFiles(limit), Size(limit))
	}
	return ""
}

// Run says why nothing is made or started on a disk with room free bytes of which floor are to stay
// free; nil if it may.
func Run(room, floor int64) error {
	if room >= floor {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable, "%s: this machine has only %s of disk left, and disk.min_free is %s", DiskFull, Size(room), Size(floor))
	e.Hint = "make room, such as by sandboxd rm or docker image prune, or lower disk.min_free"
	return e
}

// Copy says why no image of weight bytes is made of a sandbox with that limit of disk; nil if it
// may. 0 is no limit.
func Copy(weight, limit int64) error {
	if limit == 0 || weight <= limit {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable, "%s: an image of its files would have %s, and its limit is %s", DiskFull, Size(weight), Size(limit))
	e.Hint = "remove files in it; those with holes count as if they were full"
	return e
}

// CopyTo says why no image of weight bytes is made on a disk with room free bytes of which floor
// are to stay free.
func CopyTo(weight, room, floor int64) error {
	if room-weight >= floor {
		return nil
	}
	e := wire.Errorf(wire.CodeUnavailable, "%s: an image of its files would have %s, this machine has %s of disk left, and disk.min_free is %s",
		DiskFull, Size(weight), Size(room), Size(floor))
	e.Hint = "make room, such as by sandboxd rm or docker image prune"
	return e
}
