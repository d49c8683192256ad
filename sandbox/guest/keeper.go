//go:build linux

package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors of a keeper besides the terminal on 0, 1 and 2.
const (
	keeperSpecFD   = 3 // read: keeperSpec as JSON, to the end
	keeperStatusFD = 4 // write: "pid N", then "exit STATUS", or "error TEXT"; one line each
	keeperFilesFD  = 5 // files to pass on, in order
)

// keeperSpec is the process that a keeper starts.
type keeperSpec struct {
	Path   string
	Argv   []string
	Env    []string
	Dir    string
	Files  []int // descriptors for the inherited files, in order
	Switch bool  // to UID, GID, Groups
	UID    uint32
	GID    uint32
	Groups []uint32
}

// runKeeper is the parent of a session's shell. As a subreaper it inherits all orphans of the
// shell's descendants (PR_SET_CHILD_SUBREAPER, prctl(2)), also those that left the session with
// setsid. So one process is the ancestor of everything that a session started. It reports the
// shell's end and exits with the last descendant.
func runKeeper() int {
	// Handled and dropped; children would inherit ignored ones. Not even a hang-up ends a keeper.
	signal.Notify(make(chan os.Signal, 1), allSignals()...)
	status := os.NewFile(keeperStatusFD, "status")
	defer status.Close()
	unix.CloseOnExec(keeperStatusFD)
	pid, err := keep()
	if err != nil {
		fmt.Fprintf(status, "error %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	fmt.Fprintf(status, "pid %d\n", pid)
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0 // ECHILD: no descendant is left
		case got == pid:
			fmt.Fprintf(status, "exit %d\n", uint32(ws))
		}
	}
}

// keep reads the specification, starts the process and closes everything that only the process
// needs.
func keep() (pid int, err error) {
	err = errors.Join(
		// Other processes must not take the shell's descriptors from this process.
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	if err != nil {
		return 0, fmt.Errorf("prctl: %w", err)
	}
	var spec keeperSpec
	pipe := os.NewFile(keeperSpecFD, "spec")
	b, err := io.ReadAll(pipe)
	pipe.Close()
	if err == nil {
		err = json.Unmarshal(b, &spec)
	}
	if err != nil {
		return 0, fmt.Errorf("specification: %w", err)
	}
	files := []uintptr{0, 1, 2}
	for i, fd := range spec.Files {
		for len(files) <= fd {
			files = append(files, ^uintptr(0)) // closed
		}
		unix.CloseOnExec(keeperFilesFD + i)
		files[fd] = uintptr(keeperFilesFD + i)
	}
	c := command{path: spec.Path, argv: spec.Argv, env: spec.Env, dir: spec.Dir, files: files,
		ctty: true}
	if spec.Switch {
		c.account = &syscall.Credential{Uid: spec.UID, Gid: spec.GID, Groups: spec.Groups}
	}
	pid, err = fork(c)
	// The terminal ends when its programs have closed it, so its keeper must not hold it.
	null, nerr := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := range 3 {
		if nerr != nil || unix.Dup3(null, fd, 0) != nil {
			unix.Close(fd)
		}
	}
	for i := range spec.Files {
		unix.Close(keeperFilesFD + i)
	}
	return pid, err
}

// keeperReport reads a keeper's reports, line by line.
type keeperReport struct {
	lines *bufio.Reader
}

// pid returns the process ID of the session's shell, or why there is none.
func (r keeperReport) pid() (int, error) {
	word, rest, err := r.next()
	switch {
	case err != nil:
		return 0, fmt.Errorf("keeper ended: %w", err)
	case word == "error":
		return 0, errors.New(rest)
	case word != "pid":
		return 0, fmt.Errorf("keeper said %q", word)
	}
	return strconv.Atoi(rest)
}

// exit returns how the shell ended; io.EOF if the keeper was killed first.
func (r keeperReport) exit() (unix.WaitStatus, error) {
	word, rest, err := r.next()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(rest, 10, 32)
	if word != "exit" || err != nil {
		return 0, fmt.Errorf("keeper said %q", word)
	}
	return unix.WaitStatus(n), nil
}

func (r keeperReport) next() (word, rest string, err error) {
	line, err := r.lines.ReadString('\n')
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return "", "", err
	}
	word, rest, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	return word, rest, nil
}
