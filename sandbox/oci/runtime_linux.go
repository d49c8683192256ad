package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// runtimeNames are the runtimes that this package knows, the preferred one first. crun starts a
// container in half of runc's time, but Docker has runc, whose filters know more system calls.
var runtimeNames = []string{"runc", "crun"}

// runtimeTime bounds one call of a runtime.
const runtimeTime = 60 * time.Second

// runtimes calls OCI runtimes. Their command line is the one of runc(8).
type runtimes struct {
	root   string // directory with the state of containers
	byUser bool   // the service manager of an ordinary user makes control groups

	mu     sync.Mutex
	loaded bool // guarded by mu; the kernel has our AppArmor profile
}

// find returns the name of a runtime of this machine: isolation, or the preferred one when that is
// empty.
func (r *runtimes) find(isolation string) (string, error) {
	if slices.Contains(runtimeNames, isolation) {
		return isolation, usable(isolation, groupsRoot)
	}
	if isolation != "" {
		return "", sandbox.Hint(fmt.Errorf("isolation %q: %w: without an engine it is runc or crun",
			isolation, sandbox.ErrUnsupported), "omit it, or install Docker")
	}
	var why error
	for _, name := range runtimeNames {
		err := usable(name, groupsRoot)
		if err == nil {
			return name, nil
		}
		if why != nil {
			err = fmt.Errorf("%w; %w", why, err)
		}
		why = err
	}
	return "", why
}

// usable returns an error if a runtime is not installed, or is known not to work here. groups is
// where control groups are mounted: if those of version 1 and 2 both are, crun insists that version
// 2 has no controllers.
func usable(name, groups string) error {
	if _, err := exec.LookPath(name); err != nil {
		return sandbox.Hint(fmt.Errorf("%s: %w: it is not installed", name, sandbox.ErrUnsupported),
			"install it: apt-get install "+name)
	}
	if name != "crun" {
		return nil
	}
	controllers, _ := os.ReadFile(filepath.Join(groups, "unified", "cgroup.controllers"))
	if len(controllers) == 0 { // or version 2 is not there
		return nil
	}
	return sandbox.Hint(fmt.Errorf("crun: %w: some controllers of control groups have version 1, "+
		"and others version 2: %s", sandbox.ErrUnsupported, bytes.TrimSpace(controllers)),
		"use runc: omit --isolation; if it is not installed: apt-get install runc")
}

// checkFiltered returns an error if a guest has no filter of system calls besides its own, which it
// has with own: a crun that was built without libseccomp starts containers without one.
func checkFiltered(pid int, own bool) error {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status") // proc_pid_status(5)
	if err != nil {
		return fmt.Errorf("filter of system calls: %w", err)
	}
	mine, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("filter of system calls: %w", err)
	}
	least := 1
	if own {
		least = 2
	}
	if !filtered(string(status), string(mine), least) {
		return errors.New("filter of system calls: the container has none")
	}
	return nil
}

// filtered reports whether a process has at least so many filters besides those of mine, which it
// inherits.
func filtered(status, mine string, least int) bool {
	_, inherited := filters(mine)
	some, n := filters(status)
	return some && (n < 0 || n >= max(inherited, 0)+least)
}

// filters reads from a status of proc_pid_status(5) whether a process has filters of system calls,
// and how many. The number is -1 before Linux 5.9, which does not count them.
func filters(status string) (some bool, n int) {
	n = -1
	for line := range strings.Lines(status) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t"); key {
		case "Seccomp":
			some = value == "2"
		case "Seccomp_filters":
			n, _ = strconv.Atoi(value) // the kernel writes only numbers
		}
	}
	return some, n
}

// call runs a runtime. The container gets stdin and out, if they are set. The error has the
// runtime's own text.
func (r *runtimes) call(ctx context.Context, name string, stdin, out *os.File,
	args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runtimeTime,
		fmt.Errorf("%s %s: not done within %v", name, args[0], runtimeTime))
	defer cancel()
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return err
	}
	log, err := os.CreateTemp(r.root, ".log-*")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	global := []string{"--root", r.root, "--log-format", "json", "--log", log.Name()}
	if r.byUser {
		global = append(global, "--systemd-cgroup")
	}
	cmd := exec.CommandContext(ctx, name, append(global, args...)...)
	if stdin != nil { // a nil *os.File is no nil io.Reader
		cmd.Stdin = stdin
	}
	if out != nil {
		cmd.Stdout, cmd.Stderr = out, out
	}
	err = cmd.Run()
	if err == nil {
		return nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return sandbox.Hint(fmt.Errorf("%s: %w", name, err),
			"the sandbox was made with it; install it again: apt-get install "+name)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, _ := io.ReadAll(io.LimitReader(log, maxLog))
	if why := lastError(entries); why != "" {
		return fmt.Errorf("%s %s: %s", name, args[0], why)
	}
	return fmt.Errorf("%s %s: %w", name, args[0], err)
}

// maxLog bounds what is read of a runtime's log, in bytes; maxWhy what is shown of it.
const (
	maxLog = 64 << 10
	maxWhy = 500
)

// lastError returns the last error in a runtime's log, safe to display; "" if there is none.
func lastError(log []byte) (last string) {
	for dec := json.NewDecoder(bytes.NewReader(log)); ; {
		var entry struct{ Level, Msg string }
		if dec.Decode(&entry) != nil {
			return text.End(last, maxWhy) // the reason is at its end
		}
		if entry.Level == "error" {
			last = entry.Msg
		}
	}
}
