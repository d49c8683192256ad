// Package usage reads a container's resource use from the kernel: counters of its control groups,
// and the size of its files. It asks neither the engine nor programs of the container.
package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// groupsOf reads the control groups of pid, a process of the container ref, from proc(5). It
// returns ErrStopped if there is no such process, or if pid now belongs to another container.
func groupsOf(pid int, ref string) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", sandbox.ErrStopped, err)
	case !strings.Contains(string(text), ref):
		return "", fmt.Errorf("%w: process %d belongs to something else", sandbox.ErrStopped, pid)
	}
	return string(text), nil
}

// Counters reads the counters of a container's control groups, of either version (cgroups(7)). pid
// is one of its processes, ref its ID. A counter that cannot be read is 0. It returns ErrStopped if
// pid is not a process of that container.
func Counters(pid int, ref string) (sandbox.Usage, error) {
	text, err := groupsOf(pid, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return countersIn(text), nil
}

// CountersOf is Counters of the control groups at path, below the root of each hierarchy. They
// outlive their processes until they are removed.
func CountersOf(path string) sandbox.Usage {
	return countersIn("0::" + path + "\n1:memory:" + path + "\n2:pids:" + path + "\n3:cpuacct:" +
		path + "\n")
}

func countersIn(text string) (u sandbox.Usage) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(parts) != 3 || parts[2] == "/" {                  // the root group is the machine's
			continue
		}
		one := func(controller string) string {
			return filepath.Join("/sys/fs/cgroup", controller, parts[2])
		}
		for _, controller := range strings.Split(parts[1], ",") {
			switch controller {
			case "": // version 2; or systemd's own hierarchy of version 1, without these files
				u.Memory = max(u.Memory, counter(one("")+"/memory.current", ""))
				u.OOMKills = max(u.OOMKills, counter(one("")+"/memory.events", "oom_kill"))
				u.PIDs = max(u.PIDs, counter(one("")+"/pids.current", ""))
				u.PIDsRefused = max(u.PIDsRefused, counter(one("")+"/pids.events", "max"))
				u.CPU = max(u.CPU, time.Duration(
					counter(one("")+"/cpu.stat", "usage_usec"))*time.Microsecond)
			case "memory":
				u.Memory = counter(one("memory")+"/memory.usage_in_bytes", "")
				u.OOMKills = counter(one("memory")+"/memory.oom_control", "oom_kill")
			case "pids":
				u.PIDs = counter(one("pids")+"/pids.current", "")
				u.PIDsRefused = counter(one("pids")+"/pids.events", "max")
			case "cpuacct":
				u.CPU = time.Duration(counter(one("cpuacct")+"/cpuacct.usage", ""))
			}
		}
	}
	return u
}

// counter reads a file that contains a number, or lines of a key and a number. A missing value is
// 0.
func counter(file, key string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if key == "" {
			words = append([]string{""}, words...)
		}
		if len(words) == 2 && words[0] == key {
			n, _ := strconv.ParseInt(words[1], 10, 64) // the kernel writes only numbers
			return n
		}
	}
	return 0
}

// Processes lists the processes of a container, given one of them. It is empty if pid is not one.
func Processes(pid int, ref string) []int {
	text, err := groupsOf(pid, ref)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "" &&
			!slices.Contains(strings.Split(parts[1], ","), "pids") {
			continue
		}
		controller := ""
		if parts[1] != "" {
			controller = "pids"
		}
		list, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, parts[2],
			"cgroup.procs"))
		if err != nil {
			continue // of the other cgroup version
		}
		var pids []int
		for _, word := range strings.Fields(string(list)) {
			if n, err := strconv.Atoi(word); err == nil {
				pids = append(pids, n)
			}
		}
		return pids
	}
	return nil
}

// Frozen reports whether a container is paused, given one of its processes and its ID. It is false
// if pid is not one.
func Frozen(pid int, ref string) bool {
	text, err := groupsOf(pid, ref)
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(parts) != 3 {
			continue
		}
		switch parts[1] {
		case "freezer":
			state, _ := os.ReadFile("/sys/fs/cgroup/freezer" + parts[2] + "/freezer.state")
			return strings.TrimSpace(string(state)) == "FROZEN"
		case "": // version 2, or none of the controllers
			if counter("/sys/fs/cgroup"+parts[2]+"/cgroup.events", "frozen") == 1 {
				return true
			}
		}
	}
	return false
}
