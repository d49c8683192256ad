package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// engineless: a daemon without a container engine, against Docker's own engine. The image is built
// before. It needs root.
func engineless(ctx context.Context, b *bench) (rows []row, err error) {
	d, err := b.launch(ctx, "engineless", "SANDBOXD_BACKEND=oci",
		"SANDBOXD_OCI_IMAGES="+filepath.Join(b.dir, "images"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.End(ctx)) }()
	l, err := b.control(ctx, d)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if _, err := l.command(ctx, "new first"); err != nil {
		return nil, err
	}
	defer func() {
		_, rmErr := l.command(context.WithoutCancel(ctx), "rm -f first")
		err = errors.Join(err, rmErr)
	}()
	idle, err := idleMemory(ctx, b, d)
	if err != nil {
		return nil, err
	}
	boot, engine, err := boots(ctx, b, d)
	if err != nil {
		return nil, err
	}
	rate, engineRate, err := fifties(ctx, b, d)
	if err != nil {
		return nil, err
	}
	one := against("without an engine: create until the first command is done", "ms", boot, engine,
		"docker create+start", "≤ 60 ms", always)
	one.Passes = boot.Median <= 60
	return []row{one, against("without an engine: fifty sandboxes at once", "per second", rate,
		engineRate, "docker run", "≥ 5 ×", atLeast(5)), idle}, nil
}

// idleMemory measures the private memory of an idle sandbox: of the guest, and with Docker also of
// the program that the engine runs for each container. The daemon d has one sandbox; on each side
// there is another one, with which it shares the file of the guest.
func idleMemory(ctx context.Context, b *bench, d *daemon.Daemon) (row, error) {
	// As containers/ID/pid: the number of its PID 1, and when that started.
	files, err := filepath.Glob(filepath.Join(d.State, "containers", "*", "pid"))
	if err != nil {
		return row{}, err
	}
	if len(files) != 1 {
		return row{}, fmt.Errorf("%d sandboxes run without an engine, not one", len(files))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return row{}, err
	}
	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		return row{}, err
	}
	for _, at := range []*daemon.Daemon{d, b.daemon} {
		l, err := b.control(ctx, at)
		if err != nil {
			return row{}, err
		}
		defer l.Close()
		for _, name := range []string{"idle", "other"} {
			if _, err := l.command(ctx, "new --if-missing "+name); err != nil {
				return row{}, err
			}
			defer func() {
				_, _ = l.command(context.WithoutCancel(ctx), "rm -f "+name) // or its daemon ends it
			}()
		}
	}
	peer, err := b.initPID(ctx, "idle")
	if err != nil {
		return row{}, err
	}
	keeper, err := parentOf(peer)
	if err != nil {
		return row{}, err
	}
	if err := daemon.Pause(ctx, 3*time.Second); err != nil { // the boots' garbage is collected
		return row{}, err
	}
	var mib [3]float64
	for i, pid := range []int{first, peer, keeper} {
		private, err := privateMemory(pid)
		if err != nil {
			return row{}, err
		}
		mib[i] = float64(private) / (1 << 20)
	}
	return against("without an engine: private memory of an idle sandbox", "MiB",
		summarize(mib[:1]), summarize([]float64{mib[1] + mib[2]}), "with Docker", "≤ 1 ×",
		func(ratio float64) bool { return ratio <= 1 }), nil
}

// parentOf returns the parent of a process (proc_pid_status(5)).
func parentOf(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "PPid:"); ok {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, fmt.Errorf("process %d has no parent", pid)
}
