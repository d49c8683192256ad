package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

const churnConfig = "max_sandboxes: 1000\n"

const (
	churners   = 4
	churnFor   = 20 * time.Second // of work between two looks
	churnRest  = 5 * time.Second  // until the daemon has come to rest
	churnWarm  = 2                // looks that do not count: what is made once is made
	churnImage = "sandboxd/busybox:latest"
)

// look is what there is while nothing is done.
type look struct {
	Minutes     float64 `json:"minutes"`
	Cycles      int     `json:"cycles"`
	Memory      float64 `json:"daemon_mb"` // resident
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`
	PTYs        float64 `json:"ptys"` // of the whole machine
	Containers  float64 `json:"containers"`
	Guest       float64 `json:"guest_mb"` // of the one sandbox that stays
}

// quantity is one column of looks.
type quantity struct {
	name  string
	of    func(look) float64
	grows float64 // that it may have grown by at the end, counted from the first look
}

var quantities = []quantity{
	{"daemon, MB", func(l look) float64 { return l.Memory }, 16},
	{"goroutines", func(l look) float64 { return l.Goroutines }, 10},
	{"descriptors", func(l look) float64 { return l.Descriptors }, 5},
	// Others on the machine have some, too.
	{"terminals", func(l look) float64 { return l.PTYs }, 8},
	{"containers", func(l look) float64 { return l.Containers }, 0},
	{"guest, MB", func(l look) float64 { return l.Guest }, 8},
}

// churn makes, uses, forks, freezes, kills and removes sandboxes, and looks again and again at what
// that leaves behind.
func churn(ctx context.Context, w *world, o options) (any, error) {
	guest, err := w.guestPID(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var looks []look
	cycles := 0
	for n := 0; time.Since(began).Minutes() < o.minutes || len(looks) < churnWarm+3; n++ {
		did, err := w.churnOnce(ctx, n)
		if err != nil {
			return nil, err
		}
		cycles += did
		if err := daemon.Pause(ctx, churnRest); err != nil {
			return nil, err
		}
		l, err := w.look(ctx, guest)
		if err != nil {
			return nil, err
		}
		l.Minutes, l.Cycles = time.Since(began).Minutes(), cycles
		looks = append(looks, l)
		fmt.Printf(
			"%5.1f min, %4d cycles: daemon %.1f MB, %.0f goroutines, %.0f descriptors; %.0f "+
				"terminals, %.0f containers; guest %.1f MB\n",
			l.Minutes, l.Cycles, l.Memory, l.Goroutines, l.Descriptors, l.PTYs, l.Containers,
			l.Guest)
	}
	looks = looks[churnWarm:]
	first, last := looks[0], looks[len(looks)-1]
	fmt.Printf("\n%-12s %9s %9s %12s\n", "", "first", "last", "an hour")
	for _, q := range quantities {
		fmt.Printf("%-12s %9.1f %9.1f %+12.2f\n", q.name, q.of(first), q.of(last),
			slope(looks, q.of))
		if q.of(last)-q.of(first) > q.grows {
			err = errors.Join(err, fmt.Errorf("%s grew from %.1f to %.1f", q.name, q.of(first),
				q.of(last)))
		}
	}
	return looks, err
}

// slope is that of the line nearest to what was seen (least squares), an hour.
func slope(looks []look, of func(look) float64) float64 {
	var x, y, xx, xy float64
	for _, l := range looks {
		h, v := l.Minutes/60, of(l)
		x, y, xx, xy = x+h, y+v, xx+h*h, xy+h*v
	}
	n := float64(len(looks))
	if d := n*xx - x*x; d > 0 {
		return (n*xy - x*y) / d
	}
	return 0
}

// churnOnce works for a while and removes all that it made. It returns how many sandboxes came and
// went.
func (w *world) churnOnce(ctx context.Context, n int) (cycles int, err error) {
	control, err := agent.Dial(ctx, "ssh://sandboxd@"+w.daemon.SSH,
		agent.Options{Kind: agent.KindGateway, State: w.daemon.State})
	if err != nil {
		return 0, err
	}
	defer control.Close()
	var mu sync.Mutex
	var all sync.WaitGroup
	over := time.Now().Add(churnFor)
	for i := range churners {
		all.Go(func() {
			for k := 0; time.Now().Before(over) && ctx.Err() == nil; k++ {
				failed := w.life(ctx, control, fmt.Sprintf("c%d-%d-%d", n, i, k), k)
				mu.Lock()
				cycles++
				err = errors.Join(err, failed)
				mu.Unlock()
				if failed != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return cycles, err
}

// life is that of one sandbox.
func (w *world) life(ctx context.Context, control *agent.Client, name string, k int) error {
	lines := []string{
		"new --image " + churnImage + " --memory 64m --network none " + name,
		"run -n " + name + " -- seq 1 2000",
	}
	fork := name + "-f"
	switch k % 4 {
	case 0:
		lines = append(lines, "fork "+name+" "+fork, "run -n "+fork+" -- true", "rm -f "+fork)
	case 1:
		lines = append(lines, "pause "+name, "resume "+name, "run -n "+name+"~other -- true")
	case 2:
		lines = append(lines, "stop "+name, "run -n "+name+" -- true")
	case 3:
		lines = append(lines, "", "run -n "+name+" -- true") // killed outside the daemon
	}
	for i, line := range append(lines, "rm -f "+name) {
		if line == "" {
			if err := w.killContainer(ctx, name); err != nil {
				return err
			}
			continue
		}
		err := command(ctx, control, line)
		// A call that is under way when it is killed returns that.
		for tries := 0; err != nil && i > 0 && i-1 < len(lines) && lines[i-1] == "" &&
			tries < 50; tries++ {
			if err := daemon.Pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			err = command(ctx, control, line)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

// command runs one of the table, which has to succeed.
func command(ctx context.Context, control *agent.Client, line string) error {
	var out bytes.Buffer
	exit, err := control.Exec(ctx, agent.Cmd{Command: line, Stdout: &out, Stderr: &out})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("exit %d: %s", exit.Code, strings.TrimSpace(out.String()))
	}
	return err
}

func (w *world) killContainer(ctx context.Context, name string) error {
	container, err := w.container(ctx, name)
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "docker", "kill",
		container).CombinedOutput(); err != nil {
		return fmt.Errorf("docker kill: %w: %s", err, out)
	}
	return nil
}

// look measures. Nothing is done meanwhile.
func (w *world) look(ctx context.Context, guest int) (l look, err error) {
	pid := w.daemon.Pid()
	if l.Memory, err = resident(pid); err != nil {
		return l, err
	}
	if l.Guest, err = resident(guest); err != nil {
		return l, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return l, err
	}
	l.Descriptors = float64(len(open))
	text, err := os.ReadFile("/proc/sys/kernel/pty/nr")
	if err != nil {
		return l, err
	}
	if l.PTYs, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil {
		return l, err
	}
	if l.Goroutines, err = w.metric(ctx, "go_goroutines"); err != nil {
		return l, err
	}
	id, err := os.ReadFile(w.daemon.State + "/daemon_id")
	if err != nil {
		return l, err
	}
	out, err := exec.CommandContext(ctx, "docker", "ps", "-aq", "--filter",
		"label=sandboxd.daemon="+strings.TrimSpace(string(id))).Output()
	l.Containers = float64(len(strings.Fields(string(out))))
	return l, err
}

// metric reads one metric without labels from the daemon.
func (w *world) metric(ctx context.Context, name string) (float64, error) {
	token, err := os.ReadFile(w.daemon.TokenFile)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.daemon.HTTP+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	var out bytes.Buffer
	if err := fetch(r, &out); err != nil {
		return 0, err
	}
	for line := range strings.Lines(out.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("metrics: no %s", name)
}

// resident is what a process has in memory, in MB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of %d: %q", pid, text)
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()) / 1e6, err
}
