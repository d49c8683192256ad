package egress

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program runs this test binary inside a sandbox, as a static Go program.
func program(args []string) {
	conn, err := (&net.Dialer{Resolver: &net.Resolver{PreferGo: true}}).Dial("tcp", args[0])
	if err == nil {
		var b []byte
		b, err = io.ReadAll(conn)
		fmt.Printf("%s", b)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func echoes(c net.Conn) { _, _ = io.Copy(c, c) }

func greets(c net.Conn) { fmt.Fprint(c, "greetings\n") }

func is(kind Kind, host string) func(Event) bool {
	return func(e Event) bool { return e.Kind == kind && e.Host == host }
}

// Programs work unchanged: no proxy variables, and names with their own resolvers.
func TestPrograms(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	repo := t.TempDir()
	run(t, "git", "init", "-q", "--bare", filepath.Join(repo, "a.git"))
	backend, err := exec.Command("git", "--exec-path").Output()
	must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "hello "+r.Host)
	})
	mux.Handle("/git/", http.StripPrefix("", &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + repo, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}))
	w.serveHTTP(80, mux)
	w.internet.listen(t, 7000, greets)
	w.internet.listenUDP(t, 9000, func(b []byte) []byte { return b })
	self, err := os.Executable()
	must(t, err)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"getent":       {[]string{"getent", "hosts", "public.test"}, "public.test"},
		"getent ahost": {[]string{"getent", "ahostsv4", "public.test"}, "STREAM public.test"},
		"curl":         {[]string{"curl", "-sS", "http://public.test/hello"}, "hello public.test"},
		"curl v6 only": {[]string{"curl", "-sS", "http://v6.test/hello"}, "hello v6.test"},
		"curl address": {[]string{"curl", "-sS", "http://" + public + "/hello"}, "hello " + public},
		"curl mixed":   {[]string{"curl", "-sS", "http://mixed.test/hello"}, "hello mixed.test"},
		"git":          {[]string{"git", "ls-remote", "http://public.test/git/a.git"}, ""},
		"python": {[]string{"python3", "-c", `import urllib.request
print(urllib.request.urlopen("http://public.test/hello").read().decode())`}, "hello public.test"},
		"node": {[]string{"node", "-e", `fetch("http://public.test/hello").then(r => r.text()).then(console.log)`}, "hello public.test"},
		"go":   {[]string{self, "egress-program", "public.test:7000"}, "greetings"},
		"udp": {[]string{"python3", "-c", `import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(("public.test", 9000))
b = bytes(range(256)) * 234
s.send(b); print(s.recv(65535) == b, len(b))`}, "True 59904"},
		"udp connects": {[]string{"python3", "-c", `import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(("public.test", 9001)); s.send(b"x")
try: s.recv(1)
except ConnectionRefusedError: print("refused")`}, "refused"},
		"udp refused": {[]string{"python3", "-c", `import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(("10.77.0.1", 9000)); s.send(b"x")
try: s.recv(1)
except OSError as e: print(e.strerror)`}, "No route to host"},
		"udp name refused": {[]string{"python3", "-c", `import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(("private.test", 9000)); s.send(b"x")
try: s.recv(1)
except OSError as e: print(e.strerror)`}, "No route to host"},
	} {
		if _, err := exec.LookPath(c.args[0]); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		start := time.Now()
		out, err := w.program(c.args...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: got %q, %v", name, out, err)
		}
		t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
	}
	if out, err := w.program("getent", "hosts", "nonesuch.test"); err == nil {
		t.Errorf("a name that does not exist is %q", out)
	}
	e := w.await("of the name", func(e Event) bool {
		return e.Kind == KindOpened && e.Proto == "tcp" && e.Host == "v6.test"
	})
	if e.Addr != netip.MustParseAddrPort("["+publicV6+"]:80") {
		t.Errorf("got %v", e)
	}
	if e := w.await("of the name", is(KindOpened,
		"mixed.test")); e.Addr.Addr() != netip.MustParseAddr(public) {
		t.Errorf("a name with a private and a public address went to %v", e.Addr)
	}
}

func (w *world) serveHTTP(port int, h http.Handler) {
	var l net.Listener
	var err error
	w.internet.do(func() { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) })
	must(w.t, err)
	server := httptest.NewUnstartedServer(h)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	w.t.Cleanup(server.Close)
}

// Closed addresses are blocked at once, and receive nothing.
func TestClosedAddressesAreNeverReached(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	var reached atomic.Int64
	count := func(net.Conn) { reached.Add(1) }
	w.internet.listen(t, 80, count)
	w.internet.listenUDP(t, 80, func([]byte) []byte { reached.Add(1); return []byte("x") })
	here, err := net.Listen("tcp", ":80")
	must(t, err)
	accept(t, here, count)
	for _, a := range append(closedThere, closedHere...) {
		if strings.Contains(a, ":") {
			continue // below, by names
		}
		for _, network := range []string{"tcp", "udp"} {
			start := time.Now()
			err := w.tries(network, a+":80")
			if err == nil || time.Since(start) > 5*time.Second {
				t.Errorf("%s %s: %v after %v", network, a, err, time.Since(start))
			}
			e := w.await("refused "+a, is(KindRefused, a))
			if e.Proto != network || e.Why == "" || e.Addr != netip.MustParseAddrPort(a+":80") {
				t.Errorf("got %+v", e)
			}
		}
	}
	for i, a := range append(closedThere, closedHere...) {
		name := fmt.Sprintf("rebound%d.test", i)
		w.mu.Lock()
		w.names[name] = addrs(a)
		w.mu.Unlock()
		for _, network := range []string{"tcp", "udp"} {
			if err := w.tries(network, w.inside(name)+":80"); err == nil {
				t.Errorf("%s to a name of %s is open", network, a)
			}
			w.await("refused "+name, is(KindRefused, name))
		}
	}
	for _, a := range []string{"224.0.0.251", "255.255.255.255"} {
		w.guest.do(func() {
			if c, err := net.Dial("udp", a+":80"); err == nil {
				fmt.Fprint(c, "x")
				c.Close()
			}
		})
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d were reached", n)
	}
	// The listeners exist.
	w.stack.SetPolicy(policy(t, ModeFiltered, "10.77.0.1:80", "10.9.9.1:80"))
	for _, a := range []string{"10.77.0.1:80", "10.9.9.1:80"} {
		if err := w.tries("tcp", a); err != nil {
			t.Errorf("%s, which is listed: %v", a, err)
		}
	}
}

// tries connects, and returns an error unless there is an answer.
func (w *world) tries(network, address string) error {
	c, err := w.dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "udp" {
		fmt.Fprint(c, "x")
		_, err = c.Read(make([]byte, 1))
	}
	return err
}

// inside looks up name as the sandbox would.
func (w *world) inside(name string) string {
	w.t.Helper()
	var list []string
	var err error
	resolver := &net.Resolver{PreferGo: true,
		Dial: func(_ context.Context, network, _ string) (c net.Conn, err error) {
			return w.dial(network, "8.8.8.8:53") // any address
		}}
	list, err = resolver.LookupHost(context.Background(), name+".")
	must(w.t, err)
	return list[0]
}

// A name whose address changes between lookup and connection gains nothing: the policy checks the
// dialled address.
func TestRebindingIsRefused(t *testing.T) {
	w := newWorld(t, ModeAllowlist, "two.test")
	w.internet.listen(t, 80, greets)
	inside := w.inside("two.test")
	must(t, w.tries("tcp", inside+":80"))
	w.mu.Lock()
	w.names["two.test"] = addrs("10.77.0.1")
	w.mu.Unlock()
	w.stack.names.mu.Lock()
	w.stack.names.byName["two.test"].at = time.Time{} // expired
	w.stack.names.mu.Unlock()
	if err := w.tries("tcp", inside+":80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	if e := w.await("refused", is(KindRefused, "two.test")); !strings.Contains(e.Why, "closed") {
		t.Errorf("got %v", e)
	}
}

func TestAllowlist(t *testing.T) {
	w := newWorld(t, ModeAllowlist, "public.test:80", "private.test", "host.test")
	w.internet.listen(t, 80, greets)
	w.internet.listen(t, 81, greets)
	must(t, w.tries("tcp", w.inside("public.test")+":80"))
	for what, address := range map[string]string{
		"another port": w.inside("public.test") + ":81", "its address": public + ":80",
		"private": w.inside("private.test") + ":80", "the host": w.inside("host.test") + ":80",
	} {
		if err := w.tries("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if out, err := w.program("getent", "hosts", "two.test"); err == nil {
		t.Errorf("a name that is not listed is %q", out)
	}
	w.await("the name", func(e Event) bool {
		return is(KindRefused, "two.test")(e) && e.Proto == "dns"
	})
	if err := w.tries("tcp", "198.18.0.77:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("an address that stands for nothing: %v", err)
	}
}

// A listed name does not give access to others behind the same address.
func TestFrontingIsRefused(t *testing.T) {
	w := newWorld(t, ModeAllowlist, "cdn.test", "public.test")
	var served sync.Map
	w.serveHTTP(80, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		served.Store(r.Host, true)
	}))
	w.internet.listen(t, 443, func(c net.Conn) {
		b := make([]byte, 1)
		if n, _ := c.Read(b); n > 0 {
			served.Store("tls", true)
		}
	})
	w.internet.listen(t, 22, echoes)
	for name, c := range map[string]struct {
		args []string
		ok   bool
	}{
		"honest":          {[]string{"curl", "-sS", "http://cdn.test/"}, true},
		"another of ours": {[]string{"curl", "-sS", "-H", "Host: public.test", "http://cdn.test/"}, true},
		"Host":            {[]string{"curl", "-sS", "-H", "Host: other.test", "http://cdn.test/"}, false},
		"no Host":         {[]string{"curl", "-sS0", "-H", "Host:", "http://cdn.test/"}, false},
		"HTTP/2":          {[]string{"curl", "-sS", "--http2-prior-knowledge", "http://cdn.test/"}, false},
		"SNI":             {[]string{"curl", "-skS", "--connect-to", "other.test:443:cdn.test:443", "https://other.test/"}, false},
		"no SNI":          {[]string{"curl", "-skS", "--connect-to", "1.2.3.4:443:cdn.test:443", "https://1.2.3.4/"}, false},
	} {
		if out, err := w.program(append(c.args, "--max-time", "20")...); (err == nil) != c.ok {
			t.Errorf("%s: got %q, %v", name, out, err)
		}
		if !c.ok {
			w.await(name, func(e Event) bool {
				return e.Kind == KindRefused && e.Host == "cdn.test" && e.Proto == "tcp"
			})
		}
	}
	served.Range(func(k, _ any) bool {
		if k != "cdn.test" && k != "public.test" {
			t.Errorf("%v was served", k)
		}
		return true
	})
	// Other protocols pass, and TLS with the right name does.
	c, err := w.dial("tcp", w.inside("cdn.test")+":22")
	must(t, err)
	fmt.Fprint(c, "SSH-2.0-x\r\n")
	if _, err := io.ReadFull(c, make([]byte, 11)); err != nil {
		t.Error(err)
	}
	_, _ = w.program("curl", "-skS", "https://cdn.test/", "--max-time", "20")
	if _, ok := served.Load("tls"); !ok {
		t.Error("TLS for the name did not arrive")
	}
}

// QUIC hides the server's name, so a listed name does not allow it; other datagrams to the name
// pass.
func TestQUICByANameIsRefused(t *testing.T) {
	w := newWorld(t, ModeAllowlist, "cdn.test")
	for _, port := range []int{443, 4433} {
		w.internet.listenUDP(t, port, func(b []byte) []byte { return b })
	}
	for version, first := range map[string]string{"v1": "\xc3\x00\x00\x00\x01",
		"v2": "\xd3\x6b\x33\x43\xcf", "a draft": "\xc3\xff\x00\x00\x1d"} {
		for name, before := range map[string]string{":443": "", ":4433": "hello"} {
			conn, err := w.dial("udp", w.inside("cdn.test")+name)
			must(t, err)
			say := func(what string) error {
				if _, err := io.WriteString(conn, what); err != nil {
					return err
				}
				_, err := io.ReadFull(conn, make([]byte, len(what)))
				return err
			}
			if before != "" {
				must(t, say(before))
			}
			if err := say(first + "rest"); !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%s, port %s: got %v", version, name, err)
			}
			w.await(version+name, func(e Event) bool {
				return e.Kind == KindRefused && e.Proto == "udp" && e.Why == whyQUIC
			})
		}
	}
}

// Bytes arrive unchanged in both directions, and each direction ends on its own.
func TestBytesAndEnds(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 7, func(c net.Conn) {
		sum := sha256.New()
		n, _ := io.Copy(sum, c) // until the program's end
		fmt.Fprintf(c, "%d %x\n", n, sum.Sum(nil))
		_, _ = io.Copy(c, io.LimitReader(rand.Reader, 3<<20))
	})
	c, err := w.dial("tcp", public+":7")
	must(t, err)
	data := make([]byte, 5<<20+7)
	_, _ = rand.Read(data)
	_, err = c.Write(data)
	must(t, err)
	must(t, c.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(c)
	must(t, err)
	line, rest, _ := bytes.Cut(got, []byte("\n"))
	if want := fmt.Sprintf("%d %x", len(data), sha256.Sum256(data)); string(line) != want ||
		len(rest) != 3<<20 {
		t.Errorf("got %q and %d bytes, want %q", line, len(rest), want)
	}
	e := w.await("closed", is(KindClosed, public))
	if e.Sent != int64(len(data)) || e.Received != int64(len(got)) || e.Why != "" {
		t.Errorf("got %+v", e)
	}
}

// A reset is passed on to the program, so that it does not take a part for the whole.
func TestResetsPass(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	reset := make(chan error, 1)
	w.internet.listen(t, 7, func(c net.Conn) {
		fmt.Fprint(c, "part")
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	w.internet.listen(t, 8, func(c net.Conn) {
		_, err := io.ReadAll(c)
		reset <- err
	})
	c, err := w.dial("tcp", public+":7")
	must(t, err)
	fmt.Fprint(c, "x")
	if b, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %q, %v", b, err)
	}
	c, err = w.dial("tcp", public+":8")
	must(t, err)
	fmt.Fprint(c, "part")
	w.await("opened", func(e Event) bool { return e.Kind == KindOpened && e.Addr.Port() == 8 })
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
	if err := <-reset; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server got %v", err)
	}
}

func TestSetPolicyEndsWhatIsNoLongerAllowed(t *testing.T) {
	w := newWorld(t, ModeAllowlist, "public.test", publicTwo, public+":9")
	w.internet.listen(t, 7, echoes)
	for _, port := range []int{7, 9} {
		w.internet.listenUDP(t, port, func(b []byte) []byte { return b })
	}
	var ends, stays []net.Conn
	for _, network := range []string{"tcp", "udp"} {
		c, err := w.dial(network, w.inside("public.test")+":7")
		must(t, err)
		ends = append(ends, c)
		c, err = w.dial(network, map[string]string{"tcp": publicTwo + ":7",
			"udp": public + ":9"}[network])
		must(t, err)
		stays = append(stays, c)
	}
	const banner = "SSH-2.0-x\r\n" // a name allows protocols known by their first bytes
	speak := func(c net.Conn) error {
		fmt.Fprint(c, banner)
		_, err := io.ReadFull(c, make([]byte, len(banner)))
		return err
	}
	for _, c := range append(ends, stays...) {
		must(t, speak(c))
	}
	w.stack.SetPolicy(policy(t, ModeAllowlist, publicTwo, public+":9"))
	for _, network := range []string{"tcp", "udp"} {
		e := w.await("closed", func(e Event) bool {
			return e.Kind == KindClosed && e.Proto == network && e.Host == "public.test"
		})
		if e.Why != errPolicy.Error() {
			t.Errorf("got %+v", e)
		}
	}
	for _, c := range ends {
		if err := speak(c); err == nil {
			t.Errorf("%v is still open", c.RemoteAddr())
		}
	}
	for _, c := range stays {
		if err := speak(c); err != nil {
			t.Errorf("%v ended: %v", c.RemoteAddr(), err)
		}
	}
}

// A new stack on the sandbox's descriptor takes over and loses no packet to the old one. Old
// connections end at once.
func TestStartAgain(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 7, echoes)
	c, err := w.dial("tcp", public+":7")
	must(t, err)
	for range 20 {
		must(t, w.stack.Close())
		w.start(ModeFiltered)
		start := time.Now()
		must(t, w.tries("tcp", public+":7"))
		// A lost SYN is sent again after 1 s.
		if took := time.Since(start); took > 900*time.Millisecond {
			t.Errorf("the first connection took %v", took)
		}
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
}

// Close does not wait for what a sandbox could withhold: handshakes, reads, dials without answer.
func TestCloseAtAnyTime(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 7, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	w.internet.run(t, "ip", "route", "add", "blackhole", "203.0.113.200/32")
	for range 3 {
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				address := []string{public + ":7", "203.0.113.200:7", "10.77.0.1:7"}[i%3]
				var c net.Conn
				var err error
				w.guest.do(func() { c, err = net.DialTimeout("tcp", address, 2*time.Second) })
				if err == nil {
					_ = c.SetDeadline(time.Now().Add(5 * time.Second))
					_, _ = c.Write(make([]byte, 1<<20))
					_, _ = c.Read(make([]byte, 1))
					c.Close()
				}
			})
		}
		w.await("opened", is(KindOpened, public))
		start := time.Now()
		must(t, w.stack.Close())
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("Close took %v", took)
		}
		wg.Wait()
		w.start(ModeFiltered)
	}
}

// A descriptor from a sandbox is valid, or is rejected and closed.
func TestStartRefusesOtherDescriptors(t *testing.T) {
	r, wr, err := os.Pipe()
	must(t, err)
	defer wr.Close()
	null, err := os.Open(os.DevNull)
	must(t, err)
	for _, f := range []*os.File{r, null} {
		if _, err := Start(f, Options{Policy: policy(t, ModeFiltered)}); err == nil ||
			!strings.Contains(err.Error(), "not an attached TUN device") {
			t.Errorf("got %v", err)
		}
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the descriptor was left: %v", err)
		}
	}
	needIsolation(t)
	for name, flags := range map[string]uint16{
		"TAP": unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR, "headers": unix.IFF_TUN | unix.IFF_NO_PI,
	} {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		request, err := unix.NewIfreq("")
		must(t, err)
		request.SetUint16(flags)
		must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
		if _, err := Start(os.NewFile(uintptr(fd), "tun"),
			Options{Policy: policy(t, ModeFiltered)}); err == nil ||
			!strings.Contains(err.Error(), "want TUN") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
