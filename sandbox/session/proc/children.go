package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Children returns a number that has changed when children of a process have ended and were waited
// for – the page faults of these, which each has (proc_pid_stat(5), cminflt) – and whether it has
// children now.
func Children(pid int) (ended uint64, live bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// A name may hold ") ", and then what follows is no number.
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 10 {
		return 0, false, errors.New("stat: too short")
	}
	if ended, err = strconv.ParseUint(string(fields[8]), 10, 64); err != nil {
		return 0, false, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	return ended, len(bytes.TrimSpace(children)) > 0, err
}
