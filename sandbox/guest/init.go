//go:build linux

package guest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// configTimeout bounds the wait for the configuration on standard input.
	configTimeout = 10 * time.Second
	maxConfig     = 1 << 20

	// The daemon may be away, for an upgrade or indefinitely.
	redialFirst = 10 * time.Millisecond
	redialMost  = 250 * time.Millisecond

	// parked is how many threads exist before the sandbox can use up its processes. Later, a Go
	// program that cannot create a thread dies.
	parked = 32

	// restAfter is how long after the end of a channel the guest returns memory to the system. Most
	// of hundreds of sandboxes are idle; each would keep the buffers of its last transfer.
	restAfter = time.Second

	// maxProcs bounds the guest's processors on a large machine: it only copies.
	maxProcs = 4
)

// runInit is PID 1 of a sandbox, until it gets the order to stop. As PID 1 of a pod, it waits for
// its configuration without a time limit, and skips lines that are none: a daemon may have ended in
// the middle of one.
func runInit(pod bool) int {
	// First of all: without this, root in the sandbox could open /proc/1/mem, read the keys that
	// are about to arrive, and attach to this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: prctl:", err)
		return 1
	}
	if self, err := os.Readlink("/proc/self"); os.Getpid() != 1 || err != nil || self != "1" {
		// On an order it kills all other processes of its PID namespace, so it must be a namespace
		// of its own.
		fmt.Fprintln(
			os.Stderr, "sandboxd: init: must be PID 1 of a sandbox, with that sandbox's /proc")
		return exitUsage
	}
	ended := takeSignals()
	tun, err := openTun() // before its capability is dropped
	if err := errors.Join(err, dropCapabilities(), blockReserving(), protectLimits()); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd:", err)
		return 1
	}
	runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0)))
	// After the calls that change all threads, so that they change few. New threads inherit the
	// result.
	parkThreads()
	unix.Umask(0o022)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	workdir, err := os.Getwd() // that of the image
	if err != nil || workdir == "/" {
		workdir = ""
	}
	if err := os.Chdir("/"); err != nil {
		log.Warn("chdir", "err", err)
	}
	wait := configTimeout
	if pod {
		wait = 0
	}
	config, err := readConfig(os.Stdin, wait)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: configuration:", err)
		return exitConfig
	}
	closeStdin()
	if pod {
		config.Env = append(imageEnv(os.Environ()), config.Env...)
		config.Workdir = cmp.Or(config.Workdir, workdir)
	}
	if err := checkMounts(config.Mounts); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: configuration:", err)
		return exitConfig
	}
	if config.Authorities != "" {
		if err := makeAuthorities(config.Authorities); err != nil {
			fmt.Fprintln(os.Stderr, "sandboxd: certificate authorities:", err)
			return exitConfig
		}
	}
	if err := prepareImage("/etc", config); err != nil {
		log.Warn("account", "err", err)
	}

	if (tun >= 0) != (config.TunSocket != "") {
		fmt.Fprintln(
			os.Stderr, "sandboxd: configuration: a network device needs a socket, and the reverse")
		return exitConfig
	}

	procs := newChildren(true)
	g, err := newGuest(config, Options{Log: log}, procs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: configuration:", err)
		return exitConfig
	}
	ctx, cancel := context.WithCancel(context.Background())
	listeners, err := listenOn(ctx, config.Listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: configuration:", err)
		cancel()
		return exitConfig
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range ended {
			procs.reap(-1)
		}
	})
	g.quiet = time.AfterFunc(restAfter, debug.FreeOSMemory)
	for _, l := range listeners {
		wg.Go(func() { g.answer(ctx, l) })
	}
	if config.Socket != "" {
		wg.Go(func() { g.callIn(ctx, config.Socket) })
	}
	if tun >= 0 {
		wg.Go(func() { passTun(ctx, tun, config.TunSocket) })
	}
	g.Begin(ctx)
	<-g.Stopped()
	// The process ends with its remaining goroutines: nothing waits for them, and connections get
	// EOF from the kernel.
	cancel()
	return 0
}

// allSignals returns every signal that a Go program can handle, except CHLD, which the guest uses,
// and URG, which the runtime uses. The runtime leaves 32 and 34 at their default for C libraries,
// and uses 33 itself.
func allSignals() []os.Signal {
	var all []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, 32, 33, 34:
		default:
			all = append(all, n)
		}
	}
	return all
}

// takeSignals handles every signal and obeys none: only the daemon can order a stop. Ignoring them
// would not do, because children inherit that; nor would TERM alone, because QUIT, ABRT, SEGV and
// others end a Go process. The returned channel gets one value when one or more children have
// ended.
func takeSignals() <-chan os.Signal {
	// Full after the first signal, and never read: later ones are dropped.
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, allSignals()...)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	return ended
}

// parkThreads makes the runtime create its threads now.
func parkThreads() {
	var ready, done sync.WaitGroup
	hold := make(chan struct{})
	ready.Add(parked)
	for range parked {
		done.Go(func() {
			runtime.LockOSThread() // one thread each, while all are locked
			ready.Done()
			<-hold
			runtime.UnlockOSThread()
		})
	}
	ready.Wait()
	close(hold)
	done.Wait()
}

// readConfig reads the one line of configuration. If timeout is 0, it waits without a limit and
// skips lines that are no configuration.
func readConfig(r io.Reader, timeout time.Duration) (wire.GuestConfig, error) {
	type result struct {
		config wire.GuestConfig
		err    error
	}
	got := make(chan result, 1)
	// It ends with its read, or with the process.
	go func() {
		config, err := scanConfig(r, timeout == 0)
		got <- result{config, err}
	}()
	var late <-chan time.Time
	if timeout > 0 {
		late = time.After(timeout)
	}
	select {
	case <-late:
		return wire.GuestConfig{}, fmt.Errorf("no configuration on standard input within %v",
			timeout)
	case res := <-got:
		return res.config, res.err
	}
}

// scanConfig reads the first line, or the first that is a configuration.
func scanConfig(r io.Reader, skips bool) (wire.GuestConfig, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxConfig)
	for lines.Scan() {
		var config wire.GuestConfig
		err := json.Unmarshal(lines.Bytes(), &config)
		switch {
		case err == nil && (config.Socket == "") != (len(config.Listen) == 0):
			return config, nil
		case skips:
		case err != nil:
			// Without its text, which may contain a key.
			return config, errors.New("is not one line of JSON")
		default:
			return config, errors.New("names no socket, or one besides addresses to listen on")
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return wire.GuestConfig{}, errors.New("is not one line of JSON")
	}
	return wire.GuestConfig{}, cmp.Or(lines.Err(), io.EOF)
}

// closeStdin closes standard input, and reserves its number so that no later file gets it.
func closeStdin() {
	os.Stdin.Close()
	if fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil && fd != 0 {
		_ = unix.Dup3(fd, 0, unix.O_CLOEXEC)
		unix.Close(fd)
	}
}

// callIn keeps one connection waiting at the daemon's socket, and serves each that the daemon
// claims by its first byte, until ctx ends.
func (g *Guest) callIn(ctx context.Context, socket string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for wait := redialFirst; ctx.Err() == nil; {
		conn, err := awaitClaim(ctx, socket)
		if err != nil {
			sleep(ctx, wait)
			wait = min(2*wait, redialMost)
			continue
		}
		wait = redialFirst
		wg.Go(func() {
			if err := g.ServeConn(ctx, conn); err != nil {
				g.log.Warn("connection", "err", err)
			}
		})
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// awaitClaim dials and returns when the peer has sent something.
func awaitClaim(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := awaitByte(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// awaitByte waits for the first byte without consuming it.
func awaitByte(conn *net.UnixConn) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	poll := []unix.PollFd{{Events: unix.POLLIN | unix.POLLRDHUP}}
	rerr := rc.Read(func(fd uintptr) bool {
		poll[0].Fd = int32(fd)
		n, _ := unix.Poll(poll, 0)
		return n > 0
	})
	if rerr == nil && poll[0].Revents&(unix.POLLHUP|unix.POLLRDHUP) != 0 {
		return io.EOF
	}
	return rerr
}
