package machine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ErrCovered is returned for a container whose first process may not be the guest.
var ErrCovered = sandbox.Hint(
	errors.New("a link in the sandbox's files leads a mount over the guest program"),
	"fork the sandbox without mounts, or rm it")

// CheckProgram returns an error unless the guest program at path is what the container started as
// its first process, pid. The runtime follows links in the container's files: one at the target of
// a mount can lead it over the program, and root in the sandbox or the image can leave such a link.
//
// The first process is not trusted here. It cannot mount, and after a chroot it does not have the
// program at path.
func CheckProgram(pid int, path string) error {
	points, err := mountPoints(pid)
	if err != nil {
		return fmt.Errorf("check guest program: %w", err)
	}
	return covered(points, path)
}

// covered returns ErrCovered unless each of the directories that lead to path is mounted at most
// once, path itself once, and nothing else below its directory.
func covered(points []string, path string) error {
	seen := make(map[string]int)
	for _, point := range points {
		if seen[point]++; Within(path, point) && seen[point] > 1 ||
			Within(point, GuestBin) && point != path {
			return ErrCovered
		}
	}
	if seen["/"] != 1 || seen[path] != 1 || seen[GuestBin] > 0 {
		return ErrCovered
	}
	return nil
}

// mountPoints returns where file systems are mounted, as process pid sees it. Spaces and control
// characters are octal escapes (proc_pid_mountinfo(5)).
func mountPoints(pid int) (points []string, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points, nil
}
