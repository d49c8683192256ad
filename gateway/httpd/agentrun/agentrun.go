// Package agentrun runs Python for programs that speak AgentRun's HTTP: code in, output out. Each call has a sandbox of its own, which
// nobody had before and nobody has afterwards; what the code imports is installed in an image that it begins with. It knows no listener.
package agentrun

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Options are what a Runner works with. The names are AgentRun's where it has one; Defaults are its defaults.
type Options struct {
	Hub *gateway.Hub // required
	Dir string       // for files that code made; emptied by New. Required
	Log *slog.Logger // nil discards

	DependenciesWhitelist []string // packages that may be installed; "*" is any
	CachedDependencies    []string // packages that are there without being installed for a call
	CPUQuota              int64    // microseconds of processors in each tenth of a second
	MemoryLimit           int64    // bytes
	MemswapLimit          int64    // bytes of memory and swap together, where the machine has swap
	Timeout               time.Duration

	Image       string          // empty is the hub's
	Network     sandbox.Network // of code; empty is the hub's
	InstallFrom []string        // what installing packages may connect to
	Warm        int             // sandboxes that stand ready for somebody who makes calls
	Parallel    int             // calls that run at once; further ones wait

	// Ended, if not nil, is told of each call: its status, and how long it took.
	Ended func(status Status, took time.Duration)
}

// Defaults are AgentRun's own, as of its version 0.2.5, and ours of what it does not have.
func Defaults() Options {
	return Options{DependenciesWhitelist: []string{"*"}, CPUQuota: 50_000, MemoryLimit: 100 << 20, MemswapLimit: 512 << 20, Timeout: 20 * time.Second,
		InstallFrom: []string{"pypi.org:443", "files.pythonhosted.org:443"}, Warm: 4, Parallel: 8}
}

const (
	period      = 100_000 // microseconds, of CPUQuota
	maxWaiting  = 200     // calls of one principal that wait for their turn
	keepWarm    = 10 * time.Minute
	use         = "agentrun" // of what stands ready
	forgotten   = 2 * time.Minute
	removeAfter = time.Minute
	removal     = time.Minute
	maxTimeout  = time.Hour
)

// Status says how a call ended.
type Status string

// The statuses of a call.
const (
	OK        Status = "ok"         // the code ended with 0
	Failed    Status = "error"      // it ended otherwise, or a package that it needs could not be installed
	TimedOut  Status = "timed_out"  // it was killed when its time was over
	OOMKilled Status = "oom_killed" // it, or a process of it, was killed at the limit of memory
	Refused   Status = "refused"    // it was not run: a package that it needs is not allowed
)

// Result is the answer to a call.
type Result struct {
	Output    string     `json:"output" doc:"what the code printed, and its traceback as Python prints it"`
	Status    Status     `json:"status" enum:"ok,error,timed_out,oom_killed,refused" doc:"how it ended"`
	ExitCode  *int       `json:"exit_code" doc:"of Python; null where it was killed at its timeout, or not run"`
	Artifacts []Artifact `json:"artifacts" doc:"files that the code made in its working directory"`
	Truncated bool       `json:"output_truncated,omitempty" doc:"something in the middle of the output is left out"`
	ElapsedMS int64      `json:"elapsed_ms" doc:"of the whole call"`
}

// Runner answers calls. Make one with New; Run keeps it going.
type Runner struct {
	o     Options
	log   *slog.Logger
	turns *turns // of calls that run
	files *files
	tasks sync.WaitGroup // removals

	mu     sync.Mutex
	images map[string]string  // guarded by mu; with the cached dependencies, by principal
	making map[string]*making // guarded by mu; by principal and packages
}

// making is an image that is made, or looked for.
type making struct {
	turn chan struct{} // semaphore
	n    int           // who has it or waits; guarded by Runner.mu
}

// Check says which option cannot be, by its name.
func (o *Options) Check() error {
	switch {
	case o.MemswapLimit < o.MemoryLimit:
		return fmt.Errorf("memswap_limit: %s of memory and swap are less than the memory of it, %s", sandbox.FormatSize(o.MemswapLimit), sandbox.FormatSize(o.MemoryLimit))
	case o.CPUQuota < 1000:
		return fmt.Errorf("cpu_quota: %d µs are less than 1000", o.CPUQuota)
	case o.Timeout < time.Second || o.Timeout > maxTimeout:
		return fmt.Errorf("timeout: %v is not within 1s and %v", o.Timeout, maxTimeout)
	case o.Parallel < 1 || o.Warm < 0:
		return errors.New("parallel: at least one call has to run")
	}
	for _, name := range o.CachedDependencies {
		if !IsPackage(name) {
			return fmt.Errorf("cached_dependencies: %q is no name of a package", name)
		}
		if !o.allowed(name) {
			return fmt.Errorf("cached_dependencies: %s is not in the whitelist", name)
		}
	}
	return o.limits().Check()
}

// New returns a Runner, or says which option cannot be.
func New(o Options) (*Runner, error) {
	if o.Hub == nil || o.Dir == "" {
		return nil, errors.New("agentrun: Hub and Dir are required")
	}
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("agentrun: %w", err)
	}
	store, err := newFiles(o.Dir)
	if err != nil {
		return nil, err
	}
	return &Runner{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), turns: newTurns(o.Parallel, maxWaiting), files: store,
		images: make(map[string]string), making: make(map[string]*making)}, nil
}

// Run removes files that nobody fetched, until ctx ends, and returns when what calls left has been removed.
func (r *Runner) Run(ctx context.Context) error {
	r.files.expire(ctx)
	r.tasks.Wait()
	return r.files.close()
}

func (o *Options) limits() sandbox.Limits {
	return sandbox.Limits{Memory: o.MemoryLimit, Swap: o.MemswapLimit - o.MemoryLimit, CPUs: float64(o.CPUQuota) / period, Shm: min(o.MemoryLimit, sandbox.DefaultLimits.Shm)}
}

// spec is what a call's sandbox is made by. A daemon that is killed leaves it to the next one, which removes it when it was idle.
func (r *Runner) spec(image string) lifecycle.NewSpec {
	return lifecycle.NewSpec{Image: image, Network: r.o.Network, Limits: r.o.limits(), Entrypoint: sandbox.EntrypointOff, TTL: forgotten, DeleteAfter: removeAfter}
}

// Call runs code for p. The error is one of ours or of the hub's: what the code does is the Result.
func (r *Runner) Call(ctx context.Context, p gateway.Principal, code string) (Result, error) {
	began := time.Now()
	release, err := r.turns.take(ctx, p.Name)
	if err != nil {
		return Result{}, err
	}
	c := &call{r: r, p: p, code: code, release: release}
	result, err := c.run(ctx)
	c.end()
	if err != nil {
		return Result{}, err
	}
	took := time.Since(began)
	result.ElapsedMS = took.Milliseconds()
	if result.Artifacts == nil {
		result.Artifacts = []Artifact{}
	}
	if r.o.Ended != nil {
		r.o.Ended(result.Status, took)
	}
	return result, nil
}

// call is one call under way.
type call struct {
	r       *Runner
	p       gateway.Principal
	code    string
	release func() // of its turn

	name string // of its sandbox; empty while there is none
}

func (c *call) run(ctx context.Context) (Result, error) {
	r := c.r
	image, err := r.cached(ctx, c.p)
	if err != nil {
		return Result{}, err
	}
	spec := r.spec(image)
	if err := r.o.Hub.KeepPooled(c.p, use, spec, r.o.Warm, keepWarm); err != nil {
		return Result{}, err
	}
	box, err := c.open(ctx, spec)
	if err != nil {
		r.uncache(c.p)
		return Result{}, err
	}
	defer func() { box.close() }()
	if mayImport(c.code) {
		missing, err := box.missing(ctx, c.code)
		if err != nil {
			return Result{}, err
		}
		if len(missing) > 0 {
			image, no, err := r.install(ctx, c.p, missing)
			if err != nil {
				return Result{}, err
			}
			if no != nil {
				return *no, nil
			}
			c.leave(box)
			if box, err = c.open(ctx, r.spec(image)); err != nil {
				return Result{}, err
			}
		}
	}
	return box.python(ctx, c.code)
}

// open makes the call's sandbox, or takes one that stands ready, and logs in to it.
func (c *call) open(ctx context.Context, spec lifecycle.NewSpec) (*box, error) {
	spec.Name = "run-" + strings.ToLower(rand.Text()[:8])
	c.name = spec.Name
	if _, err := c.r.o.Hub.Create(ctx, c.p, spec, nil); err != nil {
		c.name = ""
		return &box{}, err
	}
	return dial(ctx, c.r, c.p, spec.Name)
}

// leave removes the call's sandbox, for it to have another one.
func (c *call) leave(b *box) {
	b.close()
	c.remove(func() {})
}

// end removes the call's sandbox in the background. Its turn is over when that is: what is being removed takes room, too.
func (c *call) end() { c.remove(c.release) }

func (c *call) remove(done func()) {
	name := c.name
	if c.name = ""; name == "" {
		done()
		return
	}
	c.r.tasks.Go(func() {
		defer done()
		ctx, cancel := context.WithTimeout(context.Background(), removal)
		defer cancel()
		if _, err := c.r.o.Hub.Remove(ctx, c.p, name); err != nil && !errors.Is(err, lifecycle.ErrUnknown) && !errors.Is(err, lifecycle.ErrClosed) {
			c.r.log.Warn("sandbox of a call stays until it was idle for a while", "sandbox", name, "err", err)
		}
	})
}

// allowed reports whether a package may be installed.
func (o *Options) allowed(names ...string) bool {
	return slices.ContainsFunc(o.DependenciesWhitelist, func(allowed string) bool {
		return allowed == "*" || slices.ContainsFunc(names, func(name string) bool { return sameName(allowed, name) })
	})
}
