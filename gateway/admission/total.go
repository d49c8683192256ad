package admission

import (
	"cmp"
	"os"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Total bounds all sandboxes of the daemon, of all owners. Hosts count, too. The pool uses the
// rest, and shrinks for requested sandboxes.
type Total struct {
	Sandboxes int // existing; 0 is 1000
	Running   int // not stopped; 0 is the capacity of the machine, see carries
}

// All is the number of sandboxes, without the pool.
type All struct {
	Exist   int
	Running int // or starting
}

const defaultAll = 1000

// The resources of the machine that an idle sandbox may take, several times what scripts/soak
// measures: its guest, the engine's process for it, and the memory of the engine and the daemon for
// it. Of files, sandboxes get the half that their connections leave.
const (
	memoryOfOne  = 32 << 20
	threadsOfOne = 64
	filesOfOne   = 16
)

// WithDefaults sets fields that are zero, by the resources of this machine.
func (t Total) WithDefaults() Total {
	t.Sandboxes = cmp.Or(t.Sandboxes, defaultAll)
	if t.Running == 0 {
		threads := min(number("/proc/sys/kernel/pid_max", ""),
			number("/proc/sys/kernel/threads-max", ""))
		t.Running = carries(number("/proc/meminfo", "MemTotal:")<<10, threads,
			MaxFiles())
	}
	t.Running = min(t.Running, t.Sandboxes)
	return t
}

// carries returns how many sandboxes fit the memory and threads of a machine, and the file limit of
// the daemon. An unknown resource is 0, and does not count.
func carries(memory, threads, files int64) int {
	most := int64(defaultAll)
	for _, has := range []struct{ all, one int64 }{{memory, memoryOfOne}, {threads, threadsOfOne},
		{files, filesOfOne}} {
		if has.all > 0 {
			most = min(most, has.all/has.one)
		}
	}
	return int(max(most, 1))
}

// number returns a number in a file of /proc: the one after key, or the first if key is empty. It
// is 0 if there is none.
func number(path, key string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), key)
	if words := strings.Fields(rest); len(words) > 0 {
		n, _ := strconv.ParseInt(words[0], 10, 64) // 0 if invalid
		return n
	}
	return 0
}

// create returns why another running sandbox is not allowed.
func (t Total) create(all All) error {
	if all.Exist >= t.Sandboxes {
		e := wire.Errorf(wire.CodeLimitSandboxes,
			"this daemon has %d sandboxes of all owners; the limit is %d (total.sandboxes)",
			all.Exist, t.Sandboxes)
		e.Hint = "remove one with sandboxd rm, or raise total.sandboxes"
		return e
	}
	return t.start(all)
}

// start returns why another running sandbox is not allowed.
func (t Total) start(all All) error {
	if all.Running < t.Running {
		return nil
	}
	e := wire.Errorf(wire.CodeLimitSandboxes,
		"this daemon runs %d sandboxes of all owners; the limit is %d (total.running)", all.Running,
		t.Running)
	e.Hint = "stop or rm one, or raise total.running if the machine has the capacity"
	return e
}

// Pool returns how many pooled sandboxes there may be in addition to all, and the configuration key
// of that limit.
func (t Total) Pool(all All) (room int, key string) {
	if left := t.Running - all.Running; left < t.Sandboxes-all.Exist {
		return max(left, 0), "total.running"
	}
	return max(t.Sandboxes-all.Exist, 0), "total.sandboxes"
}
