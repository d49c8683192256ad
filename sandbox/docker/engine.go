package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
)

// engine makes single calls of the Docker Engine. Each call is bounded in time, and its error says
// whether the engine was unreachable, denied it, or failed. It knows containers, not sandboxes. Its
// methods may be called concurrently.
type engine struct {
	api    *client.Client
	host   string // as in DOCKER_HOST
	socket string // path; empty if the engine is reached in another way
	dir    string // of this daemon, for files that the engine may see
	daemon string // ID; labelDaemon or labelMade of everything that we make
	log    *slog.Logger
	limits limits
	cache  engineCache

	silence  silence       // of containers of a remote engine
	greeting chan struct{} // semaphore
	greeted  atomic.Bool   // the API version is negotiated
}

func newEngine(host, dir, daemon string, log *slog.Logger) (*engine, error) {
	api, err := NewClient(host)
	if err != nil {
		return nil, err
	}
	socket, isSocket := strings.CutPrefix(host, "unix://")
	if !isSocket {
		socket = ""
	}
	return &engine{api: api, host: host, socket: socket, dir: dir, daemon: daemon, log: log,
		limits: defaultLimits, greeting: make(chan struct{}, 1)}, nil
}

func (e *engine) close() error { return e.api.Close() }

// limits bound one call of the engine by its kind, to distinguish an engine that hangs from one
// that is busy. Tests shorten them.
type limits struct{ quick, create, start, remove time.Duration }

var defaultLimits = limits{
	quick: 10 * time.Second, create: 30 * time.Second, start: 60 * time.Second,
	remove: 60 * time.Second,
}

// How long facts stay cached: they seldom change while an engine runs.
const factsAge = 5 * time.Minute

// call makes one request, for at most d. Its error is the cause of ctx if that ended, ErrEngine if
// the engine did not answer, or the engine's answer.
func (e *engine) call(ctx context.Context, d time.Duration, what string,
	f func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := e.greet(bounded)
	if err == nil {
		err = f(bounded)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case bounded.Err() != nil:
		e.cache.forget()
		return sandbox.Hint(fmt.Errorf("%s: %w within %v", what, sandbox.ErrEngine, d),
			e.hint("see the engine's log (journalctl -u docker)"))

	case isUnreachable(err):
		e.cache.forget()
		return sandbox.Hint(fmt.Errorf("%s: %w: %w", what, sandbox.ErrEngine, err),
			e.hint(unreachableHint(err)))
	}
	err = fmt.Errorf("%s: %w", what, err)
	// The client's prefix of an answer.
	if strings.Contains(err.Error(), "Error response from daemon: ") {
		return refused{err}
	}
	return err
}

// refused is a negative answer of the engine, with the engine's text.
type refused struct{ error }

func (e refused) Unwrap() []error { return []error{e.error, sandbox.ErrRefused} }

// greet negotiates the API version, once. The client would do so at its first call, under a lock
// that ignores contexts: while an engine hangs, every caller would wait as long as the one with the
// longest timeout.
func (e *engine) greet(ctx context.Context) error {
	if e.greeted.Load() {
		return nil
	}
	select {
	case e.greeting <- struct{}{}:
		defer func() { <-e.greeting }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e.greeted.Load() {
		return nil
	}
	_, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	e.greeted.Store(err == nil)
	return err
}

// isUnreachable distinguishes an engine that is unreachable from one that denies a call.
func isUnreachable(err error) bool {
	var netErr net.Error
	return client.IsErrConnectionFailed(err) || errors.As(err, &netErr) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// hint returns what to do about an engine that does not answer: local, if it is this machine's.
func (e *engine) hint(local string) string {
	if e.socket == "" {
		return "try: docker -H " + e.host + " version"
	}
	return local
}

func unreachableHint(err error) string {
	if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "permission denied") {
		return "this user may not use the engine: run sudo usermod -aG docker $USER, then log in " +
			"again"
	}
	return "start the engine, with systemd: systemctl start docker; or let scripts/setup install one"
}

// facts describe an engine and its abilities, as far as sandboxes depend on them.
type facts struct {
	version        string
	arch           string // Go's spelling
	cpus           int
	memory         int64    // bytes; 0: unknown
	runtimes       []string // names for users, sorted
	defaultRuntime string
	unfit          map[string]string // misconfigured runtimes, with their missing settings
	swapLimit      bool
	rootless       bool
	noFile         int64  // its own limit; 0: unknown
	root           string // directory of its data
	// Its storage may bound what a container writes; if it cannot, creation fails.
	sized        bool
	logs         string // log driver that bounds a container's output
	compatible   bool   // it speaks Docker's API but is not Docker; see IsDockers
	sharedGroups bool   // containers have no control group namespace of their own
	remote       bool   // containers cannot use files and sockets of this daemon; see remote.go
	odd          error  // why that is not known; remote is false then
}

// engineCache caches facts: asking takes half as long as starting a container.
type engineCache struct {
	mu    sync.Mutex
	facts facts     // guarded by mu
	at    time.Time // guarded by mu; zero: nothing cached
	// Guarded by mu; containers get the engine's own descriptor limit, because it could not raise
	// it to ours.
	inherit bool
	// Guarded by mu; containers get no storage quota, because the storage has none.
	unsized bool
}

func (c *engineCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}

// refusedNoFile records that the engine cannot raise a container's descriptor limit to ours.
func (c *engineCache) refusedNoFile() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inherit = true
}

// refusedSize records that the storage cannot limit what a container writes.
func (c *engineCache) refusedSize() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsized = true
}

// sized reports whether to ask the storage for that limit.
func (c *engineCache) sized(f facts) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f.sized && !c.unsized
}

// defaultNoFile returns the smaller of our default and the engine's own limit; 0 keeps the
// engine's.
func (c *engineCache) defaultNoFile(f facts) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inherit:
		return 0
	case f.noFile > 0:
		return min(sandbox.DefaultLimits.NoFile, f.noFile)
	}
	return sandbox.DefaultLimits.NoFile
}

// facts returns the engine's abilities, cached. An engine that cannot run sandboxes is an error.
func (e *engine) facts(ctx context.Context) (facts, error) {
	e.cache.mu.Lock()
	f, fresh := e.cache.facts, time.Since(e.cache.at) < factsAge
	e.cache.mu.Unlock()
	if fresh {
		return f, nil
	}
	var info system.Info
	err := e.call(ctx, e.limits.quick, "ask engine", func(ctx context.Context) error {
		r, err := e.api.Info(ctx, client.InfoOptions{})
		info = r.Info
		return err
	})
	if err != nil {
		return facts{}, err
	}
	if f, err = factsOf(info); err != nil {
		return facts{}, err
	}
	err = e.call(ctx, e.limits.quick, "ask engine", func(ctx context.Context) error {
		v, err := e.api.ServerVersion(ctx, client.ServerVersionOptions{})
		if err == nil && !IsDockers(v) {
			f.adapt(info)
		}
		return err
	})
	if err != nil {
		return facts{}, err
	}
	if f.remote, f.odd, err = e.isRemote(ctx, info, f.compatible); err != nil {
		return facts{}, err
	}
	if f.odd != nil {
		e.log.Warn("the engine counts as this machine's", "err", f.odd)
	}
	if !f.remote {
		f.noFile = engineNoFile(ctx, e.socket)
	}
	e.cache.mu.Lock()
	e.cache.facts, e.cache.at = f, time.Now()
	e.cache.mu.Unlock()
	return f, nil
}

// logDrivers bound the size of a container's log, best first. local is Docker's and rotates three
// files; k8s-file is Podman's and truncates. Other drivers have no bound by themselves.
var logDrivers = []string{"local", "k8s-file"}

// factsOf reads the engine's own description. If it lacks something that a sandbox needs, the error
// says what it has instead.
func factsOf(info system.Info) (facts, error) {
	unsupported := func(format string, args ...any) (facts, error) {
		return facts{}, fmt.Errorf("engine %s: %w: %s",
			info.ServerVersion, sandbox.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	f := facts{
		version: info.ServerVersion, cpus: info.NCPU, memory: info.MemTotal,
		swapLimit:      info.SwapLimit,
		defaultRuntime: info.DefaultRuntime, root: info.DockerRootDir,
		unfit: make(map[string]string),
	}
	switch info.Driver {
	case "btrfs", "zfs":
		f.sized = true
	// With project quotas, which only an attempt reveals (OverlayFS, Docker's manual).
	case "overlay2":
		f.sized = slices.Contains(info.DriverStatus, [2]string{"Backing Filesystem", "xfs"})
	}
	switch info.Architecture {
	case "x86_64", "amd64":
		f.arch = "amd64"
	case "aarch64", "arm64":
		f.arch = "arm64"
	default:
		return unsupported("no guest program for architecture %q", info.Architecture)
	}
	if info.OSType != "linux" {
		return unsupported("it runs %s containers, not Linux ones", info.OSType)
	}
	seccomp := false
	for _, option := range info.SecurityOptions {
		switch {
		case strings.Contains(option, "name=userns"):
			return unsupported(
				"it maps users of containers (userns-remap), so they cannot use their sockets")
		case strings.Contains(option, "name=rootless"):
			f.rootless = true
		case strings.Contains(option, "name=seccomp"):
			seccomp = !strings.Contains(option, "profile=unconfined")
		}
	}
	switch {
	case !seccomp:
		return unsupported(
			"it does not filter system calls (it has %s, no default seccomp profile)",
			strings.Join(info.SecurityOptions, ", "))
	case !info.MemoryLimit:
		return unsupported("its kernel does not limit memory (the memory cgroup is missing)")
	case !info.PidsLimit:
		return unsupported("its kernel does not limit processes (the pids cgroup is missing)")
	// A rootless Podman looks for it where its user has no group. A start checks the limits anyway.
	case !info.CPUCfsQuota && info.CgroupVersion != "2":
		return unsupported("its kernel does not limit CPU time (CFS quota is missing)")
	}
	at := slices.IndexFunc(logDrivers, func(name string) bool {
		return slices.Contains(info.Plugins.Log, name)
	})
	if at < 0 {
		return unsupported("none of its log drivers (%s) bounds a sandbox's output: it needs %s",
			strings.Join(info.Plugins.Log, ", "), strings.Join(logDrivers, " or "))
	}
	f.logs = logDrivers[at]
	for _, name := range slices.Sorted(maps.Keys(info.Runtimes)) {
		if !strings.HasPrefix(name, "io.containerd.") {
			f.runtimes = append(f.runtimes, name)
		}
		if missing := missingFlags(info.Runtimes[name].Path,
			info.Runtimes[name].Args); missing != "" {
			f.unfit[name] = missing
		}
	}
	return f, nil
}

// With gVisor's defaults a sandbox would lose its files when it stops, and its guest could not call
// (runsc flags, gvisor.dev).
var runscFlags = []string{"overlay2=none", "host-uds=all"}

// missingFlags returns the required flags that a runtime lacks. The engine does not report flags of
// other kinds of runtimes.
func missingFlags(program string, args []string) string {
	if path.Base(program) != "runsc" {
		return ""
	}
	var missing []string
	for _, flag := range runscFlags {
		if !slices.ContainsFunc(args, func(arg string) bool {
			return strings.TrimLeft(arg, "-") == flag
		}) {
			missing = append(missing, "--"+flag)
		}
	}
	return strings.Join(missing, " ")
}

// engineNoFile returns the descriptor limit of the process that listens on the engine's socket, 0
// if unknown. An engine without CAP_SYS_RESOURCE cannot give a container more. If systemd holds the
// socket it is systemd's limit, which is not lower.
func engineNoFile(ctx context.Context, socket string) int64 {
	pid := enginePid(ctx, socket)
	if pid == 0 {
		return 0
	}
	_, hard := noFileOf(pid)
	return hard
}

// enginePid returns the process that listens on the engine's socket, 0 if unknown.
func enginePid(ctx context.Context, socket string) int {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0
	}
	defer conn.Close()
	return guestsock.PeerPID(conn.(*net.UnixConn))
}

// engineStart returns the start time of the process that listens on the engine's socket, zero if
// unknown.
func engineStart(ctx context.Context, socket string) time.Time {
	pid := enginePid(ctx, socket)
	if pid == 0 {
		return time.Time{}
	}
	// The directory in proc(5) gets its time from its first reader, so it does not help. Field 22
	// of stat is the start time since boot, in hundredths of a second.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}
	}
	// From field 3 on.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}
	}
	since, err := sinceBoot()
	if err != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - since)
}

// noFileOf returns the soft and hard descriptor limits of a process on this machine, 0 if unlimited
// or unknown. It reads proc(5), which all users may: prlimit(2) needs CAP_SYS_RESOURCE for
// processes of other users.
func noFileOf(pid int) (soft, hard int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, 0
	}
	_, rest, _ := strings.Cut(string(text), "\nMax open files ")
	limits := strings.Fields(rest)
	if len(limits) < 2 {
		return 0, 0
	}
	parse := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n > 1<<40 {
			return 0 // unlimited
		}
		return n
	}
	return parse(limits[0]), parse(limits[1])
}
