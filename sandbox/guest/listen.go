//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxCallers bounds the connections that have not logged in. Programs of the sandbox can connect,
// too: beyond the bound, the oldest connection is closed, so that silent ones do not keep the
// daemon out.
const maxCallers = 64

// splitAddress splits an address of wire.GuestConfig.Listen.
func splitAddress(address string) (network, name string, err error) {
	network, name, _ = strings.Cut(address, ":")
	switch {
	case network == "unix" && len(name) > 1 && name[0] == '@', network == "tcp" && name != "":
		return network, name, nil
	}
	return "", "", fmt.Errorf("address %.100q is not unix:@NAME or tcp:HOST:PORT", address)
}

// listenOn listens on all addresses, or on none.
func listenOn(ctx context.Context, addresses []string) (all []net.Listener, err error) {
	for _, address := range addresses {
		network, name, err := splitAddress(address)
		if err == nil {
			var l net.Listener
			if l, err = new(net.ListenConfig).Listen(ctx, network, name); err == nil {
				all = append(all, l)
			}
		}
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// answer serves the connections of l until ctx ends. Anyone who reaches a TCP port can connect, and
// relays only to a unix socket; only the client key logs in.
func (g *Guest) answer(ctx context.Context, l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var waiting callers
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				sleep(ctx, redialMost) // such as too many open files
			}
			continue
		}
		relay := 0
		if c, ok := conn.(*net.UnixConn); ok {
			if relay, ok = relayOf(c); !ok {
				c.Close()
				continue
			}
			conn = struct{ net.Conn }{c} // it passes no descriptors
		}
		waiting.add(conn)
		wg.Go(func() {
			g.relayed(relay, true)
			defer g.relayed(relay, false)
			loggedIn := func() { waiting.remove(conn) }
			defer loggedIn()
			// Not a warning: programs of the sandbox can cause any number of errors.
			if err := g.serveConn(ctx, conn, loggedIn); err != nil {
				g.log.Debug("connection", "err", err)
			}
		})
	}
}

// relayed notes that a process begins or ends to carry a connection. It is no process of the
// sandbox for the time: what ends all processes spares it, so that its answer arrives. Zero is a
// process that this one cannot see. Programs of the sandbox cannot trace it: they lack its
// capabilities.
func (g *Guest) relayed(pid int, begins bool) {
	if pid == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if begins {
		g.relays[pid]++
	} else if g.relays[pid]--; g.relays[pid] == 0 {
		delete(g.relays, pid)
	}
}

// carriers returns the processes that carry connections of the daemon.
func (g *Guest) carriers() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.relays))
}

// isCarrier reports whether p carries a connection of the daemon. Root of the sandbox can kill it
// and take its number, but not be a process without a parent.
func (g *Guest) isCarrier(p process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.parent == 0 && g.relays[p.pid] > 0
}

// relayOf returns the process at the other end, if it was started from outside of the sandbox, as
// an engine starts a relay: it is in another PID namespace, and 0, or has no parent in this one. A
// program of the sandbox has one: its orphans go to PID 1.
func relayOf(conn *net.UnixConn) (pid int, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var peer *unix.Ucred
	var fault error
	err = raw.Control(func(fd uintptr) {
		peer, fault = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || fault != nil {
		return 0, false
	}
	pid = int(peer.Pid)
	if pid == 0 {
		return 0, true
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may contain anything (proc_pid_stat(5)).
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return pid, len(fields) > 1 && fields[1] == "0"
}

// callers are the connections of a listener that have not logged in.
type callers struct {
	mu  sync.Mutex
	all []net.Conn // guarded by mu; oldest first
}

// add adds a connection, and closes the oldest if there are too many.
func (c *callers) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all = append(c.all, conn); len(c.all) > maxCallers {
		c.all[0].Close()
		c.all = slices.Delete(c.all, 0, 1)
	}
}

// remove removes a connection that has logged in or ended.
func (c *callers) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.all, conn); i >= 0 {
		c.all = slices.Delete(c.all, i, i+1)
	}
}

// runRelay connects standard input and output to the guest that listens on address. It ends with
// the connection.
func runRelay(address string) int {
	// What it carries is encrypted, but root of the sandbox has no business in this process.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	network, name, err := splitAddress(address)
	var conn net.Conn
	switch {
	case err != nil:
	case network == "unix": // it waits for its turn
		conn, err = dial(context.Background(), name)
	default:
		conn, err = new(net.Dialer).DialContext(context.Background(), network, name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: relay:", err)
		return 1
	}
	go func() { // ends with the process
		_, _ = io.Copy(conn, os.Stdin)
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
	}()
	if _, err = io.Copy(os.Stdout, conn); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: relay:", err)
		return 1
	}
	return 0
}

// runInstall copies this program to a file.
func runInstall(path string) int {
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(path, program, 0o555)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: install:", err)
		return 1
	}
	return 0
}
