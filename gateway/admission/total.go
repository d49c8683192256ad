package admission

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Total is what all sandboxes of the daemon may be together, whoever owns them. Hosts count, too.
// The pool has what is left, and makes room for what somebody asks for.
type Total struct {
	Sandboxes int // that exist; 0 is 1000
	Running   int // that are not stopped; 0 is what the machine can carry, see carries
}

// All is how many sandboxes there are, without the pool.
type All struct {
	Exist   int
	Running int // or about to
}

const defaultAll = 1000

// What one sandbox may take of the machine before it does anything, several times what scripts/soak
// measures: its guest, the engine's process for it, and what the engine and the daemon keep of it.
// Of files that is the half which connections of sandboxes leave.
const (
	memoryOfOne  = 32 << 20
	threadsOfOne = 64
	filesOfOne   = 16
)

// WithDefaults fills in what is not set, by what this machine has.
func (t Total) WithDefaults() Total {
	t.Sandboxes = cmp.Or(t.Sandboxes, defaultAll)
	if t.Running == 0 {
		var files syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // not known is 0
		threads := min(number("/proc/sys/kernel/pid_max", ""), number("/proc/sys/kernel/threads-max", ""))
		t.Running = carries(number("/proc/meminfo", "MemTotal:")<<10, threads, int64(min(files.Cur, 1<<30)))
	}
	t.Running = min(t.Running, t.Sandboxes)
	return t
}

// carries is how many sandboxes go with so much memory and so many threads of a machine, and so
// many files of the daemon's. What is not known is 0, and does not count.
func carries(memory, threads, files int64) int {
	most := int64(defaultAll)
	for _, has := range []struct{ all, one int64 }{{memory, memoryOfOne}, {threads, threadsOfOne}, {files, filesOfOne}} {
		if has.all > 0 {
			most = min(most, has.all/has.one)
		}
	}
	return int(max(most, 1))
}

// number reads a number of /proc: the one behind key, or the first where key is empty. It is 0
// where the file lacks it.
func number(path, key string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), key)
	if words := strings.Fields(rest); len(words) > 0 {
		n, _ := strconv.ParseInt(words[0], 10, 64) // which is 0 if it is none
		return n
	}
	return 0
}

// create says why there is no room for another sandbox that runs.
func (t Total) create(all All) error {
	if all.Exist >= t.Sandboxes {
		e := wire.Errorf(wire.CodeLimitSandboxes, "this daemon has %d sandboxes of all owners, the limit is %d (total.sandboxes)", all.Exist, t.Sandboxes)
		e.Hint = "rm one that is not needed any more, or raise total.sandboxes"
		return e
	}
	return t.start(all)
}

// start says why there is no room for one more that runs.
func (t Total) start(all All) error {
	if all.Running < t.Running {
		return nil
	}
	e := wire.Errorf(wire.CodeLimitSandboxes, "this daemon runs %d sandboxes of all owners, the limit is %d (total.running)", all.Running, t.Running)
	e.Hint = "stop or rm one that is not needed now, or raise total.running as far as the machine carries it"
	return e
}

// Pool is how many pooled sandboxes there may be beside all, and the key of the configuration that
// bounds them.
func (t Total) Pool(all All) (room int, key string) {
	if left := t.Running - all.Running; left < t.Sandboxes-all.Exist {
		return max(left, 0), "total.running"
	}
	return max(t.Sandboxes-all.Exist, 0), "total.sandboxes"
}
