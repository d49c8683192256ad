//go:build linux

package guest

import (
	"bytes"
	"os"
	"slices"
	"strconv"
)

// process is a line of /proc/PID/stat.
type process struct {
	pid, parent, group, session int
	zombie                      bool
}

// processes lists the processes in /proc, without those that end meanwhile.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // the names that were read count
	var all []process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// living returns the running processes that wanted accepts, in order.
func living(wanted func(process) bool) []int {
	var pids []int
	for _, p := range processes() {
		if !p.zombie && wanted(p) {
			pids = append(pids, p.pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// readProcess reads /proc/PID/stat (proc(5)).
func readProcess(pid int) (process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, b)
}

func parseStat(pid int, b []byte) (process, bool) {
	// The name may contain anything, also parentheses, so fields count from the last one.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return process{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 4 {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	group, err2 := strconv.Atoi(string(f[2]))
	session, err3 := strconv.Atoi(string(f[3]))
	if err1 != nil || err2 != nil || err3 != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, group: group, session: session,
		zombie: f[0][0] == 'Z' || f[0][0] == 'X'}, true
}

// tree returns the living descendants of the given processes, without these, in order.
func tree(roots ...int) []int {
	byParent := make(map[int][]process)
	for _, p := range processes() {
		byParent[p.parent] = append(byParent[p.parent], p)
	}
	var pids []int
	seen := make(map[int]bool)
	for queue := roots; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue // the number was reused during the read
		}
		seen[queue[0]] = true
		for _, p := range byParent[queue[0]] {
			queue = append(queue, p.pid)
			if !p.zombie {
				pids = append(pids, p.pid)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// other returns the processes of the sandbox besides the guest: all others for PID 1, but for those
// that carry a connection of the daemon; for a guest inside another program those that it started,
// and their descendants.
func (g *Guest) other() []int {
	if g.pid1 {
		return living(func(p process) bool { return p.pid != os.Getpid() && !g.isCarrier(p) })
	}
	pids := g.children.pids()
	return append(pids, tree(pids...)...)
}
