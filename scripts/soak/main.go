// Command soak shows at length what tests show once: that a session which says waiting is right,
// and soon.
//
//	soak asks   at least 1,000 questions of many programs, each answered: what the caller got, and how late
//	soak attention  labelled cases of programs, for the tests of sandbox/session/track/corpus
//	soak load   builds, installations, servers and loops in several sessions at once, none of which asks: nobody may say so
//	soak idle   what idle sessions cost the guest and the daemon, in processor time
//	soak bombs  what the neighbour of a sandbox notices while that uses up all it gets, and what the machine loses
//	soak many   200 sandboxes at once: what they cost while nobody uses them, and how soon all are back after kill -9 of the daemon
//	soak files  a file of 1 GiB in and out, by HTTP and by OpenSSH's sftp: the same bytes, and the daemon's memory meanwhile
//	soak churn  sandboxes made, used, forked, frozen, killed and removed: what of it the daemon and the machine keep
//
// It needs root, a Docker engine and the binaries that make build makes. The daemon and the sandbox
// are its own. The sandbox has the network of the engine, and installs in it what it runs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// options are what the command line says.
type options struct {
	asks    int           // questions in all
	only    string        // programs that ask, as a regular expression
	minutes float64       // of load
	out     string        // file of attention
	parts   string        // of attention
	rounds  int           // of attention: how often full-screen programs are played
	agents  bool          // agent programs among the load
	idle    time.Duration // of each way to be idle
	bomb    time.Duration // of each bomb

	sandboxes int // of many
	mib       int // of files

	json   string // file for the results
	config string // of the daemon
}

// errWrong says that the run went through, and found what must not be.
var errWrong = errors.New("a session said what is not so")

func main() {
	var o options
	flag.IntVar(&o.asks, "n", 1000, "asks: how many questions at least")
	flag.StringVar(&o.only, "run", ".",
		"asks, attention: which programs, as a regular expression")
	flag.StringVar(&o.out, "out", "", "attention: file for the cases, compressed with gzip")
	flag.IntVar(&o.rounds, "rounds", 5, "attention: how often full-screen programs are played")
	flag.StringVar(&o.parts, "parts", allParts, "attention: what to record")
	flag.Float64Var(&o.minutes, "minutes", 10, "load, churn: how long")
	flag.BoolVar(&o.agents, "agents", false,
		"load: agent programs from npm at work, too (installs 1 GB)")
	flag.DurationVar(&o.idle, "idle", time.Minute, "idle: how long each way to be idle is measured")
	flag.DurationVar(&o.bomb, "bomb", 10*time.Second, "bombs: how long each goes on")
	flag.IntVar(&o.sandboxes, "sandboxes", 200, "many: how many")
	flag.IntVar(&o.mib, "mib", 1024, "files: size of the file")
	flag.StringVar(&o.json, "json", "", "file for the results as JSON")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: soak [flags] asks|attention|load|idle|bombs|many|files|churn")
		flag.PrintDefaults()
	}
	flag.Parse()
	modes := map[string]func(context.Context, *world, options) (
		any, error){"asks": asks, "attention": attention, "load": mixedLoad, "idle": idle,
		"bombs": explode, "many": many, "files": moveFiles, "churn": churn}
	mode := modes[flag.Arg(0)]
	if mode == nil || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	switch flag.Arg(0) {
	case "churn":
		o.config = churnConfig
	case "many":
		o.config = manyConfig
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, mode, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, mode func(context.Context, *world, options) (any, error),
	o options) (err error) {
	w, err := start(ctx, o.config)
	if err != nil {
		return err
	}
	defer w.stop(ctx)
	before := daemon.Load()
	results, err := mode(ctx, w, o)
	if results == nil {
		return err
	}
	busy := before + " → " + daemon.Load()
	fmt.Printf("\nload average over a minute, before → after: %s\n", busy)
	if o.json != "" {
		text, marshaled := json.MarshalIndent(
			map[string]any{"date": time.Now().UTC().Format(time.DateOnly), "load": busy,
				"results": results}, "", "  ")
		if marshaled == nil {
			marshaled = os.WriteFile(o.json, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, marshaled)
	}
	return err
}

// sample is a set of measurements, in milliseconds.
type sample struct {
	N      int     `json:"n"`
	Median float64 `json:"median_ms"`
	P95    float64 `json:"p95_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

func summarize(values []float64) sample {
	if len(values) == 0 {
		return sample{}
	}
	values = slices.Sorted(slices.Values(values))
	at := func(percent int) float64 { return values[(len(values)*percent+99)/100-1] }
	return sample{N: len(values), Median: values[len(values)/2], P95: at(95), P99: at(99),
		Max: values[len(values)-1]}
}
