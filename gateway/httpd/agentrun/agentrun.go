// Package agentrun is the AgentRun-compatible API: it runs Python code and returns its output. Each
// call gets a new sandbox, which is removed afterwards. Packages that the code imports are
// installed into an image first. The package knows no listener.
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

// Options configure a Runner. Their names are AgentRun's where it has such an option.
type Options struct {
	Hub *gateway.Hub // required
	Dir string       // for artifacts; New empties it. Required
	Log *slog.Logger // nil discards

	DependenciesWhitelist []string // packages that may be installed; "*" allows all
	CachedDependencies    []string // packages that are preinstalled
	CPUQuota              int64    // microseconds of CPU time in each 100 ms
	MemoryLimit           int64    // bytes
	MemswapLimit          int64    // bytes of memory and swap together, if the machine has swap
	Timeout               time.Duration

	Image       string          // empty: the hub's default
	Network     sandbox.Network // of the code's sandbox; empty: the hub's default
	InstallFrom []string        // addresses that a package installation may connect to
	Warm        int             // pooled sandboxes for each principal who makes calls
	Parallel    int             // calls that run concurrently; others wait

	// Ended, if not nil, is called after each call.
	Ended func(status Status, took time.Duration)
}

// Defaults returns AgentRun's defaults, as of its version 0.2.5, and ours for options that it
// lacks.
func Defaults() Options {
	return Options{DependenciesWhitelist: []string{"*"}, CPUQuota: 50_000, MemoryLimit: 100 << 20,
		MemswapLimit: 512 << 20, Timeout: 20 * time.Second,
		InstallFrom: []string{"pypi.org:443", "files.pythonhosted.org:443"}, Warm: 4, Parallel: 8}
}

const (
	period      = 100_000 // microseconds, of CPUQuota
	maxWaiting  = 200     // waiting calls of one principal
	keepWarm    = 10 * time.Minute
	use         = "agentrun" // of pooled sandboxes
	forgotten   = 2 * time.Minute
	removeAfter = time.Minute
	removal     = time.Minute
	maxTimeout  = time.Hour
)

// Status is how a call ended.
type Status string

// The statuses of a call.
const (
	OK Status = "ok" // the code exited with 0
	// It exited with another status, or a package could not be installed.
	Failed    Status = "error"
	TimedOut  Status = "timed_out"  // it was killed at its timeout
	OOMKilled Status = "oom_killed" // a process was killed at the memory limit
	Refused   Status = "refused"    // it did not run: a package is not allowed
)

// Result is the result of a call.
type Result struct {
	Output    string     `json:"output" doc:"output of the code, including tracebacks"`
	Status    Status     `json:"status" enum:"ok,error,timed_out,oom_killed,refused" doc:"how the call ended"`
	ExitCode  *int       `json:"exit_code" doc:"exit code of Python; null after a timeout, or if the code did not run"`
	Artifacts []Artifact `json:"artifacts" doc:"files that the code created in its working directory"`
	Truncated bool       `json:"output_truncated,omitempty" doc:"true if the middle of the output was dropped"`
	ElapsedMS int64      `json:"elapsed_ms" doc:"duration of the whole call"`
}

// Runner runs calls. Create one with New; Run must run while it is used.
type Runner struct {
	o     Options
	log   *slog.Logger
	turns *turns // of running calls
	files *files
	tasks sync.WaitGroup // removals of sandboxes

	mu     sync.Mutex
	images map[string]string // guarded by mu; image with the cached dependencies, by principal
}

// Check returns an error that names the first invalid option.
func (o *Options) Check() error {
	switch {
	case o.MemswapLimit < o.MemoryLimit:
		return fmt.Errorf("memswap_limit: %s is less than memory_limit, %s; it includes memory",
			sandbox.FormatSize(o.MemswapLimit), sandbox.FormatSize(o.MemoryLimit))
	case o.CPUQuota < 1000:
		return fmt.Errorf("cpu_quota: %d µs is less than the minimum of 1000", o.CPUQuota)
	case o.Timeout < time.Second || o.Timeout > maxTimeout:
		return fmt.Errorf("timeout: %v is not between 1s and %v", o.Timeout, maxTimeout)
	case o.Parallel < 1 || o.Warm < 0:
		return errors.New("parallel must be at least 1, and warm at least 0")
	}
	for _, name := range o.CachedDependencies {
		if !IsPackage(name) {
			return fmt.Errorf("cached_dependencies: %q is not a package name", name)
		}
		if !o.allowed(name) {
			return fmt.Errorf("cached_dependencies: %s is not in dependencies_whitelist", name)
		}
	}
	return o.limits().Check()
}

// New returns a Runner. It removes all files in o.Dir.
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
	return &Runner{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		turns: newTurns(o.Parallel, maxWaiting), files: store,
		images: make(map[string]string)}, nil
}

// Run deletes expired artifacts until ctx ends. It returns when the sandboxes of all calls are
// removed.
func (r *Runner) Run(ctx context.Context) error {
	r.files.expire(ctx)
	r.tasks.Wait()
	return r.files.close()
}

func (o *Options) limits() sandbox.Limits {
	return sandbox.Limits{Memory: o.MemoryLimit, Swap: o.MemswapLimit - o.MemoryLimit,
		CPUs: float64(o.CPUQuota) / period, Shm: min(o.MemoryLimit, sandbox.DefaultLimits.Shm)}
}

// spec returns the specification of a call's sandbox. If the daemon is killed, the next one removes
// the sandbox after it was idle for a while.
func (r *Runner) spec(image string) lifecycle.NewSpec {
	return lifecycle.NewSpec{Image: image, Network: r.o.Network, Limits: r.o.limits(),
		Entrypoint: sandbox.EntrypointOff, TTL: forgotten, DeleteAfter: removeAfter}
}

// Call runs code for p. Failures of the code are part of the Result. An error means that the call
// itself failed.
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

	name string // of its sandbox; empty: none
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
	cn, err := c.open(ctx, spec)
	if err != nil {
		r.uncache(c.p)
		return Result{}, err
	}
	defer func() { cn.close() }()
	if mayImport(c.code) {
		missing, err := cn.missing(ctx, c.code)
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
			c.leave(cn)
			if cn, err = c.open(ctx, r.spec(image)); err != nil {
				return Result{}, err
			}
		}
	}
	return cn.python(ctx, c.code)
}

// open creates the call's sandbox, or takes a pooled one, and connects to it.
func (c *call) open(ctx context.Context, spec lifecycle.NewSpec) (*conn, error) {
	spec.Name = "run-" + strings.ToLower(rand.Text()[:8])
	c.name = spec.Name
	if _, err := c.r.o.Hub.Create(ctx, c.p, spec, nil); err != nil {
		c.name = ""
		return &conn{}, err
	}
	return dial(ctx, c.r, c.p, spec.Name)
}

// leave removes the call's sandbox, so that it can get another.
func (c *call) leave(b *conn) {
	b.close()
	c.remove(func() {})
}

// end removes the call's sandbox in the background. The call's turn ends after that, because a
// sandbox uses resources until it is removed.
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
		if _, err := c.r.o.Hub.Remove(ctx, c.p, name); err != nil &&
			!errors.Is(err, lifecycle.ErrUnknown) && !errors.Is(err, lifecycle.ErrClosed) {
			c.r.log.Warn("sandbox of a call not removed; its ttl will stop it", "sandbox", name,
				"err", err)
		}
	})
}

// allowed reports whether a package may be installed. names are its possible names.
func (o *Options) allowed(names ...string) bool {
	return slices.ContainsFunc(o.DependenciesWhitelist, func(allowed string) bool {
		return allowed == "*" || slices.ContainsFunc(
			names, func(name string) bool { return sameName(allowed, name) })
	})
}
