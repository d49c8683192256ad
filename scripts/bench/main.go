// Command bench measures sandboxd beside its peers – Docker's own API and OpenSSH – on the machine
// at hand, alternating peer and product in one run, and prints medians with the ratio. What counts
// is the ratio: absolute times differ from machine to machine.
//
// It needs root, a Docker engine and OpenSSH's sshd, and the binaries that make build makes.
// Everything it starts is its own: a daemon with a temporary state directory and an sshd on a port
// of loopback.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// row is one line of the table: what was measured, on whom, against whom.
type row struct {
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Ours   sample  `json:"sandboxd"`
	Peer   *sample `json:"peer,omitempty"`
	Name   string  `json:"peer_name,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"` // ours / peer
	Goal   string  `json:"goal"`
	Passes bool    `json:"passes"`
}

// sample is a set of measurements.
type sample struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

func summarize(values []float64) sample {
	if len(values) == 0 {
		return sample{}
	}
	slices.Sort(values)
	return sample{Median: values[len(values)/2], P99: values[(len(values)*99+99)/100-1],
		Min: values[0], Max: values[len(values)-1], N: len(values)}
}

// benchmark is one measurement; it returns its rows.
type benchmark struct {
	name string
	run  func(context.Context, *bench) ([]row, error)
}

var benchmarks = []benchmark{
	{"boot", boot},
	{"claim", claim},
	{"remote", remote},
	{"fifty", fifty},
	{"engineless", engineless},
	{"exec", execTrue},
	{"echo", echo},
	{"run", shellRun},
	{"mcp", mcpRun},
	{"e2b", e2bDoor},
	{"agentrun", agentRun},
	{"page", pageRows},
	{"python", pythonCalls},
	{"client", pythonClient},
	{"run_code", runCode},
	{"fresh", freshSSH},
	{"bulk", bulk},
	{"join", shared(joinTime)},
	{"person", personEcho},
	{"watched-flood", shared(watchedFlood)},
	{"watched-bulk", shared(watchedBulk)},
	{"guest", guest},
	{"memory", daemonMemory},
	{"watcher-memory", watcherMemory},
	{"network", network},
	{"broker", broker},
	{"agents", codingAgents},
	{"restart", restart},
}

func main() {
	pattern := flag.String("run", ".", "which rows, as a regular expression")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *pattern, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pattern, out string) (err error) {
	want, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	b, err := start(ctx)
	if err != nil {
		return err
	}
	defer b.stop(ctx)
	busy := daemon.Load()
	var rows []row
	for _, bm := range benchmarks {
		if !want.MatchString(bm.name) {
			continue
		}
		began := time.Now()
		got, err := bm.run(ctx, b)
		if err != nil {
			return fmt.Errorf("%s: %w", bm.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %.0f s\n", bm.name, time.Since(began).Seconds())
		rows = append(rows, got...)
	}
	busy += " → " + daemon.Load()
	print(rows, b)
	fmt.Printf("\nload average over a minute, before → after: %s\n", busy)
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(map[string]any{"machine": b.machine(), "load": busy,
		"date": time.Now().UTC().Format(time.DateOnly), "rows": rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func print(rows []row, b *bench) {
	fmt.Printf("%s\n\n", b.machine())
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tSANDBOXD\tMIN–MAX\tPEER\tMIN–MAX\tRATIO\tGOAL\t")
	for _, r := range rows {
		peer, spread, ratio := "–", "", ""
		if r.Peer != nil {
			peer = fmt.Sprintf("%s %s", number(r.Peer.Median), r.Name)
			spread = number(r.Peer.Min) + "–" + number(r.Peer.Max)
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		verdict := "ok"
		if !r.Passes {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s (%s)\t%s\t%s–%s\t%s\t%s\t%s\t%s\t%s\n", r.What, r.Unit,
			number(r.Ours.Median), number(r.Ours.Min), number(r.Ours.Max), peer, spread, ratio,
			r.Goal, verdict)
	}
	_ = w.Flush() // to a terminal or a log
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (b *bench) machine() string {
	return fmt.Sprintf("%d cores, %s/%s, %s, docker %s, %s", runtime.NumCPU(), runtime.GOOS,
		runtime.GOARCH, kernel(), b.dockerVersion, b.sshVersion)
}

// times calls each of fs n times in turn, so that what disturbs the machine disturbs all alike, and
// returns milliseconds.
func times(ctx context.Context, n int, fs ...func() error) ([]sample, error) {
	return turns{of: 1}.times(ctx, n, fs...)
}

// inTurns is times with turns of several calls each: for a peer that leaves caches and processor
// cold for the one that comes next.
func inTurns(ctx context.Context, n, turn int, fs ...func() error) ([]sample, error) {
	return turns{of: turn}.times(ctx, n, fs...)
}

// turns say how calls alternate.
type turns struct {
	of    int           // calls of one turn
	pause time.Duration // before each call; it does not count
}

func (t turns) times(ctx context.Context, n int, fs ...func() error) ([]sample, error) {
	values := make([][]float64, len(fs))
	for i := -2; i < n; i += t.of { // the first two warm up
		for j, f := range fs {
			for k := i; k < min(i+t.of, n); k++ {
				if err := daemon.Pause(ctx, t.pause); err != nil {
					return nil, err
				}
				began := time.Now()
				if err := f(); err != nil {
					return nil, err
				}
				if k >= 0 {
					values[j] = append(values[j], float64(time.Since(began).Microseconds())/1000)
				}
			}
		}
	}
	samples := make([]sample, len(fs))
	for i, v := range values {
		samples[i] = summarize(v)
	}
	return samples, nil
}

// against makes a row with a peer; it passes when the ratio is at most limit, or at least, for
// rates.
func against(what, unit string, ours, peer sample, name, goal string,
	pass func(ratio float64) bool) row {
	r := row{What: what, Unit: unit, Ours: ours, Peer: &peer, Name: name, Goal: goal}
	if peer.Median > 0 {
		r.Ratio = ours.Median / peer.Median
	}
	r.Passes = pass(r.Ratio)
	return r
}

func atMost(limit float64) func(float64) bool  { return func(v float64) bool { return v <= limit } }
func always(float64) bool                      { return true }
func atLeast(limit float64) func(float64) bool { return func(v float64) bool { return v >= limit } }
