package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// The sockets of a sandbox. Names are short, and the directory above is mounted: the guest dials guestSocket and guestTun.
const (
	socketName    = "s" // on which SSH goes
	tunSocketName = "n" // on which the network device is passed
)

// A guest keeps one connection waiting. More are those of a guest that misbehaves, or of an earlier life.
const maxWaiting = 8

// knocksEvery is how often calls of others are told of.
const knocksEvery = 10 * time.Second

// Root in the sandbox can connect to the socket as fast as the kernel lets it. Once calls that are not known to be the guest's have
// spent their burst, the daemon rests between a few of them, so that they cost it next to nothing.
const (
	strangersRate  = 320 // a second
	strangersBurst = 64
	strangersRest  = 50 * time.Millisecond // one wake-up for the calls of that time: each costs more than a call
	// doorBacklog is how many calls the kernel keeps for the daemon. The guest makes one at a time, and waits its turn behind
	// those of others: more places would make that longer.
	doorBacklog = 4
)

var errDoorClosed = errors.New("socket closed")

// door is the unix socket of one sandbox, on which its guest calls in. Connections wait in a queue until they are taken.
type door struct {
	listener *net.UnixListener
	log      *slog.Logger
	waiting  chan caller
	done     chan struct{}
	wg       sync.WaitGroup

	strangers *rate.Limiter         // of calls that are not known to be the guest's
	rest      func(d time.Duration) // returns after d, or when the door is closed; a test counts instead

	mu     sync.Mutex
	known  bool      // guarded by mu; admit was called
	pid    int       // guarded by mu; who may call: the container's first process; 0: anybody
	knocks int       // guarded by mu; of others, since they were last told of
	told   time.Time // guarded by mu; when that was
}

// caller is a connection that waits to be taken.
type caller struct {
	conn *net.UnixConn
	pid  int // of the process that dialled, 0 when this side cannot see it
}

// openDoor listens on a socket in dir. It is bound through /proc/self/fd, because an address holds 108 bytes and state
// directories are often longer.
func openDoor(dir, name string, log *slog.Logger) (*door, error) {
	d, err := newDoor(dir, name, log)
	if err == nil {
		d.wg.Go(d.accept)
	}
	return d, err
}

// newDoor is openDoor without the goroutine that accepts.
func newDoor(dir, name string, log *slog.Logger) (*door, error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove old socket in %s: %w", dir, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // by then the path means another directory
	if err := unix.Fchmodat(fd, name, 0o600, 0); err != nil {
		l.Close()
		return nil, fmt.Errorf("chmod socket in %s: %w", dir, err)
	}
	if err := setBacklog(l, doorBacklog); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	d := &door{listener: l, log: log, waiting: make(chan caller, maxWaiting), done: make(chan struct{}),
		strangers: rate.NewLimiter(strangersRate, strangersBurst)}
	d.rest = d.sleep
	return d, nil
}

// setBacklog changes how many connections wait to be accepted (listen(2); package net asks for as many as there may be).
func setBacklog(l *net.UnixListener, n int) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), n) }), err)
}

// admit says which process may call from now on; others that wait are sent away. 0 admits all.
func (d *door) admit(pid int) {
	d.mu.Lock()
	same := d.known && d.pid == pid
	d.known, d.pid = true, pid
	d.mu.Unlock()
	if same {
		return
	}
	for range len(d.waiting) {
		select {
		case c := <-d.waiting:
			d.enqueue(c)
		default:
			return
		}
	}
}

// admits tells whether it is settled who may call.
func (d *door) admits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known
}

// clear sends away who waits: callers of a container that has ended.
func (d *door) clear() {
	for {
		select {
		case c := <-d.waiting:
			c.conn.Close()
		default:
			return
		}
	}
}

func (d *door) accept() {
	for {
		conn, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: it passes, and the guest waits in the backlog
			d.log.Error("accept guest", "err", err)
			d.rest(100 * time.Millisecond)
			continue
		}
		c := caller{conn, peerPid(conn)}
		known := d.isGuest(c)
		d.enqueue(c)
		if !known && !d.strangers.Allow() {
			d.rest(strangersRest)
		}
	}
}

func (d *door) sleep(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.done:
	}
}

// isGuest reports whether c is known to come from the sandbox's guest.
func (d *door) isGuest(c caller) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pid != 0 && c.pid == d.pid
}

// enqueue lets c wait, unless it is not the one who may call. Who waited longest makes room.
func (d *door) enqueue(c caller) {
	d.mu.Lock()
	want := d.pid
	d.mu.Unlock()
	// Root in the sandbox sees the socket too. The pinned host key would find it out; this keeps it from holding places.
	if want != 0 && c.pid != 0 && c.pid != want {
		d.knocked(c.pid, want)
		c.conn.Close()
		return
	}
	for {
		select {
		case d.waiting <- c:
			return
		default:
		}
		select {
		case old := <-d.waiting:
			old.conn.Close()
		default:
		}
	}
}

// knocked notes that a process which is not the guest called: root in the sandbox may do so without end.
func (d *door) knocked(pid, want int) {
	d.mu.Lock()
	d.knocks++
	n, tell := d.knocks, time.Since(d.told) > knocksEvery
	if tell {
		d.told, d.knocks = time.Now(), 0
	}
	d.mu.Unlock()
	if tell {
		d.log.Warn("a process that is not the guest called", "pid", pid, "want", want, "calls", n)
	}
}

// take waits for the next live connection. The caller closes it.
func (d *door) take(ctx context.Context) (*net.UnixConn, error) {
	c, err := d.next(ctx)
	if err != nil {
		return nil, err
	}
	return c.conn, nil
}

// wait returns when a live connection waits, and leaves it there.
func (d *door) wait(ctx context.Context) error {
	c, err := d.next(ctx)
	if err == nil {
		d.enqueue(c)
	}
	return err
}

func (d *door) next(ctx context.Context) (caller, error) {
	for {
		select {
		case c := <-d.waiting:
			if !alive(c.conn) {
				c.conn.Close()
				continue
			}
			return c, nil
		default:
		}
		select {
		case c := <-d.waiting:
			if !alive(c.conn) {
				c.conn.Close()
				continue
			}
			return c, nil
		case <-ctx.Done():
			return caller{}, context.Cause(ctx)
		case <-d.done:
			return caller{}, errDoorClosed
		}
	}
}

func (d *door) close() {
	close(d.done)
	d.listener.Close()
	d.wg.Wait()
	d.clear()
}

// peerPid is the process that dialled, as this process's PID namespace numbers it.
func peerPid(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // a connection that is closed has no peer
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// alive tells whether the other side has hung up, without taking a byte of what it sent.
func alive(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
	})
	return err == nil && ok
}
