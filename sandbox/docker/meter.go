package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Usage reads the control groups of a container. See sandbox.Meter.
func (b *Backend) Usage(ctx context.Context, inst sandbox.Instance) (sandbox.Usage, error) {
	pid, err := b.firstProcess(ctx, inst)
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("usage of %s: %w", inst.ID, err)
	}
	u, err := usageOf(pid, inst.Ref)
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", inst.ID, err)
	}
	return u, nil
}

// firstProcess is the first process of a container that runs, as its door knows it already, or as the engine does.
func (b *Backend) firstProcess(ctx context.Context, inst sandbox.Instance) (int, error) {
	if pid := b.sockets.PID(inst.ID); pid != 0 {
		return pid, nil
	}
	c, err := b.container(ctx, refOf(inst))
	switch {
	case err != nil:
		return 0, err
	case !c.State.Running || c.State.Pid == 0:
		return 0, sandbox.ErrStopped
	}
	return c.State.Pid, nil
}

// groupsOf is what proc(5) says of the control groups of pid, a process of the container ref. Its number may be another's by now.
func groupsOf(pid int, ref string) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", sandbox.ErrStopped, err)
	case !strings.Contains(string(text), ref):
		return "", fmt.Errorf("%w: process %d is another's", sandbox.ErrStopped, pid)
	}
	return string(text), nil
}

// usageOf reads the counters of the control groups of a container, of either version (cgroups(7)), by one of its processes.
// One that cannot be seen is 0.
func usageOf(pid int, ref string) (sandbox.Usage, error) {
	text, err := groupsOf(pid, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	var u sandbox.Usage
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(parts) != 3 || parts[2] == "/" {                  // the root's are the machine's, not a container's
			continue
		}
		one := func(controller string) string { return filepath.Join("/sys/fs/cgroup", controller, parts[2]) }
		for _, controller := range strings.Split(parts[1], ",") {
			switch controller {
			case "": // version 2, or the named hierarchy of systemd beside version 1, where nothing below is found
				u.Memory = max(u.Memory, counter(one("")+"/memory.current", ""))
				u.OOMKills = max(u.OOMKills, counter(one("")+"/memory.events", "oom_kill"))
				u.PIDs = max(u.PIDs, counter(one("")+"/pids.current", ""))
				u.PIDsRefused = max(u.PIDsRefused, counter(one("")+"/pids.events", "max"))
				u.CPU = max(u.CPU, time.Duration(counter(one("")+"/cpu.stat", "usage_usec"))*time.Microsecond)
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
	return u, nil
}

// counter reads a file that holds a number, or lines of a key and a number. What is not there is 0.
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
			n, _ := strconv.ParseInt(words[1], 10, 64) // the kernel writes numbers
			return n
		}
	}
	return 0
}

// processesOf are the processes of a container. Groups below its own it cannot make.
func processesOf(pid int, ref string) []int {
	text, err := groupsOf(pid, ref)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "" && !slices.Contains(strings.Split(parts[1], ","), "pids") {
			continue
		}
		controller := ""
		if parts[1] != "" {
			controller = "pids"
		}
		list, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, parts[2], "cgroup.procs"))
		if err != nil {
			continue // the other version's
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

// Room is what is free on the engine's disk. See sandbox.Meter.
func (b *Backend) Room(ctx context.Context) (int64, error) {
	f, err := b.facts(ctx)
	if err != nil {
		return 0, fmt.Errorf("room: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(f.root, &fs); err != nil {
		return 0, fmt.Errorf("room: %s: %w", f.root, os.NewSyscallError("statfs", err))
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
