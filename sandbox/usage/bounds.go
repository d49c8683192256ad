package usage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Bounds are the limits that the kernel enforces on a control group. A limit that is not set, or
// cannot be read, is infinite.
type Bounds struct {
	Memory, PIDs, CPUs float64 // bytes, processes and threads, cores
}

// BoundsOf reads the limits of a container's own control groups, of either version (cgroups(7)),
// from the kernel. pid is one of its processes, ref its ID: a group whose name lacks it is not its
// own, and does not count. It returns an error if there is no such process, or if its groups are
// not visible here because this process has a control group namespace of its own.
func BoundsOf(pid int, ref string) (Bounds, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return Bounds{}, err
	}
	if strings.Contains(string(text), ":/../") {
		return Bounds{}, errors.New("the daemon has a control group namespace of its own")
	}
	return boundsIn("/sys/fs/cgroup", string(text), ref), nil
}

// Enforced returns an error if the process pid of the container ref does not have the limits l.
func Enforced(pid int, ref string, l sandbox.Limits) error {
	got, err := BoundsOf(pid, ref)
	if err != nil {
		return sandbox.Hint(
			fmt.Errorf("limits: %w: they cannot be read: %w", sandbox.ErrUnsupported, err),
			"a daemon in a container needs the machine's processes and control groups (--pid host "+
				"--cgroupns host)")
	}
	const hundredth = 0.01 // of a processor: systemd rounds
	var ignored []string
	for _, limit := range []struct {
		of          string
		asked, kept float64
	}{
		{"memory", float64(l.Memory), got.Memory},
		{"processes", float64(l.PIDs), got.PIDs},
		{"cpus", l.CPUs + hundredth, got.CPUs},
	} {
		if limit.kept > limit.asked {
			ignored = append(ignored, limit.of)
		}
	}
	if len(ignored) == 0 {
		return nil
	}
	return sandbox.Hint(
		fmt.Errorf("limits: %w: the engine started the container without those of %s",
			sandbox.ErrUnsupported, strings.Join(ignored, ", ")),
		"as an ordinary user, give it the controllers memory, pids and cpu "+
			"(docs/how-to/without-docker.md); or run the engine, or the daemon, as root")
}

// boundsIn reads the limits of the groups in text, which has the form of /proc/PID/cgroup, below
// root. A runtime may put programs into a group below that of the container.
func boundsIn(root, text, ref string) Bounds {
	inf := math.Inf(1)
	b := Bounds{inf, inf, inf}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		for path := parts[2]; strings.Contains(path, ref); path = filepath.Dir(path) {
			words := func(controller, file string) []string {
				text, _ := os.ReadFile(filepath.Join(root, controller, path, file))
				return append(strings.Fields(string(text)), "", "")
			}
			if parts[1] == "" { // version 2
				b.Memory = min(b.Memory, limit(words("", "memory.max")[0]))
				b.PIDs = min(b.PIDs, limit(words("", "pids.max")[0]))
				cpu := words("", "cpu.max")
				b.CPUs = min(b.CPUs, limit(cpu[0])/number(cpu[1]))
			}
			if slices.Contains(controllers, "memory") {
				b.Memory = min(b.Memory, limit(words("memory", "memory.limit_in_bytes")[0]))
			}
			if slices.Contains(controllers, "pids") {
				b.PIDs = min(b.PIDs, limit(words("pids", "pids.max")[0]))
			}
			if slices.Contains(controllers, "cpu") {
				b.CPUs = min(b.CPUs, limit(words("cpu", "cpu.cfs_quota_us")[0])/
					number(words("cpu", "cpu.cfs_period_us")[0]))
			}
		}
	}
	return b
}

// limit reads a limit; max, -1 and what is no number are infinite.
func limit(word string) float64 {
	if n, err := strconv.ParseInt(word, 10, 64); err == nil && n >= 0 {
		return float64(n)
	}
	return math.Inf(1)
}

// number reads a divisor; what is no number is 1, so that an infinite limit stays infinite.
func number(word string) float64 {
	if n, err := strconv.ParseInt(word, 10, 64); err == nil && n > 0 {
		return float64(n)
	}
	return 1
}
