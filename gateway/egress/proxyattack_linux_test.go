package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// proxyOf returns a proxy in the world that allows public addresses.
func proxyOf(t *testing.T, w *world) proxyNetwork { return patientProxyOf(t, w, proxyIdle) }

func patientProxyOf(t *testing.T, w *world, patience time.Duration) proxyNetwork {
	t.Helper()
	p, err := NewProxy(Options{Policy: policy(t, ModeFiltered), Resolve: w.resolve, Event: w.event})
	must(t, err)
	p.patience = patience
	t.Cleanup(func() { p.Close() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	accept(t, l, p.Serve)
	return proxyNetwork{p, t, l.Addr().String(), throughConnect}
}

// ask returns a program's connection to the proxy.
func (n proxyNetwork) ask(t *testing.T) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", n.address)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(60*time.Second)))
	return conn.(*net.TCPConn), bufio.NewReader(conn)
}

// A server that answers before the whole request ends the exchange. The rest of the body is not
// parsed as a request, nor read by two readers.
func TestProxyEarlyAnswer(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 80, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
		_, _ = io.Copy(io.Discard, c)
	})
	conn, in := proxyOf(t, w).ask(t)
	_,
		err := io.WriteString(
		conn,
		"POST http://public.test/ HTTP/1.1\r\nHost: public.test\r\nContent-Length: "+
			"100000\r\n\r\nbegun")
	must(t, err)
	answer, err := http.ReadResponse(in, nil)
	must(t, err)
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "ok" {
		t.Fatalf("got %q, %v", body, err)
	}
	_, _ = io.WriteString(conn, strings.Repeat(
		"GET http://cdn.test/ HTTP/1.1\r\nHost: cdn.test\r\n\r\n", 3000))
	if got, _ := io.ReadAll(in); len(got) > 0 {
		t.Errorf("what was sent of the body is answered: %.100q", got)
	}
	for _, e := range w.all() {
		if e.Host == "cdn.test" {
			t.Errorf("what was sent of the body became a request: %+v", e)
		}
	}
}

// A program that leaves while the server works frees its place and ends the server's connection: at
// once if that is detected, otherwise soon.
func TestProxyGivenUp(t *testing.T) {
	for name, linger := range map[string]int{"reset": 0, "end": -1} {
		t.Run(name, func(t *testing.T) {
			patience := proxyIdle
			if linger < 0 {
				patience = time.Second
			}
			w := newWorld(t, ModeFiltered)
			givenUp(t, w, patientProxyOf(t, w, patience), linger)
		})
	}
}

func givenUp(t *testing.T, w *world, n proxyNetwork, linger int) {
	asked, ended := make(chan bool, 1), make(chan bool, 1)
	w.internet.listen(t, 80, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		asked <- true
		_, _ = io.Copy(io.Discard, c)
		ended <- true
	})
	conn, _ := n.ask(t)
	_,
		err := io.WriteString(
		conn,
		"POST http://public.test/ HTTP/1.1\r\nHost: public.test\r\nContent-Length: 4\r\n\r\nbody")
	must(t, err)
	<-asked
	must(t, conn.SetLinger(linger))
	conn.Close()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the connection is still open without a reader")
	}
}

// oneReader detects concurrent reads. Of two readers that wait on an SSH channel, only one gets its
// end.
type oneReader struct {
	net.Conn
	reading, crowded atomic.Bool
}

func (c *oneReader) Read(b []byte) (int, error) {
	if !c.reading.CompareAndSwap(false, true) {
		c.crowded.Store(true)
	}
	defer c.reading.Store(false)
	return c.Conn.Read(b)
}

// After an error response the proxy reads what the program still sends, while it waits for the next
// request: one reader at a time.
func TestProxyReadsInTurn(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	p, err := NewProxy(Options{Policy: policy(t, ModeFiltered), Resolve: w.resolve, Event: w.event})
	must(t, err)
	defer p.Close()
	inside, program := net.Pipe()
	defer program.Close()
	conn := &oneReader{Conn: inside}
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.Serve(conn)
	}()
	must(t, program.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(
		program, "GET http://private.test/ HTTP/1.1\r\nHost: private.test\r\n\r\n")
	must(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(program), nil)
	must(t, err)
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("got %s", answer.Status)
	}
	<-served
	if conn.crowded.Load() {
		t.Error("two read from the connection at once")
	}
}

// A response with an endless header is aborted before it uses much memory.
func TestProxyHeadOfAnswer(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	sent := make(chan int, 1)
	w.internet.listen(t, 80, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		n, _ := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for i := 0; n < 32<<20; i++ {
			m, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000))
			if n += m; err != nil {
				break
			}
		}
		sent <- n
	})
	conn, in := proxyOf(t, w).ask(t)
	_, err := io.WriteString(conn, "GET http://public.test/ HTTP/1.1\r\nHost: public.test\r\n\r\n")
	must(t, err)
	answer, err := http.ReadResponse(in, nil)
	must(t, err)
	if answer.StatusCode != http.StatusBadGateway {
		t.Errorf("got %s", answer.Status)
	}
	if n := <-sent; n > 9<<20 { // including the kernel's buffers
		t.Errorf("%d bytes of a head were taken", n)
	}
}

// all returns the events so far.
func (w *world) all() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// answerTo returns the proxy's response to one request on its own connection, and its events.
func answerTo(t *testing.T, w *world, n proxyNetwork, request string) (answer string,
	events []Event) {
	t.Helper()
	before := len(w.all())
	conn, in := n.ask(t)
	_, _ = io.WriteString(conn, request)
	_ = conn.CloseWrite() // it may be rejected already
	text, _ := io.ReadAll(in)
	conn.Close()
	return string(text), w.all()[before:]
}

// The server name of a request is unambiguous: the server receives the name that the policy
// checked, and no form of a closed address is open.
func TestProxyHostileRequests(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 80, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(r.Body)
			text := fmt.Sprintf("%s %s %s %q %q", r.Method, r.Host, r.RequestURI, r.Header, body)
			fmt.Fprintf(
				c,
				"HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: %d\r\n\r\n%s",
				len(text), text)
		}
	})
	n := proxyOf(t, w)
	for _, tt := range []struct{ name, request, want, never string }{
		{"another Host", "GET http://public.test/a HTTP/1.1\r\nHost: private.test\r\n\r\n", "GET public.test /a", "private.test"},
		{"two Hosts", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nHost: private.test\r\n\r\n", "", "200"},
		{"credentials in the URL", "GET http://user:swordfish@public.test/a HTTP/1.1\r\nHost: public.test\r\n\r\n", "GET public.test /a", "swordfish"},
		{"credentials for the proxy", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nProxy-Authorization: Basic swordfish\r\n\r\n", "GET public.test /a", "swordfish"},
		{"what Connection names", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nConnection: close, X-Mine\r\nX-Mine: swordfish\r\n\r\n", "GET public.test /a", "swordfish"},
		{"what the answer's Connection names", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\n\r\n", "200 OK", "X-Hop"},
		{"two lengths", "POST http://public.test/a HTTP/1.1\r\nHost: public.test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "", "200"},
		{"a length and chunks", "POST http://public.test/a HTTP/1.1\r\nHost: public.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", `map[] "abc"`, ""},
		{"chunks in disguise", "POST http://public.test/a HTTP/1.1\r\nHost: public.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "", "200"},
		{"a folded line", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nX-A: b\r\n Host: private.test\r\n\r\n", "", "private.test /"},
		{"space before the colon", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nContent-Length : 4\r\n\r\nabcd", "", "200"},
		{"bare newline in a URL", "GET http://public.test/a\nX: y HTTP/1.1\r\nHost: public.test\r\n\r\n", "", "200"},
		{"a request line of its own", "GET http://public.test/a%0d%0aGET%20/b HTTP/1.1\r\nHost: public.test\r\n\r\n", "GET public.test /a%0d%0aGET%20/b", ""},
		{"a large head", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\n" + strings.Repeat("X-Y: "+strings.Repeat("z", 1000)+"\r\n", 100) + "\r\n", "", "200"},
		{"an old program", "GET http://public.test/a HTTP/1.0\r\n\r\n", "HTTP/1.0 200", ""},
		{"an upgrade", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n\r\n", "GET public.test /a", "H2c"},
		{"HTTP/2 at once", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "200"},
		{"another scheme", "GET ftp://public.test/a HTTP/1.1\r\nHost: public.test\r\n\r\n", "400", ""},
		{"a path of this machine", "GET unix:///var/run/docker.sock HTTP/1.1\r\nHost: public.test\r\n\r\n", "400", ""},
		{"requests at once", "GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\n\r\nGET http://private.test/b HTTP/1.1\r\nHost: public.test\r\n\r\n", "403 Forbidden", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer, events := answerTo(t, w, n, tt.request)
			if !strings.Contains(answer, tt.want) || tt.never != "" &&
				strings.Contains(answer, tt.never) {
				t.Errorf("got %q, want %q and never %q", answer, tt.want, tt.never)
			}
			for _, e := range events {
				if strings.Contains(fmt.Sprint(e), "swordfish") || e.Kind == KindOpened &&
					e.Host != "public.test" {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// No form of a closed address, or of this machine's, is open, in any of the three protocols.
func TestProxyOddHosts(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	n := proxyOf(t, w)
	for _, host := range []string{"127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1",
		"127.0.0.1.", "0", "0.0.0.0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
		"[::127.0.0.1]",
		"[64:ff9b::7f00:1]", "[64:ff9b::10.77.0.1]", "[2002:7f00:1::]", "[2002:a4d:1::1]",
		"[::ffff:0:10.77.0.1]", "[64:ff9b:1::a4d:1]", "[fe80::1%25eth0]", "[fe80::1%eth0]",
		"[::ffff:169.254.169.254]",
		"169.254.169.254", "[fd00:ec2::254]", "10.77.0.1", "localhost", "LOCALHOST.",
		"private.test", "PRIVATE.TEST.", "meta.test", "private.test..", ".private.test",
		"user@private.test", "user:word@10.77.0.1", "public.test@10.77.0.1",
		"10.77.0.1#public.test", "10.77.0.1?.public.test", "10.77.0.1/.public.test",
		"10.77.0.1\\.public.test", "１０.77.0.1", "%31%30.77.0.1", "\x1b[31mred", "a b", "*", "",
		strings.Repeat("a", 300), strings.Repeat("x", 60000)} {
		for _, request := range []string{"CONNECT " + host +
			":80 HTTP/1.1\r\nHost: public.test\r\n\r\n",
			"GET http://" + host + "/ HTTP/1.1\r\nHost: public.test\r\n\r\n",
			"GET http://" + host + ":80/ HTTP/1.1\r\nHost: public.test\r\n\r\n",
			"\x05\x01\x00\x05\x01\x00\x03" + string([]byte{byte(min(len(host), 255))}) +
				host[:min(len(host), 255)] + "\x00\x50"} {
			answer, events := answerTo(t, w, n, request)
			if strings.Contains(answer, " 200 ") || strings.HasPrefix(answer, "\x05\x00\x05\x00") {
				t.Errorf("%.100q: %.100q", request, answer)
			}
			for _, e := range events {
				if e.Kind == KindOpened || strings.Contains(fmt.Sprint(e), "user:word") ||
					strings.ContainsAny(e.Host, "\x1b @") || len(e.Host) > 300 {
					t.Errorf("%.100q: event %.300q", request, fmt.Sprint(e))
				}
			}
		}
	}
}
