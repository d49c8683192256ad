package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// metered is a backend whose sandboxes use what a test says.
type metered struct {
	*sandboxtest.Backend

	mu       sync.Mutex
	room     int64 // below 0: nobody knows
	rooms    int   // calls of Room
	used     map[string]sandbox.DiskUsage
	usage    map[string]sandbox.Usage
	measured map[string]int // calls of Disk
	born     int64          // bytes that a new one has written before anybody looks
	slow     bool           // measurements never end
	broken   error          // what measures fail with
}

func newMetered(w *world) *metered {
	m := &metered{Backend: w.Memory, room: 100 << 30, used: make(map[string]sandbox.DiskUsage),
		usage: make(map[string]sandbox.Usage), measured: make(map[string]int)}
	w.Backend = m
	w.Options.SetDiskEvery(5 * time.Millisecond)
	return m
}

func (m *metered) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	inst, err := m.Backend.Boot(ctx, spec)
	inst.Limits = spec.Limits.Or(sandbox.DefaultLimits)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[inst.ID] = sandbox.DiskUsage{Bytes: m.born}
	return inst, err
}

func (m *metered) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	started, err := m.Backend.Start(ctx, inst)
	started.Limits = inst.Limits
	return started, err
}

func (m *metered) Room(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rooms++
	if m.room < 0 {
		return 0, sandbox.ErrUnsupported
	}
	return m.room, nil
}

func (m *metered) Usage(_ context.Context, inst sandbox.Instance) (sandbox.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usage[inst.ID]
	u.CPU += time.Second // that its start took
	return u, nil
}

func (m *metered) Disk(ctx context.Context, inst sandbox.Instance,
	_ sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	m.mu.Lock()
	m.measured[inst.ID]++
	used, slow, err := m.used[inst.ID], m.slow, m.broken
	m.mu.Unlock()
	if slow {
		<-ctx.Done()
		return sandbox.DiskUsage{}, context.Cause(ctx)
	}
	return used, err
}

func (m *metered) fails(slow bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow, m.broken = slow, err
}

// writes makes a sandbox use so many bytes and files more.
func (m *metered) writes(id string, bytes, files int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, used := m.usage[id], m.used[id]
	u.CPU += time.Second
	used.Bytes, used.Files = used.Bytes+bytes, used.Files+files
	m.usage[id], m.used[id] = u, used
	m.room -= max(bytes, 1<<30) // the files as well, and others of the machine
}

func (m *metered) measures(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.measured[id]
}

// rounds waits until the disk has been measured so many times more.
func (m *metered) rounds(w *world, n int) {
	w.T.Helper()
	now := func() int { m.mu.Lock(); defer m.mu.Unlock(); return m.rooms }
	until := now() + n
	w.Eventually("a look at the disk", func() bool { return now() >= until })
}

func stoppedFor(w *world, d *daemon, name string) string {
	w.T.Helper()
	info, err := d.Get(w.Ctx(), alice, name)
	if err != nil {
		w.T.Fatal(err)
	}
	return info.Reason
}

// The limit holds also where nobody knows the free space of the disk.
func TestDiskLimitWithoutRoom(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	m.room = -1
	d := w.Start()
	info, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Limits: sandbox.Limits{Disk: 1 << 30}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.used[info.ID] = sandbox.DiskUsage{Bytes: 2 << 30}
	m.usage[info.ID] = sandbox.Usage{CPU: time.Hour}
	m.mu.Unlock()
	w.Eventually("its stop", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
}

// A sandbox that wrote more than it may is stopped by name; started again it may be inspected and
// tidied up, but not filled.
func TestDiskLimit(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	d := w.Start()
	info, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Limits: sandbox.Limits{Disk: 1 << 30}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info.Limits.Disk != 1<<30 {
		t.Errorf("got limits %+v", info.Limits)
	}
	w.Eventually("its first measure", func() bool { return m.measures(info.ID) > 0 })
	w.Run(d, "true") // a shell that starts runs, too
	got := make(chan *wire.Result, 1)
	a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	// What runs next is not the shell's own beginning.
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	go func() {
		reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: untilKilled})
		if err != nil {
			t.Errorf("run: %v", err)
		}
		got <- reply.Result
	}()
	w.Eventually("the command", func() bool { return begun(a) })
	m.writes(info.ID, 2<<30, 1)
	res := <-got
	if res == nil || res.Ended != wire.Dead || !slices.Contains(res.Notes, "disk_full") {
		t.Errorf("the call that was under way: %+v, want it dead by disk_full", res)
	}
	w.Eventually("its stop", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
	if got, want := stoppedFor(w, d, "demo"),
		"disk_full: its files occupy more than 1 GiB (--disk)"; got != want {
		t.Errorf("got reason %q, want %q", got, want)
	}
	desc, err := d.Describe(w.Ctx(), alice, "demo")
	if err != nil || !strings.Contains(strings.Join(desc.Notes, "\n"), "start --disk") {
		t.Errorf("describe: %+v, %v; want it to say what to do", desc.Notes, err)
	}

	start := func() {
		t.Helper()
		before := m.measures(info.ID)
		if _, err := d.Start(w.Ctx(), alice, "demo", nil); err != nil {
			t.Fatal(err)
		}
		w.Eventually("another measure", func() bool { return m.measures(info.ID) > before })
	}
	start()
	before := m.measures(info.ID)
	m.writes(info.ID, 10<<20, 1)
	w.Eventually("a measure", func() bool { return m.measures(info.ID) > before })
	m.rounds(w, 2)
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("after a little: %s, %s", got, stoppedFor(w, d, "demo"))
	}
	desc, err = d.Describe(w.Ctx(), alice, "demo")
	if err != nil || desc.Used == nil || desc.Used.Disk != 2<<30+10<<20 ||
		!strings.Contains(strings.Join(desc.Notes, "\n"),
			"disk_full: its files occupy 2 GiB of 1 GiB") {
		t.Errorf("describe: %+v %+v, %v; want disk_full", desc.Used, desc.Notes, err)
	}
	m.writes(info.ID, 60<<20, 1)
	w.Eventually("its stop again", func() bool { return w.State(d, "demo") == lifecycle.Stopped })

	if err := d.SetDisk(w.Ctx(), bob, "demo", 4<<30); !errors.Is(err, lifecycle.ErrUnknown) {
		t.Errorf("another one raises the limit: %v", err)
	}
	wantCode(t, d.SetDisk(w.Ctx(), alice, "demo", -1), wire.CodeUsage)
	if err := d.SetDisk(w.Ctx(), alice, "demo", 4<<30); err != nil {
		t.Fatal(err)
	}
	start()
	before = m.measures(info.ID)
	m.writes(info.ID, 1<<30, 1)
	w.Eventually("a measure", func() bool { return m.measures(info.ID) > before })
	m.rounds(w, 2)
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("with a higher limit: %s, %s", got, stoppedFor(w, d, "demo"))
	}
	m.writes(info.ID, 0, 10_000_000)
	w.Eventually("its stop for files", func() bool {
		return w.State(d, "demo") == lifecycle.Stopped
	})
	if got, want := stoppedFor(w, d, "demo"),
		"disk_full: it has more than the 524288 files that go with 4 GiB (--disk)"; got != want {
		t.Errorf("got reason %q, want %q", got, want)
	}
}

// What does not work is not measured, however much the disk fills, nor what works while nothing
// goes.
func TestDiskIdle(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	d := w.Start()
	idle, busy := w.Create(d, "idle").ID, w.Create(d, "busy").ID
	w.Eventually("the first measures", func() bool {
		return m.measures(idle) > 0 && m.measures(busy) > 0
	})
	first := m.measures(idle)
	for range 5 {
		before := m.measures(busy)
		m.writes(busy, 100<<20, 1)
		w.Eventually("a measure", func() bool { return m.measures(busy) > before })
	}
	m.mu.Lock()
	u := m.usage[busy]
	u.CPU += time.Hour
	m.usage[busy] = u
	before := m.measured[busy]
	m.mu.Unlock()
	m.rounds(w, 20)
	if got := m.measures(busy); got != before {
		t.Errorf("nothing went, and it was measured %d times", got-before)
	}
	if got := m.measures(idle); got != first {
		t.Errorf("it did nothing, and was measured %d times more", got-first)
	}
}

// While there is hardly any disk left nothing is made or started, and what writes is stopped, the
// one that writes most first.
func TestDiskFloor(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	w.Options.MinFree = 10 << 30
	d := w.Start()
	a, b, c := w.Create(d, "a").ID, w.Create(d, "b").ID, w.Create(d, "c").ID
	w.Eventually("the first measures", func() bool {
		return m.measures(a) > 0 && m.measures(b) > 0 && m.measures(c) > 0
	})
	m.mu.Lock()
	for id, bytes := range map[string]int64{a: 50 << 20, b: 20 << 20, c: 0} {
		u, used := m.usage[id], m.used[id]
		u.CPU, used.Bytes = time.Second, bytes
		m.usage[id], m.used[id] = u, used
	}
	m.room = 5 << 30
	m.mu.Unlock()
	w.Eventually("the stop of what wrote most", func() bool {
		return w.State(d, "a") == lifecycle.Stopped
	})
	if got := stoppedFor(w, d, "a"); got != "disk_full: this machine has only 5 GiB of disk left "+
		"(disk.min_free is 10 GiB), and the sandbox wrote 50 MiB just now" {
		t.Errorf("got reason %q", got)
	}
	m.rounds(w, 5)
	if b, c := w.State(d, "b"), w.State(d, "c"); b != lifecycle.Running || c != lifecycle.Running {
		t.Errorf("while nothing goes any more the others are %s and %s", b, c)
	}
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "another"}, nil)
	wantCode(t, err, wire.CodeUnavailable)
	if err == nil || !strings.Contains(err.Error(), "disk.min_free is 10 GiB") {
		t.Errorf("create: %v", err)
	}
	if _, err := d.Get(w.Ctx(), alice, "another"); err == nil {
		t.Error("what was refused is there")
	}
	_, err = d.Start(w.Ctx(), alice, "a", nil)
	wantCode(t, err, wire.CodeUnavailable)
	m.writes(b, 100<<20, 1)
	w.Eventually("the stop of the next", func() bool {
		return w.State(d, "b") == lifecycle.Stopped
	})
	m.mu.Lock()
	m.room = 50 << 30
	m.mu.Unlock()
	if _, err = d.Start(w.Ctx(), alice, "a", nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if got := w.State(d, "c"); got != lifecycle.Running {
		t.Errorf("what wrote nothing is %s", got)
	}
}

// What a sandbox writes before it is measured for the first time counts, too.
func TestDiskAtOnce(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	m.born = 50 << 30
	d := w.Start()
	info := w.Create(d, "demo")
	w.Eventually("its stop", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
	if _, err := d.Start(w.Ctx(), alice, "demo", nil); err != nil {
		t.Fatal(err)
	}
	before := m.measures(info.ID)
	m.writes(info.ID, 10<<20, 1)
	w.Eventually("a measure", func() bool { return m.measures(info.ID) > before })
	m.rounds(w, 2)
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("started to be tidied up: %s, %s", got, stoppedFor(w, d, "demo"))
	}
}

// Who acts on a sandbox all the time does not keep it from being stopped.
func TestDiskWaitsForItsTurn(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	d := w.Start()
	id := w.Create(d, "demo").ID
	w.Eventually("its first measure", func() bool { return m.measures(id) > 0 })
	b := w.registry.Find("demo")
	if err := b.Lock(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	before := m.measures(id)
	m.writes(id, 50<<30, 1)
	w.Eventually("a measure", func() bool { return m.measures(id) > before })
	m.rounds(w, 3)
	b.Unlock()
	w.Eventually("its stop", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
}

// A sandbox whose disk is not known says so; one whose measuring takes too long, again and again,
// is stopped: its limit would be none.
func TestDiskNotMeasured(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	w.Options.SetDiskWithin(10 * time.Millisecond)
	d := w.Start()
	info := w.Create(d, "demo")
	notes := func() string {
		t.Helper()
		desc, err := d.Describe(w.Ctx(), alice, "demo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(desc.Notes, "\n")
	}
	w.Eventually("its first measure", func() bool { return m.measures(info.ID) > 0 })
	m.fails(false, sandbox.ErrEngine)
	for range lifecycle.DiskTries + 2 { // which is not its fault
		before := m.measures(info.ID)
		m.writes(info.ID, 1, 1)
		w.Eventually("a measure", func() bool { return m.measures(info.ID) > before })
	}
	w.Eventually("that is reported", func() bool {
		return strings.Contains(notes(), "disk_unknown: its disk has not been measured since")
	})
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("without an engine it is %s: %s", got, stoppedFor(w, d, "demo"))
	}
	m.fails(false, nil)
	m.writes(info.ID, 1, 1)
	w.Eventually("it is known again", func() bool {
		return !strings.Contains(notes(), "disk_unknown")
	})

	m.fails(true, nil)
	var reported atomic.Bool
	w.Eventually("its stop", func() bool {
		m.writes(info.ID, 1, 1)
		if strings.Contains(notes(), "measuring its files took longer than 10ms") {
			reported.Store(true)
		}
		return w.State(d, "demo") == lifecycle.Stopped
	})
	if got := stoppedFor(w, d, "demo"); !strings.HasPrefix(got,
		"disk_full: its disk usage cannot be measured") || !reported.Load() {
		t.Errorf("got reason %q, reported before: %v", got, reported.Load())
	}
}

// keepsNothing is a metered backend that saves no setup.
type keepsNothing struct {
	*metered
	sandboxtest.NoImages
}

func (keepsNothing) Prepare(context.Context, sandbox.Instance, string, sandbox.Layer) (string,
	error) {
	return "", nil
}

// A setup that fills the disk ends with its creation, for that reason; nothing is left
// behind.
func TestDiskLimitOfSetUp(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	w.Backend = keepsNothing{metered: m}
	d := w.Start()
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Limits: sandbox.Limits{Disk: 1 << 30}, Setup: []string{"echo begun; sleep 1000"}},
		func(line string) {
			if line == "  begun" {
				for id := range w.members() {
					m.writes(id, 2<<30, 1)
				}
			}
		})
	wantCode(t, err, wire.CodeUnavailable)
	if got, want := d.Public(err).Message,
		"create demo: setup: disk_full: its files occupy more than 1 GiB (--disk)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if left := w.members(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A pooled sandbox is held to its limit as well, and is not replaced at once by another that does
// the same.
func TestDiskLimitOfPool(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	m := newMetered(w)
	w.Options.Pool.Size = 1
	w.Options.Limits.Disk = 1 << 30
	d := w.Start()
	w.ready(d, 1)
	for id := range w.members() {
		m.writes(id, 2<<30, 1)
	}
	w.Eventually("it is removed", func() bool { return len(w.members()) == 0 })
	if got := d.Pool(); len(got) != 1 || got[0].Ready != 0 || !strings.Contains(got[0].Trouble,
		"disk_full: its files occupy more than 1 GiB") {
		t.Errorf("Pool = %+v", got)
	}
	if _, due, wait := w.registry.Pooled().Due(time.Now(), 1, "", 2); due || wait < 30*time.Second {
		t.Errorf("another is due in %v", wait)
	}
}
