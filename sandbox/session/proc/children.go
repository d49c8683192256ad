package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Children reports whether a process has children now, and returns a number that changes when it
// has waited for children that ended. The number is the page faults of those children
// (proc_pid_stat(5), cminflt): every process has some.
func Children(pid int) (ended uint64, live bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The name may contain ") ". Then the text after it is no number.
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
