//go:build linux

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	healthTimeout = 5 * time.Second
	rescueTimeout = 3 * time.Second
	defaultGrace  = 10 * time.Second
	replyPatience = time.Second // for a connection that takes nothing
	maxGrace      = 10 * time.Minute
)

// Control carries out an order of the daemon: hello, health, rescue, stop, name or trust, and calls
// reply once with the answer. For stop, it calls reply first, begins to stop when that returns or
// blocks, and returns; Stopped reports the end.
func (g *Guest) Control(ctx context.Context, ctl wire.Control, reply func(wire.ControlReply)) {
	answer := g.control(ctx, ctl)
	if ctl.Do != "stop" {
		reply(answer)
		return
	}
	answered := make(chan struct{})
	go func() { // ends with the connection at the latest
		defer close(answered)
		reply(answer)
	}()
	select {
	case <-answered:
	case <-time.After(replyPatience):
	}
	grace := min(time.Duration(ctl.GraceMS)*time.Millisecond, maxGrace)
	if grace <= 0 {
		grace = defaultGrace
	}
	g.stop.Do(func() { go g.carryOutStop(grace) }) // ends with the guest, which it stops
}

func (g *Guest) control(ctx context.Context, ctl wire.Control) wire.ControlReply {
	answer := wire.ControlReply{Version: wire.Version, Software: Software}
	switch ctl.Do {
	case "hello", "stop":
	case "health":
		answer.Health = g.health(ctx)
	case "rescue":
		answer.Killed = g.rescue(cmp.Or(ctl.Reason, rescued))
	case "name":
		if _, err := wire.ParseSandbox(ctl.Name); err != nil || !g.sessions.SetName(ctl.Name) {
			answer.Error = wire.Errorf(wire.CodeDenied,
				"the sandbox already has a name, or the name is invalid")
			break
		}
		resolveHostname(ctl.Name)
	case "trust":
		answer.Error = g.trust(ctl.Authorities)
	default:
		answer.Error = wire.Errorf(wire.CodeUnavailable, "this guest does not support %q", ctl.Do)
	}
	return answer
}

// resolveHostname makes this machine's host name resolve, if it is name: the engine wrote the files
// for the name that the sandbox was made with. Programs such as sudo look it up. It is no error if
// an image or an engine without these files has no such names.
func resolveHostname(name string) {
	if now, err := os.Hostname(); err != nil || now != name || os.Getpid() != 1 {
		return
	}
	line := "127.0.1.1\t" + name + "\n"
	hosts, err := os.ReadFile("/etc/hosts")
	if err == nil && !strings.Contains(string(hosts), line) {
		if f, err := os.OpenFile("/etc/hosts", os.O_WRONLY|os.O_APPEND, 0); err == nil {
			_, _ = f.WriteString(line) // appended: a full disk must not cost the other names
			f.Close()
		}
		_ = os.WriteFile("/etc/hostname", []byte(name+"\n"), 0o644)
	}
}

// trust replaces the certificate authorities besides those of the configuration.
func (g *Guest) trust(authorities string) *wire.Error {
	if g.config.Authorities == "" {
		return wire.Errorf(wire.CodeDenied, "this sandbox trusts the authorities of its image")
	}
	g.trusting.Lock()
	defer g.trusting.Unlock()
	if err := writeAuthorities(g.config.Authorities + authorities); err != nil {
		return wire.Errorf(wire.CodeUnavailable, "certificate authorities: %v", err)
	}
	return nil
}

// health returns "ok", or why no command can run; it tries by running one. The answer itself needs
// no process.
func (g *Guest) health(ctx context.Context) string {
	a := g.user()
	shell := shellOf(a)
	var err error
	switch {
	case shell != "":
		err = g.try(ctx, a, shell, base(shell), "-c", "exit 0")
	case g.hadShell:
		return "broken: no shell: the user's shell, /bin/bash and /bin/sh are missing"
	default: // an image without a shell: programs run by path
		err = g.try(ctx, a, g.exe, Name, "true")
	}
	switch {
	case errors.Is(err, syscall.EAGAIN) || pidsFull():
		return "limit_pids: almost no further process can start; rescue kills the running ones"
	case err != nil:
		return "broken: " + err.Error()
	}
	return "ok"
}

// pidsReserve is how many processes a usable sandbox must be able to start: a shell and its
// command. A program with several threads dies with fewer.
const pidsReserve = 8

// pidsFull reports whether the sandbox has almost reached its limit of processes, according to its
// control group.
func pidsFull() bool {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		current, err1 := readCount(dir + "/pids.current")
		most, err2 := readCount(dir + "/pids.max") // "max" is not a number: no limit
		if err1 == nil && err2 == nil {
			return current+pidsReserve > most
		}
	}
	return false
}

func readCount(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// try runs a short program without input and output.
func (g *Guest) try(ctx context.Context, a Account, path string, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	fd := null.Fd()
	proc, err := g.children.start(command{path: path, argv: argv, env: g.environment(a, shellOf(a)),
		dir:   "/",
		files: []uintptr{fd, fd, fd}, account: g.credential(a)})
	if err != nil {
		return err
	}
	select {
	case <-proc.done:
	case <-ctx.Done():
		_ = g.children.signal(proc, unix.SIGKILL) // ignores a process that ended meanwhile
		return fmt.Errorf("%s did not end in time", path)
	}
	if proc.status != 0 {
		return fmt.Errorf("%s ended with status %#x", path, int(proc.status))
	}
	return nil
}

// rescue kills every process of the sandbox but PID 1, at once and without starting one, and
// returns how many there were. A fork bomb cannot outrun it (see killAll). It ends sessions, and
// leaves files and the guest untouched.
func (g *Guest) rescue(reason string) int {
	before := len(g.other())
	terminals := g.running()
	for _, t := range terminals {
		t.because(reason)
	}
	g.killAll()
	g.waitAlone(rescueTimeout)
	for _, t := range terminals {
		g.sessions.Kill(t.session, reason)
	}
	return max(before-len(g.other()), 0)
}

// rescued is the reason of sessions that a rescue ended, unless the daemon gave another.
const rescued = "rescued"

// killRounds bounds how often killAll looks for processes that are new.
const killRounds = 100

// killAll kills every other process of the sandbox. The kernel does that under one lock, so that no
// program outruns it, but would include those that carry connections of the daemon. If there are
// any, all processes are stopped, and killed one by one, until none is new: the end of one may let
// its jobs continue (orphaned process groups, setpgid(2)).
func (g *Guest) killAll() {
	if !g.pid1 {
		for _, pid := range g.other() {
			_ = unix.Kill(pid, unix.SIGKILL) // ignores those that ended meanwhile, here and below
		}
		return
	}
	killed := make(map[int]bool)
	for round := 0; round < killRounds && len(g.carriers()) > 0; round++ {
		_ = unix.Kill(-1, unix.SIGSTOP)
		all := processes()
		isNew := len(all) == 0 // they cannot be read
		for _, p := range all {
			if p.pid == os.Getpid() || g.isCarrier(p) {
				continue
			}
			isNew = isNew || !killed[p.pid]
			killed[p.pid] = true
			_ = unix.Kill(p.pid, unix.SIGKILL) // a zombie may have threads that live
		}
		if isNew {
			continue
		}
		for _, pid := range g.carriers() {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		return
	}
	_ = unix.Kill(-1, unix.SIGKILL)
}

// waitAlone waits until no other process is left, at most for the given time.
func (g *Guest) waitAlone(most time.Duration) {
	pause := time.Millisecond
	for deadline := time.Now().Add(most); len(g.other()) > 0 && time.Now().Before(deadline); {
		time.Sleep(pause) //nolint:forbidigo // processes that are no children of ours end unannounced
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// Stopped returns a channel that is closed when an order to stop has been carried out. PID 1 then
// exits with 0.
func (g *Guest) Stopped() <-chan struct{} { return g.stopped }

// carryOutStop ends the sandbox in order: the image's own signal to the entrypoint, HUP to the
// shells, the grace period, KILL.
func (g *Guest) carryOutStop(grace time.Duration) {
	defer close(g.stopped)
	g.signalForStop(stopSignal(g.config.StopSignal))
	g.waitAlone(grace)
	g.killAll()
	g.waitAlone(rescueTimeout)
}

// stopSignal reads an image's StopSignal: a name with or without SIG, or a number. TERM is the
// default.
func stopSignal(s string) syscall.Signal {
	if n := wire.SignalNumber(strings.TrimPrefix(strings.ToUpper(s), "SIG")); n != 0 {
		return syscall.Signal(n)
	}
	return unix.SIGTERM
}
