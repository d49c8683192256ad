package gateway

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Total is what there may be of all sandboxes of the daemon, whoever's they are. Hosts count, too. What stands ready in the pool has what
// is left of it, and makes room for what somebody asks for.
type Total struct {
	Sandboxes int // that exist; 0 is 1000
	Running   int // that are not stopped; 0 is what the machine can carry, see carries
}

const defaultAll = 1000

// What one sandbox may take of the machine before it does anything, several times what scripts/soak measures: its guest, the engine's process
// for it, and what the engine and the daemon keep of it. Of files that is the half which connections of sandboxes leave.
const (
	memoryOfOne  = 32 << 20
	threadsOfOne = 64
	filesOfOne   = 16
)

// withDefaults fills in what is not said.
func (t Total) withDefaults() Total {
	t.Sandboxes = cmp.Or(t.Sandboxes, defaultAll)
	if t.Running == 0 {
		var files syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // not known is 0
		t.Running = carries(number("/proc/meminfo", "MemTotal:")<<10, min(number("/proc/sys/kernel/pid_max", ""), number("/proc/sys/kernel/threads-max", "")),
			int64(min(files.Cur, 1<<30)))
	}
	t.Running = min(t.Running, t.Sandboxes)
	return t
}

// carries is how many sandboxes go with so much memory and so many threads of a machine, and so many files of the daemon's. What is not known
// is 0, and does not count.
func carries(memory, threads, files int64) int {
	most := int64(defaultAll)
	for _, has := range []struct{ all, one int64 }{{memory, memoryOfOne}, {threads, threadsOfOne}, {files, filesOfOne}} {
		if has.all > 0 {
			most = min(most, has.all/has.one)
		}
	}
	return int(max(most, 1))
}

// number reads a number of /proc: the one behind key, or the first where there is none. It is 0 where the file does not have it.
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

// allLocked counts the sandboxes of all owners, and those that run or are about to, without the pool and without but. It is called with mu
// held.
func (h *Hub) allLocked(but *box) (exist, running int) {
	for _, b := range h.boxes {
		f := b.get()
		if b == but || f.isPooled() {
			continue
		}
		exist++
		if f.state != Stopped || h.starting[b] {
			running++
		}
	}
	return exist, running
}

// totalLocked returns an error with code limit_sandboxes if there is no room for another sandbox that runs: for self, which exists and is
// stopped, or for a new one if that is nil. It is called with mu held.
func (h *Hub) totalLocked(self *box) error {
	most := h.options.Total
	exist, running := h.allLocked(self)
	switch {
	case self == nil && exist >= most.Sandboxes:
		e := wire.Errorf(wire.CodeLimitSandboxes, "this daemon has %d sandboxes of all owners, the limit is %d (total.sandboxes)", exist, most.Sandboxes)
		e.Hint = "rm one that is not needed any more, or raise total.sandboxes"
		return e
	case running >= most.Running:
		e := wire.Errorf(wire.CodeLimitSandboxes, "this daemon runs %d sandboxes of all owners, the limit is %d (total.running)", running, most.Running)
		e.Hint = "stop or rm one that is not needed now, or raise total.running as far as the machine carries it"
		return e
	}
	return nil
}

// poolRoom is how many may stand ready beside what people have, and the key of what bounds them.
func (h *Hub) poolRoom() (room int, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	exist, running := h.allLocked(nil)
	most := h.options.Total
	if left := most.Running - running; left < most.Sandboxes-exist {
		return max(left, 0), "total.running"
	}
	return max(most.Sandboxes-exist, 0), "total.sandboxes"
}
