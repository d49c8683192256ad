package egress

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const isolated = "EGRESS_TEST_ISOLATED"

// The main thread stays in the namespace of the process. Goroutines that change it run on other
// threads.
func init() { runtime.LockOSThread() }

// TestMain runs all tests in a network namespace without a way out, so that a wrong dial never
// leaves the machine. Without root there is none, and the tests that need it are skipped.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "egress-program" {
		program(os.Args[2:])
		return
	}
	signals.DefaultForChildren()
	flag.Parse()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != ""
	if os.Geteuid() == 0 && os.Getenv(isolated) == "" && !fuzzing {
		if err := unix.Unshare(unix.CLONE_NEWNET); err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), isolated+"=1"))
			fmt.Fprintln(os.Stderr, "exec:", err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

// closedThere are addresses in the tests' internet that a sandbox must not reach.
var closedThere = []string{
	"10.77.0.1", "100.100.100.200", "168.63.129.16", "169.254.169.254", "172.20.0.1", "192.0.0.192",
	"192.168.77.1", "198.19.255.254", "240.0.0.1",
	"fd00:ec2::254", "64:ff9b::a4d:1", "2002:a4d:1::1", "64:ff9b:1::1", "2001::1",
}

// closedHere are addresses of the machine that dials.
var closedHere = []string{"192.0.2.1", "10.9.9.1", "203.0.113.99", "2001:db8:1::99"}

// namespace is a network namespace.
type namespace struct{ file *os.File }

func newNamespace(t testing.TB) *namespace {
	n := new(namespace)
	onThread(func() {
		must(t, unix.Unshare(unix.CLONE_NEWNET))
		var err error
		n.file, err = os.Open("/proc/thread-self/ns/net")
		must(t, err)
	})
	t.Cleanup(func() { n.file.Close() })
	n.run(t, "ip", "link", "set", "lo", "up")
	return n
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // never unlocked
		f()
	})
	wg.Wait()
}

// do runs f in n: sockets that f creates belong to n.
func (n *namespace) do(f func()) {
	onThread(func() {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		f()
	})
}

func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

func (n *namespace) run(t testing.TB, args ...string) {
	t.Helper()
	run(t, append([]string{"nsenter", "--net=" + n.path()}, args...)...)
}

// listen accepts connections on all addresses of n and passes them to serve.
func (n *namespace) listen(t testing.TB, port int, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	var err error
	n.do(func() { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) })
	must(t, err)
	accept(t, l, serve)
}

func accept(t testing.TB, l net.Listener, serve func(net.Conn)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := make(map[net.Conn]bool)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c)
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// listenUDP passes datagrams to all addresses of n to serve, and returns its answers.
func (n *namespace) listenUDP(t testing.TB, port int, serve func([]byte) []byte) {
	t.Helper()
	var pc net.PacketConn
	var err error
	n.do(func() { pc, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port)) })
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := serve(buf[:n]); reply != nil {
				_, _ = pc.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() { pc.Close(); wg.Wait() })
}

// world is a sandbox's namespace with its device, this machine, and an internet behind it.
type world struct {
	t               testing.TB
	guest, internet *namespace
	tun             *os.File // the sandbox's copy
	stack           *Stack
	names           map[string][]netip.Addr
	resolv          string
	change          func(*Options) // changes the options of the stack; may be nil

	mu     sync.Mutex
	events []Event
	more   chan struct{} // closed and replaced with each event
}

// needIsolation skips a test if there is no separate network namespace.
func needIsolation(t testing.TB) {
	t.Helper()
	const why = "needs root, for devices and a network namespace of its own"
	switch {
	case os.Getenv(isolated) != "":
	case os.Geteuid() == 0 && os.Getenv("SANDBOXD_TEST_REQUIRE") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

func newWorld(t testing.TB, mode Mode, allow ...string) *world {
	t.Helper()
	needIsolation(t)
	w := &world{t: t, more: make(chan struct{}), resolv: filepath.Join(t.TempDir(), "resolv.conf"),
		names: map[string][]netip.Addr{
			"public.test":  addrs(public),
			"two.test":     addrs(publicTwo),
			"cdn.test":     addrs(public),
			"v6.test":      addrs(publicV6),
			"private.test": addrs("10.77.0.1"),
			"mixed.test":   addrs("10.77.0.1", public),
			"host.test":    addrs("203.0.113.99"),
			"meta.test":    addrs("169.254.169.254", "fd00:ec2::254"),
		}}
	must(t, os.WriteFile(w.resolv, []byte("nameserver "+DNSAddr.String()+"\n"), 0o644))
	w.guest, w.internet = newNamespace(t), newNamespace(t)
	w.wire()
	w.tun = w.openTUN()
	w.start(mode, allow...)
	return w
}

// wire connects this machine with the internet.
func (w *world) wire() {
	t := w.t
	run(t, "ip", "link", "set", "lo", "up")
	w.internet.run(t, "ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns",
		fmt.Sprint(os.Getpid()))
	run(t, "ip", "link", "add", "closed0", "type", "bridge")
	t.Cleanup(func() {
		run(t, "ip", "link", "del", "down0")
		run(t, "ip", "link", "del", "closed0")
	})
	w.internet.run(t, "ip", "link", "set", "up0", "up")
	run(t, "ip", "link", "set", "down0", "up")
	run(t, "ip", "link", "set", "closed0", "up")
	for _, a := range append([]string{public, publicTwo, publicV6}, closedThere...) {
		w.internet.run(t, "ip", "addr", "add", host(a), "dev", "up0", "nodad")
	}
	for i, a := range closedHere { // the first of each family is the source address
		run(t, "ip", "addr", "add", host(a), "dev",
			[]string{"down0", "closed0", "closed0", "down0"}[i], "nodad")
	}
	for _, family := range []string{"-4", "-6"} {
		run(t, "ip", family, "route", "add", "default", "dev", "down0")
		w.internet.run(t, "ip", family, "route", "add", "default", "dev", "up0")
	}
}

// host returns a as an address with its full length.
func host(a string) string { return singleIP(netip.MustParseAddr(a)).String() }

// openTUN opens the device in the sandbox's namespace, as the guest does.
func (w *world) openTUN() *os.File {
	var fd int
	w.guest.do(func() {
		var err error
		fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(w.t, err)
		request, err := unix.NewIfreq("tun0")
		must(w.t, err)
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		must(w.t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
	})
	file := os.NewFile(uintptr(fd), "tun")
	w.t.Cleanup(func() { file.Close() })
	w.guest.run(w.t, "ip", "addr", "add",
		(&net.IPNet{IP: wire.TunGuest[:], Mask: wire.TunMask[:]}).String(), "dev", "tun0")
	w.guest.run(w.t, "ip", "link", "set", "tun0", "mtu", fmt.Sprint(wire.TunMTU), "up")
	w.guest.run(w.t, "ip", "route", "add", "default", "dev", "tun0")
	return file
}

// start starts a stack on a copy of the sandbox's descriptor.
func (w *world) start(mode Mode, allow ...string) {
	fd, err := unix.FcntlInt(w.tun.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(w.t, err)
	o := Options{Policy: policy(w.t, mode, allow...), Resolve: w.resolve, Event: w.event}
	if w.change != nil {
		w.change(&o)
	}
	w.stack, err = Start(os.NewFile(uintptr(fd), "tun"), o)
	must(w.t, err)
	w.t.Cleanup(func() { w.stack.Close() })
}

func (w *world) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "broken.test" {
		return nil, errors.New("server misbehaving")
	}
	if list, ok := w.names[name]; ok {
		return slices.Clone(list), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (w *world) event(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	close(w.more)
	w.more = make(chan struct{})
}

// await returns the first event that wanted accepts, and removes it.
func (w *world) await(what string, wanted func(Event) bool) Event {
	w.t.Helper()
	late := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		at := slices.IndexFunc(w.events, wanted)
		if at >= 0 {
			e := w.events[at]
			w.events = slices.Delete(w.events, at, at+1)
			w.mu.Unlock()
			return e
		}
		more, seen := w.more, fmt.Sprintf("%+v", w.events)
		w.mu.Unlock()
		select {
		case <-more:
		case <-late:
			w.t.Fatalf("no event: %s; there are %s", what, seen)
		}
	}
}

// dial connects from the sandbox.
func (w *world) dial(network, address string) (net.Conn, error) {
	var conn net.Conn
	var err error
	w.guest.do(func() {
		conn, err = (&net.Dialer{Timeout: 20 * time.Second}).Dial(network, address)
	})
	if err == nil {
		w.t.Cleanup(func() { conn.Close() })
		err = conn.SetDeadline(time.Now().Add(60 * time.Second))
	}
	return conn, err
}

// program runs args in the sandbox, and returns its output and whether it succeeded.
func (w *world) program(args ...string) (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	script := `mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + w.guest.path(), "unshare", "-m", "sh", "-c", script, "sh",
			w.resolv}, args...)...)
	cmd.Env = append(os.Environ(), "no_proxy=*", "HOME="+w.t.TempDir(), "GIT_CONFIG_NOSYSTEM=1")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
		key, _, _ := strings.Cut(strings.ToLower(v), "=")
		return strings.HasSuffix(key, "_proxy")
	})
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
