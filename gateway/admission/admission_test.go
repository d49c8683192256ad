package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const gib = 1 << 30

func TestCreate(t *testing.T) {
	q := Quota{Sandboxes: 3, Memory: 4 * gib, CPUs: 2, Disk: 20 * gib}
	total := Total{Sandboxes: 10, Running: 5}
	for _, tt := range []struct {
		name   string
		has    Usage
		all    All
		own    sandbox.Limits
		code   wire.Code // empty: admitted
		key    string
		images bool
	}{
		{"the first", Usage{}, All{}, sandbox.Limits{Memory: gib, CPUs: 1, Disk: gib}, "", "", false},
		{"exactly full", Usage{Sandboxes: 2, Memory: 3 * gib, CPUs: 1, Disk: 19 * gib}, All{9, 4}, sandbox.Limits{Memory: gib, CPUs: 1, Disk: gib}, "", "", false},
		{"one too many of the owner", Usage{Sandboxes: 3}, All{3, 0}, sandbox.Limits{}, wire.CodeLimitSandboxes, "max_sandboxes", false},
		{"one too many of all", Usage{}, All{10, 0}, sandbox.Limits{}, wire.CodeLimitSandboxes, "total.sandboxes", false},
		{"one too many that runs", Usage{}, All{5, 5}, sandbox.Limits{}, wire.CodeLimitSandboxes, "total.running", false},
		{"memory", Usage{Memory: 4 * gib}, All{}, sandbox.Limits{Memory: 1}, wire.CodeLimitQuota, "quota.memory", false},
		{"cpus", Usage{CPUs: 1.5}, All{}, sandbox.Limits{CPUs: 0.6}, wire.CodeLimitQuota, "quota.cpus", false},
		{"cpus that add up by binary fractions", Usage{CPUs: 1.7}, All{}, sandbox.Limits{CPUs: 0.3}, "", "", false},
		{"disk", Usage{Disk: 20 * gib}, All{}, sandbox.Limits{Disk: 1}, wire.CodeLimitQuota, "quota.disk", false},
		{"disk with images", Usage{Disk: 10 * gib, Kept: 10 * gib}, All{}, sandbox.Limits{Disk: 1}, wire.CodeLimitQuota, "images of yours", true},
		{"disk comes before memory", Usage{Disk: 20 * gib, Memory: 4 * gib}, All{}, sandbox.Limits{Disk: 1, Memory: 1}, wire.CodeLimitQuota, "quota.disk", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check(t, Create(q, total, tt.has, tt.all, tt.own), tt.code, tt.key, tt.images)
		})
	}
}

// check fails the test unless err has that code, names key, and wraps ErrImages if images is set.
// An empty code means no error.
func check(t *testing.T, err error, code wire.Code, key string, images bool) {
	t.Helper()
	e, _ := errors.AsType[*wire.Error](err)
	switch {
	case code == "" && err != nil:
		t.Errorf("denied: %v", err)
	case code != "" && (e == nil || e.Code != code || !strings.Contains(e.Message, key) ||
		e.Hint == ""):
		t.Errorf("error %+v, want code %s that names %s, with a hint", e, code, key)
	case errors.Is(err, ErrImages) != images:
		t.Errorf("%v is about images: %v, want %v", err, !images, images)
	}
}

// A stopped sandbox takes no further disk when it starts, and no existing sandbox counts twice.
func TestStart(t *testing.T) {
	q, total := Quota{Memory: 2 * gib, Disk: 1}, Total{Sandboxes: 2, Running: 2}
	own := sandbox.Limits{Memory: gib, Disk: gib}
	check(t, Start(q, total, Usage{Memory: gib, Disk: gib}, All{2, 1}, own), "", "", false)
	check(t, Start(q, total, Usage{}, All{2, 2}, own), wire.CodeLimitSandboxes, "total.running",
		false)
	check(t, Start(q, total, Usage{Memory: 2 * gib}, All{1, 1}, own), wire.CodeLimitQuota,
		"quota.memory", false)
}

func TestImageAndSession(t *testing.T) {
	check(t, Image(Quota{Disk: 3 * gib}, Usage{Disk: gib, Kept: gib}, gib), "", "", false)
	check(t, Image(Quota{Disk: 3 * gib}, Usage{Disk: gib, Kept: gib}, gib+1), wire.CodeLimitQuota,
		"quota.disk", true)
	check(t, Image(Quota{}, Usage{Disk: gib}, gib), "", "", false)
	check(t, Session(Quota{}, 1000), "", "", false)
	check(t, Session(Quota{Sessions: 2}, 1), "", "", false)
	check(t, Session(Quota{Sessions: 2}, 2), wire.CodeLimitQuota, "quota.sessions", false)
}

func TestPoolHasWhatIsLeft(t *testing.T) {
	for _, tt := range []struct {
		all  All
		room int
		key  string
	}{{All{0, 0}, 5, "total.running"}, {All{4, 4}, 1, "total.running"}, {All{5, 5}, 0, "total.running"}, {All{9, 1}, 1, "total.sandboxes"},
		{All{12, 9}, 0, "total.running"}, {All{12, 1}, 0, "total.sandboxes"}} {
		if room, key := (Total{Sandboxes: 10, Running: 5}).Pool(tt.all); room != tt.room ||
			key != tt.key {
			t.Errorf("beside %+v: %d by %s, want %d by %s", tt.all, room, key, tt.room, tt.key)
		}
	}
}

func TestDiskFloor(t *testing.T) {
	check(t, Run(gib, gib), "", "", false)
	check(t, Run(gib-1, gib), wire.CodeUnavailable, DiskFull, false)
	check(t, Copy(gib, 0), "", "", false)
	check(t, Copy(gib, gib), "", "", false)
	check(t, Copy(gib+1, gib), wire.CodeUnavailable, DiskFull, false)
	check(t, CopyTo(gib, 3*gib, 2*gib), "", "", false)
	check(t, CopyTo(gib+1, 3*gib, 2*gib), wire.CodeUnavailable, DiskFull, false)
}

// A sandbox that was started above its limit may write a little, to be cleaned up; any other is
// stopped above its limit.
func TestGaugeAbove(t *testing.T) {
	files := sandbox.MaxFiles(gib)
	for _, tt := range []struct {
		name        string
		first, used sandbox.DiskUsage
		above       bool
	}{
		{"at the limit", sandbox.DiskUsage{}, sandbox.DiskUsage{Bytes: gib, Files: files}, false},
		{"above it", sandbox.DiskUsage{}, sandbox.DiskUsage{Bytes: gib + 1}, true},
		{"too many files", sandbox.DiskUsage{}, sandbox.DiskUsage{Files: files + 1}, true},
		{"started above it", sandbox.DiskUsage{Bytes: 2 * gib}, sandbox.DiskUsage{Bytes: 2*gib + diskRoomy}, false},
		{"started above it, and wrote", sandbox.DiskUsage{Bytes: 2 * gib}, sandbox.DiskUsage{Bytes: 2*gib + diskRoomy + 1}, true},
		{"started with too many files", sandbox.DiskUsage{Files: files + 5}, sandbox.DiskUsage{Files: files + 5 + diskFew}, false},
	} {
		g := Gauge{First: tt.first, Used: tt.used}
		if why := g.Above(gib); (why != "") != tt.above {
			t.Errorf("%s: %q", tt.name, why)
		}
	}
}

// A sandbox is measured if it may have written, within the permitted cost, and immediately near its
// limit.
func TestGaugeDue(t *testing.T) {
	start := time.Unix(1000, 0)
	g := &Gauge{}
	if !g.Due(start, 10*gib, gib, false) || !g.Worked(start, 10*gib, time.Second) {
		t.Error("a sandbox without a measurement is not due")
	}
	g.Used.Bytes = gib / 2
	g.Measured(start, 10*gib, time.Second)
	for _, tt := range []struct {
		name    string
		after   time.Duration
		went    int64
		pressed bool
		due     bool
	}{
		{"at once", time.Second, 0, false, false},
		{"much went, within the pace", 5 * time.Second, diskStep, false, false},
		{"much went", 22 * time.Second, diskStep, false, true},
		{"little went", 22 * time.Second, diskStep - 1, false, false},
		{"it is old", diskAge, 0, false, true},
		{"as much went as it may have", time.Second, gib / 2, false, true},
		{"the disk fills", time.Second, 0, true, true},
	} {
		if due := g.Due(start.Add(tt.after), 10*gib-tt.went, gib, tt.pressed); due != tt.due {
			t.Errorf("%s: due %v", tt.name, due)
		}
	}
	if now := start.Add(time.Minute); g.Worked(now, 10*gib, time.Second+diskWorked/2) ||
		g.Due(now.Add(time.Second), 10*gib, gib, false) {
		t.Error("an idle sandbox is measured")
	}
	if !g.Worked(start.Add(2*time.Minute), 10*gib, 2*time.Second) {
		t.Error("a busy sandbox is not measured")
	}
}

// More usage never turns a denial into an admission.
func FuzzCreate(f *testing.F) {
	f.Add(uint8(1), int64(gib), int64(gib), int64(gib), uint16(1000), uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, sandboxes uint8, memory, disk, kept int64, milli uint16, exist,
		running uint8) {
		q := Quota{Sandboxes: 64, Memory: 8 * gib, CPUs: 4, Disk: 50 * gib}
		total := Total{Sandboxes: 100, Running: 50}
		bound := func(n int64) int64 { return max(0, n) % (100 * gib) }
		less := Usage{Sandboxes: int(sandboxes), Memory: bound(memory), CPUs: float64(milli) / 1000,
			Disk: bound(disk), Kept: bound(kept)}
		all := All{int(exist), int(running)}
		own := sandbox.Limits{Memory: gib, CPUs: 0.5, Disk: gib}
		if Create(q, total, less, all, own) == nil {
			return
		}
		more := Usage{less.Sandboxes + 1, less.Memory + gib, less.CPUs + 1, less.Disk + gib,
			less.Kept + gib}
		if Create(q, total, more, All{all.Exist + 1, all.Running + 1}, own) == nil {
			t.Errorf("%+v beside %+v is denied, and more is not", less, all)
		}
	})
}

// Cores have at most three decimals; counts have none.
func TestCoresText(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.5: "0.5", 0.1 + 0.2: "0.3", 1.125: "1.125",
		10000: "10000", 123456: "123456"} {
		if got := Cores(n); got != want {
			t.Errorf("Cores(%v) = %q, want %q", n, got, want)
		}
	}
}

func TestCarries(t *testing.T) {
	for _, tt := range []struct {
		memory, threads, files int64
		want                   int
	}{{2 << 30, 32768, 1 << 20, 64}, {8 << 30, 32768, 1 << 20, 256}, {64 << 30, 32768, 1 << 20, 512}, {64 << 30, 32768, 4096, 256},
		{512 << 30, 4 << 20, 1 << 20, 1000}, {0, 0, 0, 1000}, {1 << 20, 0, 0, 1}} {
		if got := carries(tt.memory, tt.threads, tt.files); got != tt.want {
			t.Errorf("%d bytes, %d threads, %d files: got %d, want %d", tt.memory, tt.threads,
				tt.files, got, tt.want)
		}
	}
	if here := (Total{}).WithDefaults(); here.Running < 1 || here.Running > here.Sandboxes ||
		number("/proc/meminfo", "MemTotal:") == 0 {
		t.Errorf("of this machine: %+v", here)
	}
}
