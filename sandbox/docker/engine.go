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
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker/guestsock"
)

// engine asks the Docker Engine one thing at a time. Each call is bounded, and its error says
// whether the engine was away, refused, or failed. It knows containers, not sandboxes. Its methods
// may be called concurrently.
type engine struct {
	api    *client.Client
	socket string // path
	daemon string // ID; what we made carries it in labelDaemon or labelMade
	log    *slog.Logger
	limits limits
	cache  engineCache

	greeting chan struct{} // semaphore
	greeted  atomic.Bool   // the version of the API is settled
}

func newEngine(host, daemon string, log *slog.Logger) (*engine, error) {
	api, err := client.New(client.WithHost(host), client.WithUserAgent("sandboxd"))
	if err != nil {
		return nil, fmt.Errorf("docker: engine %s: %w", host, err)
	}
	return &engine{api: api, socket: strings.TrimPrefix(host, "unix://"), daemon: daemon, log: log,
		limits: defaultLimits, greeting: make(chan struct{}, 1)}, nil
}

func (e *engine) close() error { return e.api.Close() }

// limits bound one call of the engine by its kind, so that an engine that hangs is told from one
// that is busy. Tests shorten them.
type limits struct{ quick, create, start, remove time.Duration }

var defaultLimits = limits{
	quick: 10 * time.Second, create: 30 * time.Second, start: 60 * time.Second, remove: 60 * time.Second,
}

// How long facts are kept: they seldom change while an engine runs.
const factsAge = 5 * time.Minute

// hinted is an error with what to do about it, which becomes BootError.Hint.
type hinted struct {
	error
	hint string
}

func (e hinted) Unwrap() error { return e.error }

func hintOf(err error) string {
	var h hinted
	if errors.As(err, &h) {
		return h.hint
	}
	return ""
}

// call makes one request, for at most d. Errors: the cause of ctx if that ended; ErrEngine if the
// engine did not answer; else its answer.
func (e *engine) call(ctx context.Context, d time.Duration, what string, f func(context.Context) error) error {
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
		return hinted{fmt.Errorf("%s: %w within %v", what, sandbox.ErrEngine, d), "see the engine's log (journalctl -u docker)"}
	case isUnreachable(err):
		e.cache.forget()
		return hinted{fmt.Errorf("%s: %w: %w", what, sandbox.ErrEngine, err), unreachableHint(err)}
	}
	err = fmt.Errorf("%s: %w", what, err)
	if strings.Contains(err.Error(), "Error response from daemon: ") { // the client's prefix of an answer
		return refused{err}
	}
	return err
}

// refused is a negative answer of the engine. Its text is the engine's.
type refused struct{ error }

func (e refused) Unwrap() []error { return []error{e.error, sandbox.ErrRefused} }

// greet negotiates the version of the API, once. The client would do so at its first call, under a
// lock that ignores contexts: while an engine hangs, everybody would wait as long as the most
// patient caller.
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

// isUnreachable tells an engine that is away from one that refuses.
func isUnreachable(err error) bool {
	var netErr net.Error
	return client.IsErrConnectionFailed(err) || errors.As(err, &netErr) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func unreachableHint(err error) string {
	if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "permission denied") {
		return "this user may not use the engine: sudo usermod -aG docker $USER, and log in again"
	}
	return "start the engine (systemctl start docker), or let scripts/setup install one"
}

// facts are what an engine is and can do, as far as sandboxes depend on it.
type facts struct {
	version        string
	arch           string // Go's spelling
	cpus           int
	memory         int64    // bytes; 0: not told
	runtimes       []string // names a person would use, sorted
	defaultRuntime string
	unfit          map[string]string // misconfigured runtimes, with what is missing
	swapLimit      bool
	rootless       bool
	noFile         int64  // its own limit; 0: not to be seen
	root           string // directory where it keeps everything
	sized          bool   // its storage may bound what a container writes; where it cannot it says so
	logs           string // log driver that bounds what a container prints
	speaks         bool   // it speaks Docker's API and is another's; see IsDockers
	sharedGroups   bool   // containers have no namespace of control groups of their own
}

// engineCache keeps facts for a while: asking costs half as much as starting a container.
type engineCache struct {
	mu      sync.Mutex
	facts   facts     // guarded by mu
	at      time.Time // guarded by mu; zero: nothing known
	inherit bool      // guarded by mu; containers get the engine's own descriptor limit, because it refused ours
	unsized bool      // guarded by mu; containers get no quota of the storage, because it has none
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

// sized reports whether the storage may be asked for that limit.
func (c *engineCache) sized(f facts) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f.sized && !c.unsized
}

// defaultNoFile returns the smaller of our default and the engine's own limit; 0 leaves the
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

// facts returns what the engine can do, cached. An engine that cannot hold a sandbox is an error.
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
			f.speaker(info)
		}
		return err
	})
	if err != nil {
		return facts{}, err
	}
	f.noFile = engineNoFile(ctx, e.socket)
	e.cache.mu.Lock()
	e.cache.facts, e.cache.at = f, time.Now()
	e.cache.mu.Unlock()
	return f, nil
}

// logDrivers bound the size of a container's log, best first. local is Docker's and rotates three
// files; k8s-file is Podman's and truncates. Other drivers have no bound of their own.
var logDrivers = []string{"local", "k8s-file"}

// factsOf reads the engine's own description. Anything missing that a sandbox needs is an error
// that says what is there instead.
func factsOf(info system.Info) (facts, error) {
	unsupported := func(format string, args ...any) (facts, error) {
		return facts{}, fmt.Errorf("engine %s: %w: %s",
			info.ServerVersion, sandbox.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	f := facts{
		version: info.ServerVersion, cpus: info.NCPU, memory: info.MemTotal, swapLimit: info.SwapLimit,
		defaultRuntime: info.DefaultRuntime, root: info.DockerRootDir, unfit: make(map[string]string),
	}
	switch info.Driver {
	case "btrfs", "zfs":
		f.sized = true
	case "overlay2": // with project quotas, which only an attempt shows (OverlayFS, Docker's manual)
		f.sized = slices.Contains(info.DriverStatus, [2]string{"Backing Filesystem", "xfs"})
	}
	switch info.Architecture {
	case "x86_64", "amd64":
		f.arch = "amd64"
	case "aarch64", "arm64":
		f.arch = "arm64"
	default:
		return unsupported("there is no guest for architecture %q", info.Architecture)
	}
	if info.OSType != "linux" {
		return unsupported("it runs %s containers, not Linux ones", info.OSType)
	}
	if strings.Contains(info.OperatingSystem, "Docker Desktop") {
		return unsupported("Docker Desktop keeps its containers in a virtual machine that does not see this machine's sockets")
	}
	seccomp := false
	for _, option := range info.SecurityOptions {
		switch {
		case strings.Contains(option, "name=userns"):
			return unsupported("it maps users of containers (userns-remap) away from those that own their sockets")
		case strings.Contains(option, "name=rootless"):
			f.rootless = true
		case strings.Contains(option, "name=seccomp"):
			seccomp = !strings.Contains(option, "profile=unconfined")
		}
	}
	switch {
	case !seccomp:
		return unsupported("it filters no system calls (it has %s, no default seccomp profile)", strings.Join(info.SecurityOptions, ", "))
	case !info.MemoryLimit:
		return unsupported("its kernel limits no memory (memory cgroup is missing)")
	case !info.PidsLimit:
		return unsupported("its kernel limits no processes (pids cgroup is missing)")
	case !info.CPUCfsQuota:
		return unsupported("its kernel limits no CPU time (CFS quota is missing)")
	}
	at := slices.IndexFunc(logDrivers, func(name string) bool { return slices.Contains(info.Plugins.Log, name) })
	if at < 0 {
		return unsupported("none of its log drivers (%s) bounds what a sandbox prints: it needs %s",
			strings.Join(info.Plugins.Log, ", "), strings.Join(logDrivers, " or "))
	}
	f.logs = logDrivers[at]
	for _, name := range slices.Sorted(maps.Keys(info.Runtimes)) {
		if !strings.HasPrefix(name, "io.containerd.") {
			f.runtimes = append(f.runtimes, name)
		}
		if missing := missingFlags(info.Runtimes[name].Path, info.Runtimes[name].Args); missing != "" {
			f.unfit[name] = missing
		}
	}
	return f, nil
}

// With gVisor's defaults a sandbox would lose its files at a stop, and its guest could not call
// (runsc flags, gvisor.dev).
var runscFlags = []string{"overlay2=none", "host-uds=all"}

// missingFlags returns the required flags that a runtime is not started with. The engine does not
// report them for other kinds of runtimes.
func missingFlags(program string, args []string) string {
	if path.Base(program) != "runsc" {
		return ""
	}
	var missing []string
	for _, flag := range runscFlags {
		if !slices.ContainsFunc(args, func(arg string) bool { return strings.TrimLeft(arg, "-") == flag }) {
			missing = append(missing, "--"+flag)
		}
	}
	return strings.Join(missing, " ")
}

// engineNoFile returns the descriptor limit of the process that listens on the engine's socket, 0
// if it cannot be seen. An engine without CAP_SYS_RESOURCE cannot give a container more. If
// systemd holds the socket it is systemd's limit, which is not lower.
func engineNoFile(ctx context.Context, socket string) int64 {
	pid := enginePid(ctx, socket)
	if pid == 0 {
		return 0
	}
	_, hard := noFileOf(pid)
	return hard
}

// enginePid returns the process that listens on the engine's socket, 0 if it cannot be seen.
func enginePid(ctx context.Context, socket string) int {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0
	}
	defer conn.Close()
	return guestsock.PeerPID(conn.(*net.UnixConn))
}

// engineStart returns the start time of the process that listens on the engine's socket, zero if
// it cannot be seen.
func engineStart(ctx context.Context, socket string) time.Time {
	pid := enginePid(ctx, socket)
	if pid == 0 {
		return time.Time{}
	}
	// The directory in proc(5) is as old as its first reader. Field 22 of stat is the start after
	// boot, in hundredths of a second.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	var since unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil {
		return time.Time{}
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // from the third on
	if len(fields) < 20 {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - time.Duration(since.Nano()))
}

// noFileOf returns the soft and hard descriptor limits of a process on this machine, 0 if
// unlimited or not visible. It reads proc(5), which everybody may: prlimit(2) needs
// CAP_SYS_RESOURCE for processes of other users.
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
