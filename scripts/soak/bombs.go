package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// bomber is the sandbox that is attacked from within. It has the limits that every sandbox has
// unless asked otherwise.
const bomber = "bomber"

// bomb is a way to use up what a sandbox has, or its neighbours.
type bomb struct {
	name   string
	script string // goes on until it is killed
}

var bombs = []bomb{
	{"nothing", `sleep 1000`},
	{"fork bomb", `b() { b | b & }; b; sleep 1000`},
	{"memory", python(`
x = []
while True: x.append(bytearray(b"x" * (1 << 20)))`)},
	{"/dev/shm", `while :; do dd if=/dev/zero of=/dev/shm/full bs=1M; done`},
	{"disk, one file", `while :; do dd if=/dev/zero of=/root/full bs=1M; sleep 0.1; done`},
	{"disk, many files", python(`
import os
for i in range(10**9):
    os.makedirs(f"/root/many/{i >> 10}", exist_ok=True)
    open(f"/root/many/{i >> 10}/{i}", "w").close()`)},
	{"disk, a file of a petabyte without content",
		`truncate -s 1P /root/sparse; fallocate -l 1T /root/allocated; sleep 1000`},
	{"descriptors and sockets", python(`
import os, socket, time
while os.fork() or True:
    held = []
    try:
        while True: held.append(socket.socket())
    except OSError: time.sleep(0.1)`)},
	{"inotify watches", python(`
import ctypes, os, time
libc = ctypes.CDLL(None)
while True:
    fd = libc.inotify_init()
    if fd < 0: time.sleep(0.1); continue
    for top, dirs, files in os.walk("/usr"):
        for name in files: libc.inotify_add_watch(fd, os.path.join(top, name).encode(), 0xfff)`)},
	{"pseudo-terminals", python(`
import os, time
held = []
while True:
    try: held.append(os.openpty())
    except OSError: time.sleep(0.1)`)},
	{"zombies", python(`
import os, time
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: time.sleep(0.1)`)},
	{"the log of PID 1",
		`while :; do yes >/proc/1/fd/1 || yes >/dev/console || yes >/dev/pts/0 || sleep 0.1; done`},
	{"UDP to everywhere that is closed", python(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n = 0
while True:
    n += 1
    try: s.sendto(b"x" * 1000, (f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", 1 + n % 65535))
    except OSError: s.close(); s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)`)},
	{"connections to everywhere that is closed", python(`
import socket
n = 0
held = []
while True:
    n += 1
    s = None
    try:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", 80))
        held.append(s)
    except OSError: held = []`)},
}

// python is a shell command that runs a program, once more when it is killed for what it took.
func python(program string) string {
	return "while :; do python3 - <<'EOF'" + program + "\nEOF\ndone"
}

// bombRow is what the machine and a neighbour had of a bomb.
type bombRow struct {
	What     string  `json:"what"`
	Peer     sample  `json:"peer"`           // Run("true") in another sandbox meanwhile
	Memory   int64   `json:"memory_mib"`     // less that is available on the machine
	PIDs     int     `json:"processes"`      // more on the machine
	PTYs     int     `json:"ptys"`           // more on the machine
	Files    int     `json:"descriptors"`    // more on the machine
	Log      int64   `json:"log_kib"`        // of the container, that the engine keeps
	Daemon   float64 `json:"daemon_percent"` // of a core
	Cleared  float64 `json:"cleared_ms"`     // until rescue had ended it and a command ran again
	Reported string  `json:"reported"`       // what describe says of it
}

// explode lets each bomb go for a while in a sandbox, and measures what a neighbour notices.
func explode(ctx context.Context, w *world, o options) (any, error) {
	var rows []bombRow
	peer, err := w.client.Shell(ctx, "peer")
	if err != nil {
		return nil, err
	}
	defer peer.Close()
	for _, b := range bombs {
		row, err := w.explode(ctx, peer, b, o.bomb)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", b.name, err)
		}
		rows = append(rows, row)
		fmt.Fprintf(os.Stderr, "%s: %.1f ms, %s\n", row.What, row.Peer.Median, row.Reported)
	}
	fmt.Printf("%.0f s each; the neighbour runs true again and again\n\n", o.bomb.Seconds())
	fmt.Println(
		"| bomb | neighbour, median | p99 | machine: memory | processes | terminals | " +
			"descriptors | container log | daemon | cleared after | reported as |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range rows {
		fmt.Printf(
			"| %s | %.1f ms | %.1f ms | %+d MiB | %+d | %+d | %+d | %d KiB | %.0f %% | %.0f ms | "+
				"%s |\n",
			r.What, r.Peer.Median, r.Peer.P99, r.Memory, r.PIDs, r.PTYs, r.Files, r.Log, r.Daemon,
			r.Cleared, r.Reported)
	}
	return rows, nil
}

func (w *world) explode(ctx context.Context, peer *agent.Shell, b bomb,
	d time.Duration) (row bombRow, err error) {
	row.What = b.name
	if _, err := w.command(ctx, "new", bomber); err != nil {
		return row, err
	}
	defer func() {
		if _, gone := w.command(context.WithoutCancel(ctx), "rm", "--force", bomber); gone != nil {
			err = errors.Join(err, gone)
		}
	}()
	if err := daemon.Pause(ctx, 2*time.Second); err != nil { // the boot is over
		return row, err
	}
	before, err := w.machine()
	if err != nil {
		return row, err
	}
	cpu, err := processorTime(w.daemon.Pid())
	if err != nil {
		return row, err
	}
	attack := w.daemon.Line(ctx, "exec", bomber, "--", "bash", "-c", b.script)
	if err := attack.Start(); err != nil {
		return row, err
	}
	defer func() { _ = attack.Wait() }()         // how a bomb ends is not its row's matter
	defer func() { _ = attack.Process.Kill() }() // it may have ended by itself
	var took []float64
	began := time.Now()
	worst := before
	for time.Since(began) < d {
		at := time.Now()
		res, err := peer.Run(ctx, "true")
		if err != nil || res.Ended != agent.EndedDone {
			return row, fmt.Errorf("the neighbour: %v, %w", res, err)
		}
		took = append(took, float64(time.Since(at).Microseconds())/1000)
		if len(took)%50 == 0 {
			now, err := w.machine()
			if err != nil {
				return row, err
			}
			worst.worse(now)
		}
		if err := daemon.Pause(ctx, 5*time.Millisecond); err != nil {
			return row, err
		}
	}
	after, err := processorTime(w.daemon.Pid())
	if err != nil {
		return row, err
	}
	row.Daemon = (after - cpu) / time.Since(began).Seconds() * 100
	row.Peer = summarize(took)
	row.Memory, row.PIDs, row.PTYs, row.Files = (before.available-worst.available)>>20,
		worst.pids-before.pids, worst.ptys-before.ptys, worst.files-before.files
	if row.Reported, row.Log, err = w.reported(ctx); err != nil {
		return row, err
	}
	began = time.Now()
	if strings.Contains(row.Reported, "stopped") {
		_, err = w.command(ctx, "start", bomber)
	} else {
		_, err = w.command(ctx, "rescue", bomber)
	}
	if err == nil {
		_, err = w.command(ctx, "exec", bomber, "--", "true")
	}
	row.Cleared = float64(time.Since(began).Microseconds()) / 1000
	return row, err
}

// command runs sandboxd and returns what it printed.
func (w *world) command(ctx context.Context, args ...string) ([]byte, error) {
	c := w.daemon.Line(ctx, args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("sandboxd %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(said.String()))
	}
	return out, err
}

// reported is what describe says of the bomber's limits, and how long the log of its container is,
// in KiB.
func (w *world) reported(ctx context.Context) (string, int64, error) {
	out, err := w.command(ctx, "describe", "--json", bomber)
	if err != nil {
		return "", 0, err
	}
	var d struct {
		ID, State, Reason string
		Notes             []string
	}
	if err := json.Unmarshal(out, &d); err != nil {
		return "", 0, fmt.Errorf("describe: %w", err)
	}
	var told []string
	if d.State != "running" {
		told = append(told, d.State)
	}
	for _, said := range append([]string{d.Reason}, d.Notes...) {
		if name, _, is := strings.Cut(said, ":"); is {
			told = append(told, name)
		}
	}
	text, err := exec.CommandContext(ctx, "docker", "ps", "-aq", "--no-trunc", "--filter",
		"label=sandboxd.id="+d.ID).Output()
	if err != nil {
		return "", 0, fmt.Errorf("docker ps: %w", err)
	}
	logs, err := filepath.Glob("/var/lib/docker/containers/" + strings.TrimSpace(string(text)) +
		"/*-json.log*")
	if err != nil {
		return "", 0, err
	}
	var size int64
	for _, l := range logs {
		if info, err := os.Stat(l); err == nil { // rotated meanwhile
			size += info.Size()
		}
	}
	return strings.Join(told, ", "), size >> 10, nil
}

// machine is what all share.
type machine struct {
	available         int64 // bytes of memory
	pids, ptys, files int
}

// worse keeps the worst of both.
func (m *machine) worse(now machine) {
	m.available = min(m.available, now.available)
	m.pids, m.ptys, m.files = max(m.pids, now.pids), max(m.ptys, now.ptys), max(m.files, now.files)
}

// machine reads proc(5): meminfo, loadavg, sys/kernel/pty/nr and sys/fs/file-nr.
func (w *world) machine() (m machine, err error) {
	read := func(path string, field func(string) string) int64 {
		text, failed := os.ReadFile(path)
		if failed != nil {
			err = errors.Join(err, failed)
			return 0
		}
		n, failed := strconv.ParseInt(field(string(text)), 10, 64)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", path, failed))
		}
		return n
	}
	first := func(text string) string { return strings.Fields(text)[0] }
	m.available = 1024 * read("/proc/meminfo", func(text string) string {
		_, rest, _ := strings.Cut(text, "MemAvailable:")
		return first(rest)
	})
	m.pids = int(read("/proc/loadavg", func(text string) string {
		_, all, _ := strings.Cut(strings.Fields(text)[3], "/")
		return all
	}))
	m.ptys = int(read("/proc/sys/kernel/pty/nr", first))
	m.files = int(read("/proc/sys/fs/file-nr", first))
	return m, err
}
