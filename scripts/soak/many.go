package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// manyConfig lets one owner have all of them.
const manyConfig = "max_sandboxes: 2000\ntotal: {sandboxes: 2000, running: 2000}\n"

const (
	callers   = 8 // at once
	settled   = 10 * time.Second
	manyIdle  = 30 * time.Second // for which processor time is counted
	manyImage = "sandboxd/base:latest"
)

// manyRow is what so many sandboxes of one network cost.
type manyRow struct {
	Network   string  `json:"network"`
	Sandboxes int     `json:"sandboxes"`
	BootRate  float64 `json:"boots_per_s"`
	Boot      sample  `json:"boot"`

	Idle     manyCost `json:"idle"`     // nothing was run in them yet
	Sessions manyCost `json:"sessions"` // each has a session, at its prompt

	List     sample `json:"ls_json"`       // the program, from its start to its end
	Describe sample `json:"describe_json"` // the same
	Run      sample `json:"run_true"`      // on a live connection, in one sandbox

	Listens float64 `json:"listens_ms"` // after kill -9, until the new daemon takes connections
	Usable  float64 `json:"usable_ms"`  // until a command in each of them is done
	Runs    float64 `json:"runs_ms"`    // until one in each one's session is
	Removal float64 `json:"rm_s"`       // of all
}

// manyCost is what stays when nobody does anything.
type manyCost struct {
	// For each sandbox, beyond what the daemon had without.
	Daemon float64 `json:"daemon_kib"`
	// Of each: its part of what its first process has in memory.
	Guest       float64 `json:"guest_mib"`
	Shim        float64 `json:"shim_mib"`        // likewise, of the engine's process for it
	Goroutines  float64 `json:"goroutines"`      // of the daemon, for each
	Descriptors float64 `json:"descriptors"`     // likewise
	Processor   float64 `json:"daemon_percent"`  // of a core, for all
	Guests      float64 `json:"guests_percent"`  // likewise
	All         float64 `json:"machine_percent"` // of all processes
}

// many makes so many sandboxes at once, looks at what they cost while nobody uses them, kills the
// daemon, and waits until all can be used.
func many(ctx context.Context, w *world, o options) (any, error) {
	var rows []manyRow
	for _, network := range []string{"none", "filtered"} {
		row, err := w.many(ctx, network, o.sandboxes)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", network, err)
		}
		rows = append(rows, row)
	}
	fmt.Printf("| %d sandboxes, network |", o.sandboxes)
	for _, r := range rows {
		fmt.Printf(" `%s` |", r.Network)
	}
	fmt.Printf("\n| --- |%s\n", strings.Repeat(" --- |", len(rows)))
	line := func(what string, of func(manyRow) string) {
		fmt.Printf("| %s |", what)
		for _, r := range rows {
			fmt.Printf(" %s |", of(r))
		}
		fmt.Println()
	}
	span := func(s sample) string { return fmt.Sprintf("%.1f (95 %%: %.1f)", s.Median, s.P95) }
	line(fmt.Sprintf("made, by %d at once, a second", callers),
		func(r manyRow) string { return fmt.Sprintf("%.1f", r.BootRate) })
	line("one boot meanwhile, ms", func(r manyRow) string { return span(r.Boot) })
	for _, c := range []struct {
		what string
		of   func(manyRow) manyCost
	}{{"idle", func(r manyRow) manyCost { return r.Idle }},
		{"with a session each", func(r manyRow) manyCost { return r.Sessions }}} {
		line(c.what+": memory of the daemon for each, KiB",
			func(r manyRow) string { return fmt.Sprintf("%.0f", c.of(r).Daemon) })
		line(c.what+": memory of each one's guest, of the engine's process for it, MiB",
			func(r manyRow) string {
				return fmt.Sprintf("%.1f, %.1f", c.of(r).Guest, c.of(r).Shim)
			})
		line(c.what+": goroutines, descriptors of the daemon for each", func(r manyRow) string {
			return fmt.Sprintf("%.1f, %.1f", c.of(r).Goroutines, c.of(r).Descriptors)
		})
		line(c.what+": processor of daemon, all guests, machine, % of a core",
			func(r manyRow) string {
				return fmt.Sprintf("%.1f, %.1f, %.0f", c.of(r).Processor, c.of(r).Guests,
					c.of(r).All)
			})
	}
	line("`ls --json`, ms", func(r manyRow) string { return span(r.List) })
	line("`describe --json` of one, ms", func(r manyRow) string { return span(r.Describe) })
	line("`Run(\"true\")` in one, ms", func(r manyRow) string { return span(r.Run) })
	line("`kill -9` of the daemon until the next one listens, ms",
		func(r manyRow) string { return fmt.Sprintf("%.0f", r.Listens) })
	line("until a command is done in each, ms",
		func(r manyRow) string { return fmt.Sprintf("%.0f", r.Usable) })
	line("until one is done in each one's session, ms",
		func(r manyRow) string { return fmt.Sprintf("%.0f", r.Runs) })
	line("`rm` of all, s", func(r manyRow) string { return fmt.Sprintf("%.0f", r.Removal) })
	return rows, nil
}

func (w *world) many(ctx context.Context, network string, count int) (r manyRow, err error) {
	r = manyRow{Network: network, Sandboxes: count}
	if err := daemon.Pause(ctx, settled); err != nil {
		return r, err
	}
	without, err := w.footprint(ctx)
	if err != nil {
		return r, err
	}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("m%d", i)
	}
	began := time.Now()
	boots, err := w.each(ctx, names, func(control *agent.Client, name string) error {
		return command(ctx, control, "new --image "+manyImage+" --network "+network+" "+name)
	})
	if err != nil {
		return r, err
	}
	r.BootRate, r.Boot = float64(count)/time.Since(began).Seconds(), summarize(boots)
	fmt.Fprintf(os.Stderr, "%s: %d made in %.0f s\n", network, count, time.Since(began).Seconds())
	if r.Idle, err = w.cost(ctx, without, count); err != nil {
		return r, err
	}
	runTrue := func(control *agent.Client,
		name string) error {
		return command(ctx, control, "run -n "+name+" -- true")
	}
	if _, err := w.each(ctx, names, runTrue); err != nil {
		return r, err
	}
	if r.Sessions, err = w.cost(ctx, without, count); err != nil {
		return r, err
	}
	for _, program := range []struct {
		into *sample
		args []string
	}{{&r.List, []string{"ls", "--json"}},
		{&r.Describe, []string{"describe", "--json", names[0]}}} {
		if *program.into, err = timed(20, func() error {
			_, err := w.cli(ctx, program.args...)
			return err
		}); err != nil {
			return r, err
		}
	}
	if r.Run, err = w.runSample(ctx, names[count/2]); err != nil {
		return r, err
	}

	if err := w.daemon.Kill(); err != nil {
		return r, err
	}
	began = time.Now()
	since := func() float64 { return float64(time.Since(began).Microseconds()) / 1000 }
	if err := w.startDaemon(ctx); err != nil {
		return r, err
	}
	r.Listens = since()
	if _, err := w.each(ctx, names, func(control *agent.Client, name string) error {
		return command(ctx, control, "exec "+name+" true")
	}); err != nil {
		return r, err
	}
	r.Usable = since()
	if _, err := w.each(ctx, names, runTrue); err != nil {
		return r, err
	}
	r.Runs = since()

	began = time.Now()
	_, err = w.each(ctx, names, func(control *agent.Client, name string) error {
		return command(ctx, control, "rm -f "+name)
	})
	r.Removal = time.Since(began).Seconds()
	return r, err
}

// each calls do for every name, by several callers at once with a connection each, and returns how
// long each call took, in milliseconds.
func (w *world) each(ctx context.Context, names []string,
	do func(control *agent.Client, name string) error) ([]float64, error) {
	next := make(chan string, len(names))
	for _, name := range names {
		next <- name
	}
	close(next)
	var mu sync.Mutex
	var took []float64
	var failed error
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			control, err := agent.Dial(ctx, "ssh://sandboxd@"+w.daemon.SSH,
				agent.Options{Kind: agent.KindGateway, State: w.daemon.State})
			if err == nil {
				defer control.Close()
				for name := range next {
					began := time.Now()
					if err = do(control, name); err != nil {
						err = fmt.Errorf("%s: %w", name, err)
						break
					}
					mu.Lock()
					took = append(took, float64(time.Since(began).Microseconds())/1000)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = err
			}
		})
	}
	all.Wait()
	return took, failed
}

// timed calls f so many times.
func timed(n int, f func() error) (sample, error) {
	var took []float64
	for range n {
		began := time.Now()
		if err := f(); err != nil {
			return sample{}, err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	return summarize(took), nil
}

func (w *world) runSample(ctx context.Context, name string) (sample, error) {
	client, err := agent.Dial(ctx, "ssh://"+name+"@"+w.daemon.SSH,
		agent.Options{State: w.daemon.State})
	if err != nil {
		return sample{}, err
	}
	defer client.Close()
	sh, err := client.Shell(ctx, "main")
	if err != nil {
		return sample{}, err
	}
	defer sh.Close()
	return timed(100, func() error {
		res, err := sh.Run(ctx, "true")
		if err == nil && res.Ended != agent.EndedDone {
			err = fmt.Errorf("true ended %s", res.Ended)
		}
		return err
	})
}

// cli runs the program on the daemon.
func (w *world) cli(ctx context.Context, args ...string) ([]byte, error) {
	out, err := w.daemon.Line(ctx, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// footprint is what there is while nothing is done.
type footprint struct {
	daemon                  float64 // bytes in memory
	goroutines, descriptors float64
}

func (w *world) footprint(ctx context.Context) (f footprint, err error) {
	l, err := w.look(ctx, w.daemon.Pid())
	return footprint{daemon: l.Memory * 1e6, goroutines: l.Goroutines, descriptors: l.Descriptors},
		err
}

// cost lets things come to rest and measures.
func (w *world) cost(ctx context.Context, without footprint, count int) (c manyCost, err error) {
	if err := daemon.Pause(ctx, settled); err != nil {
		return c, err
	}
	guests, err := w.guests(ctx)
	if err != nil {
		return c, err
	}
	read := func() (own, inGuests, all float64, err error) {
		if own, err = processorTime(w.daemon.Pid()); err != nil {
			return 0, 0, 0, err
		}
		for _, pid := range guests {
			used, err := processorTime(pid)
			if err != nil {
				return 0, 0, 0, err
			}
			inGuests += used
		}
		all, err = machineTime()
		return own, inGuests, all, err
	}
	began := time.Now()
	own, inGuests, all, err := read()
	if err != nil {
		return c, err
	}
	if err := daemon.Pause(ctx, manyIdle); err != nil {
		return c, err
	}
	ownThen, inGuestsThen, allThen, err := read()
	if err != nil {
		return c, err
	}
	took := time.Since(began).Seconds()
	with, err := w.footprint(ctx)
	if err != nil {
		return c, err
	}
	guest, shim, err := memoryOf(guests)
	n := float64(count)
	return manyCost{
		Daemon: (with.daemon - without.daemon) / 1024 / n, Guest: guest, Shim: shim,
		Goroutines:  (with.goroutines - without.goroutines) / n,
		Descriptors: (with.descriptors - without.descriptors) / n,
		Processor:   (ownThen - own) / took * 100, Guests: (inGuestsThen - inGuests) / took * 100,
		All: (allThen - all) / took * 100,
	}, err
}

// guests are this machine's numbers of the first processes of all sandboxes.
func (w *world) guests(ctx context.Context) (pids []int, err error) {
	id, err := os.ReadFile(w.daemon.State + "/daemon_id")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "docker", "ps", "-q", "--filter",
		"label=sandboxd.daemon="+strings.TrimSpace(string(id))).Output()
	if err != nil {
		return nil, fmt.Errorf("docker ps: %w", err)
	}
	out, err = exec.CommandContext(ctx, "docker",
		append([]string{"inspect", "--format", "{{.State.Pid}}"},
			strings.Fields(string(out))...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("docker inspect: %w", err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// memoryOf is what the first processes of sandboxes and the engine's processes above them have in
// memory on average, in MiB: of what they share with others their part.
func memoryOf(guests []int) (guest, shim float64, err error) {
	for _, pid := range guests {
		above, err := procNumber(fmt.Sprintf("/proc/%d/status", pid), "PPid:")
		if err != nil {
			return 0, 0, err
		}
		own, err := procNumber(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
		if err != nil {
			return 0, 0, err
		}
		engines, err := procNumber(fmt.Sprintf("/proc/%d/smaps_rollup", int(above)), "Pss:")
		if err != nil {
			return 0, 0, err
		}
		guest, shim = guest+own, shim+engines
	}
	n := float64(len(guests)) * 1024
	return guest / n, shim / n, nil
}

// machineTime is what all processes have used, in seconds (proc_stat(5), but idle and iowait).
func machineTime() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var ticks float64
	for i, word := range strings.Fields(first) {
		if n, err := strconv.ParseFloat(word, 64); err == nil && (i < 4 || i > 5) && i < 9 {
			ticks += n
		}
	}
	return ticks / 100, nil
}

// procNumber reads a number of a file of lines that begin with a key.
func procNumber(path, key string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), key)
	var n float64
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0, fmt.Errorf("%s of %s: %w", key, path, err)
	}
	return n, nil
}
