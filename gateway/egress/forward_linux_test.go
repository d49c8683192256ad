package egress

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// origin is an HTTP server. It answers each request with the same bytes, and records what it
// received.
type origin struct {
	answer string

	mu   sync.Mutex
	got  []string // guarded by mu; requests as received
	done sync.WaitGroup
}

// socketPair returns both ends of a connection with half-close.
func socketPair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	for i, end := range []*net.Conn{&near, &far} {
		file := os.NewFile(uintptr(fds[i]), "socket")
		conn, failed := net.FileConn(file)
		*end, err = conn, errors.Join(err, failed, file.Close())
	}
	return near, far, err
}

// lastAnswer matches responses that end with their connection.
var lastAnswer = regexp.MustCompile(`^HTTP/1\.0|^HTTP/1\.1 101|Connection: close`)

// dial connects to the server, whatever the address.
func (o *origin) dial(context.Context, string, string) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	o.done.Go(func() {
		defer far.Close()
		o.serve(far)
	})
	return near, nil
}

func (o *origin) serve(conn net.Conn) {
	var raw bytes.Buffer
	in := bufio.NewReader(io.TeeReader(conn, &raw))
	for {
		r, err := http.ReadRequest(in)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		o.mu.Lock()
		if raw.Len() > 0 {
			o.got = append(o.got, raw.String())
		}
		o.mu.Unlock()
		raw.Reset()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, o.answer)
		if lastAnswer.MatchString(o.answer) {
			return
		}
	}
}

// through runs a proxy in front of o for a program that sends says, and returns all that the
// program receives. With end, the program then closes its direction.
func (o *origin) through(t *testing.T, says string, end bool) string {
	t.Helper()
	p, err := NewProxy(Options{
		Policy: policy(t, ModeFiltered),
		Own:    func() []netip.Prefix { return nil },
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "private.test" {
				return addrs("10.77.0.1"), nil
			}
			return addrs(public), nil
		},
		Dial: o.dial,
	})
	must(t, err)
	conn, accepted, err := socketPair()
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	var served sync.WaitGroup
	served.Go(func() { p.Serve(accepted) })
	_, _ = io.WriteString(conn, says) // it may be rejected already
	if end {
		must(t, closeWrite(conn))
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("after %q: %v", got, err)
	}
	must(t, p.Close())
	served.Wait()
	o.done.Wait()
	return string(got)
}

// lines writes CRLF as a bar.
var lines = strings.NewReplacer("\r\n", "|")

// refusals are the proxy's own responses.
var refusals = regexp.MustCompile(`HTTP/1\.1 ([45]\d\d [A-Za-z ]+)\|` +
	`Content-Type: text/plain; charset=utf-8\|Content-Length: \d+\|Connection: close\|\|([^|]*)\n$`)

const (
	usual   = "HTTP/1.1 200 OK|Content-Length: 2||ok" // for cases without an answer
	nothing = "-"
)

// Unusual requests, or ones that proxies treat differently: what the server receives, and what the
// program receives. A bar stands for CRLF; a rejection is shown as its status and text.
func TestForward(t *testing.T) {
	for _, c := range forwardCases {
		t.Run(c.name, func(t *testing.T) {
			o := &origin{answer: strings.ReplaceAll(cmp.Or(c.answer, usual), "|", "\r\n")}
			got := lines.Replace(o.through(t, strings.ReplaceAll(c.says, "|", "\r\n"), true))
			got = refusals.ReplaceAllString(got, "$1: $2")
			if want := strings.TrimPrefix(cmp.Or(c.gets, usual), nothing); got != want {
				t.Errorf("the program received\n%q, want\n%q", got, want)
			}
			if server := lines.Replace(strings.Join(o.got, "")); server != c.server {
				t.Errorf("the server received\n%q, want\n%q", server, c.server)
			}
		})
	}
}

// A response that ends with its connection ends the program's connection, too, at once.
func TestForwardEndsWithAnswer(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.0 200 OK||ok", "HTTP/1.1 200 OK|Connection: close||ok",
		"HTTP/1.1 101 Switching Protocols||ok",
	} {
		began := time.Now()
		o := &origin{answer: strings.ReplaceAll(answer, "|", "\r\n")}
		got := o.through(t, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", false)
		if !strings.Contains(got, "\r\nConnection: close\r\n") || time.Since(began) > proxyIdle/2 {
			t.Errorf("%q: the program received %q in %v", answer, got, time.Since(began))
		}
	}
}

var forwardCases = []struct {
	name         string
	says, answer string // of the program, and of the server
	server, gets string // what the server receives, and the program
}{
	{name: "plain",
		says:   "GET http://a.test/x?y=1#z HTTP/1.1|Host: a.test||",
		server: "GET /x?y=1#z HTTP/1.1|Host: a.test||"},
	{name: "header case and order",
		says:   "GET http://a.test/ HTTP/1.1|hOST: a.test|x-lower: 1|X-UPPER: 2|x-lower: 3||",
		answer: "HTTP/1.1 200 Fine|x-lower: 1|X-UPPER: 2|Content-Length: 0||",
		server: "GET / HTTP/1.1|Host: a.test|X-Lower: 1|X-Lower: 3|X-Upper: 2||",
		gets:   "HTTP/1.1 200 Fine|X-Lower: 1|X-Upper: 2|Content-Length: 0||"},
	{name: "hop-by-hop headers",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|Connection: keep-alive, X-Mine|" +
			"X-Mine: 1|Keep-Alive: timeout=5|Proxy-Connection: keep-alive|" +
			"Proxy-Authorization: Basic x|TE: trailers|Upgrade: foo|Authorization: Basic y||",
		answer: "HTTP/1.1 200 OK|Connection: X-Hop|X-Hop: 1|Keep-Alive: timeout=5|Upgrade: foo|" +
			"Proxy-Authenticate: Basic|Content-Length: 0||",
		server: "GET / HTTP/1.1|Host: a.test|Authorization: Basic y||",
		gets:   "HTTP/1.1 200 OK|Proxy-Authenticate: Basic|Content-Length: 0||"},
	{name: "Connection names Host",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test|Connection: Host, Content-Length||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "Connection names Content-Length",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Connection: Content-Length|" +
			"Content-Length: 4||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 4||body"},
	{name: "Host is another",
		says:   "GET http://a.test/ HTTP/1.1|Host: b.test||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "no Host",
		says:   "GET http://a.test/ HTTP/1.1||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "two Hosts",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|Host: a.test||",
		gets: nothing},
	{name: "scheme in capitals",
		says:   "GET HTTP://A.test:80/ HTTP/1.1|Host: a.test||",
		server: "GET / HTTP/1.1|Host: A.test:80||"},
	{name: "no path",
		says:   "GET http://a.test HTTP/1.1|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "path with escapes",
		says:   "GET http://a.test/a%2fb/../c//d;e?f%20g HTTP/1.1|Host: a.test||",
		server: "GET /a%2fb/../c//d;e?f%20g HTTP/1.1|Host: a.test||"},
	{name: "path with bytes above ASCII",
		says:   "GET http://a.test/\xe4 HTTP/1.1|Host: a.test||",
		server: "GET /%E4 HTTP/1.1|Host: a.test||"},
	{name: "control in the path",
		says: "GET http://a.test/\x01 HTTP/1.1|Host: a.test||",
		gets: nothing},
	{name: "tabs in the request line",
		says: "GET\thttp://a.test/\tHTTP/1.1|Host: a.test||",
		gets: nothing},
	{name: "two spaces",
		says: "GET  http://a.test/ HTTP/1.1|Host: a.test||",
		gets: nothing},
	{name: "no version",
		says: "GET http://a.test/||",
		gets: nothing},
	{name: "odd version",
		says:   "GET http://a.test/ HTTP/1.2|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "version 2",
		says:   "GET http://a.test/ HTTP/2.0|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "version 0.9",
		says:   "GET http://a.test/ HTTP/0.9|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.0 200 OK|Connection: close|Content-Length: 2||ok"},
	{name: "bare newlines",
		says:   "GET http://a.test/ HTTP/1.1\nHost: a.test\nX-A: b\n\n",
		server: "GET / HTTP/1.1|Host: a.test|X-A: b||"},
	{name: "bare CR in a header",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|X-A: b\rX-B: c||",
		gets: nothing},
	{name: "zero byte in a header",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|X-A: b\x00c||",
		gets: nothing},
	{name: "folded header",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test|X-A: b| c||",
		server: "GET / HTTP/1.1|Host: a.test|X-A: b c||"},
	{name: "space before the colon",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|X-A : b||",
		gets: "502 Bad Gateway: net/http: invalid header field name \"X-A \""},
	{name: "empty lines before the request",
		says: "||GET http://a.test/ HTTP/1.1|Host: a.test||",
		gets: nothing},
	{name: "odd method",
		says:   "FOO-BAR http://a.test/ HTTP/1.1|Host: a.test||",
		server: "FOO-BAR / HTTP/1.1|Host: a.test||"},
	{name: "method in lower case",
		says:   "get http://a.test/ HTTP/1.1|Host: a.test||",
		server: "get / HTTP/1.1|Host: a.test||"},
	{name: "method with a bracket",
		says: "G(T http://a.test/ HTTP/1.1|Host: a.test||",
		gets: nothing},
	{name: "length and chunks",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Content-Length: 40|" +
			"Transfer-Encoding: chunked||3|abc|0||GET http://b.test/ HTTP/1.1|Host: b.test||",
		server: "POST / HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||3|abc|0||" +
			"GET / HTTP/1.1|Host: b.test||",
		gets: "HTTP/1.1 200 OK|Content-Length: 2||okHTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "two equal lengths",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Content-Length: 4|Content-Length: 4||" +
			"body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 4||body"},
	{name: "lengths in a list",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Content-Length: 4, 4||body",
		gets: nothing},
	{name: "length with a sign",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Content-Length: +4||body",
		gets: nothing},
	{name: "chunked twice",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Transfer-Encoding: chunked|" +
			"Transfer-Encoding: chunked||0||",
		gets: nothing},
	{name: "gzip, chunked",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Transfer-Encoding: gzip, chunked||0||",
		gets: nothing},
	{name: "chunk extensions",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||3;a=b|abc|" +
			"0||",
		server: "POST / HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||3|abc|0||"},
	{name: "chunk with a bad length",
		says:   "POST http://a.test/ HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||0x3|abc|0||",
		server: "POST / HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||",
		gets:   "502 Bad Gateway: invalid byte in chunk length"},
	{name: "trailers",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Trailer: X-Sum|" +
			"Transfer-Encoding: chunked||3|abc|0|X-Sum: 1||",
		answer: "HTTP/1.1 200 OK|Trailer: X-T|Transfer-Encoding: chunked||2|ok|0|X-T: 2||",
		server: "POST / HTTP/1.1|Host: a.test|Transfer-Encoding: chunked|Trailer: X-Sum||3|abc|0|" +
			"X-Sum: 1||",
		gets: "HTTP/1.1 200 OK|Transfer-Encoding: chunked|Trailer: X-T||2|ok|0|X-T: 2||"},
	{name: "an unannounced trailer",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||3|abc|0|" +
			"Host: b.test|X-Sum: 1||",
		server: "POST / HTTP/1.1|Host: a.test|Transfer-Encoding: chunked||3|abc|0||"},
	{name: "chunks to HTTP/1.0",
		says:   "GET http://a.test/ HTTP/1.0||",
		answer: "HTTP/1.1 200 OK|Transfer-Encoding: chunked||2|ok|0||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.0 200 OK|Connection: close||ok"},
	{name: "HTTP/1.0 that stays",
		says:   "GET http://a.test/ HTTP/1.0|Connection: keep-alive||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.0 200 OK|Connection: close|Content-Length: 2||ok"},
	{name: "answer of HTTP/1.0",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.0 200 OK||ok",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 OK|Connection: close||ok"},
	{name: "answer without a length",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test||GET http://a.test/2 HTTP/1.1|Host: " +
			"a.test||",
		answer: "HTTP/1.1 200 OK|Connection: close||ok",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 OK|Connection: close||ok"},
	{name: "answer that closes",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test||GET http://a.test/2 HTTP/1.1|" +
			"Host: a.test||",
		answer: "HTTP/1.1 200 OK|Connection: close|Content-Length: 2||ok",
		server: "GET / HTTP/1.1|Host: a.test||GET /2 HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 OK|Content-Length: 2||okHTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "program that closes",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|Connection: close||" +
			"GET http://b.test/ HTTP/1.1|Host: b.test||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 OK|Connection: close|Content-Length: 2||ok"},
	{name: "two requests at once",
		says: "GET http://a.test/1 HTTP/1.1|Host: a.test||GET http://a.test/2 HTTP/1.1|" +
			"Host: a.test||",
		server: "GET /1 HTTP/1.1|Host: a.test||GET /2 HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 OK|Content-Length: 2||okHTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "two requests, two servers",
		says: "GET http://a.test/1 HTTP/1.1|Host: a.test||GET http://b.test/2 HTTP/1.1|" +
			"Host: b.test||",
		server: "GET /1 HTTP/1.1|Host: a.test||GET /2 HTTP/1.1|Host: b.test||",
		gets:   "HTTP/1.1 200 OK|Content-Length: 2||okHTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "the second is blocked",
		says: "GET http://a.test/1 HTTP/1.1|Host: a.test||GET http://private.test/2 HTTP/1.1|" +
			"Host: a.test||GET http://a.test/3 HTTP/1.1|Host: a.test||",
		server: "GET /1 HTTP/1.1|Host: a.test||",
		gets: "HTTP/1.1 200 OK|Content-Length: 2||" +
			"ok403 Forbidden: 10.77.0.1 is in 10.0.0.0/8, which is closed"},
	{name: "HEAD",
		says: "HEAD http://a.test/ HTTP/1.1|Host: a.test||GET http://a.test/2 HTTP/1.1|" +
			"Host: a.test|Connection: close||",
		answer: "HTTP/1.1 200 OK|Content-Length: 0||",
		server: "HEAD / HTTP/1.1|Host: a.test||GET /2 HTTP/1.1|Host: a.test||",
		gets: "HTTP/1.1 200 OK|Content-Length: 0||HTTP/1.1 200 OK|Connection: close|" +
			"Content-Length: 0||"},
	{name: "not modified",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 304 Not Modified|Content-Length: 10|Etag: x||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 304 Not Modified|Etag: x||"},
	{name: "early hints",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 103 Early Hints|Link: x||HTTP/1.1 200 OK|Content-Length: 2||ok",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "100-continue",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Expect: 100-continue|" +
			"Content-Length: 4||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 4||body",
		gets:   "HTTP/1.1 100 Continue||HTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "100-Continue in capitals",
		says: "POST http://a.test/ HTTP/1.1|Host: a.test|Expect: 100-Continue|" +
			"Content-Length: 4||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 4||body",
		gets:   "HTTP/1.1 100 Continue||" + usual},
	{name: "100-continue to a blocked server",
		says: "POST http://private.test/ HTTP/1.1|Host: a.test|Expect: 100-continue|" +
			"Content-Length: 4||",
		gets: "HTTP/1.1 100 Continue||403 Forbidden: 10.77.0.1 is in 10.0.0.0/8, which is closed"},
	{name: "another expectation",
		says:   "POST http://a.test/ HTTP/1.1|Host: a.test|Expect: 200-ok|Content-Length: 4||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 4||body"},
	{name: "websocket",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|Connection: Upgrade|Upgrade: websocket|" +
			"Sec-WebSocket-Key: AAAA|Sec-WebSocket-Version: 13||",
		server: "GET / HTTP/1.1|Host: a.test|Sec-Websocket-Key: AAAA|Sec-Websocket-Version: 13||"},
	{name: "an unrequested protocol switch",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 101 Switching Protocols|Connection: Upgrade|Upgrade: foo||hello",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "502 Bad Gateway: the server switched protocols without a request"},
	{name: "HTTP/2 prior knowledge",
		says: "PRI * HTTP/2.0||SM||\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		gets: "400 Bad Request: this is a proxy: request an http:// URL, or use CONNECT"},
	{name: "h2c",
		says: "GET http://a.test/ HTTP/1.1|Host: a.test|Connection: Upgrade, HTTP2-Settings|" +
			"Upgrade: h2c|HTTP2-Settings: AAMAAABkAARAAAAA||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "body of GET",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test|Content-Length: 4||body",
		server: "GET / HTTP/1.1|Host: a.test|Content-Length: 4||body"},
	{name: "POST without a length",
		says:   "POST http://a.test/ HTTP/1.1|Host: a.test||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 0||"},
	{name: "an incomplete body",
		says:   "POST http://a.test/ HTTP/1.1|Host: a.test|Content-Length: 10||body",
		server: "POST / HTTP/1.1|Host: a.test|Content-Length: 10||body",
		gets:   "502 Bad Gateway: unexpected EOF"},
	{name: "credentials in the URL",
		says:   "GET http://u:p@a.test/ HTTP/1.1|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||"},
	{name: "gzip is passed through",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test|Accept-Encoding: gzip||",
		answer: "HTTP/1.1 200 OK|Content-Encoding: gzip|Content-Length: 2||ok",
		server: "GET / HTTP/1.1|Host: a.test|Accept-Encoding: gzip||",
		gets:   "HTTP/1.1 200 OK|Content-Length: 2|Content-Encoding: gzip||ok"},
	{name: "path alone",
		says: "GET / HTTP/1.1|Host: a.test||",
		gets: "400 Bad Request: this is a proxy: request an http:// URL, or use CONNECT"},
	{name: "OPTIONS *",
		says: "OPTIONS * HTTP/1.1|Host: a.test||",
		gets: "400 Bad Request: this is a proxy: request an http:// URL, or use CONNECT"},
	{name: "https",
		says: "GET https://a.test/ HTTP/1.1|Host: a.test||",
		gets: "400 Bad Request: this is a proxy: request an http:// URL, or use CONNECT"},
	{name: "port 0",
		says: "GET http://a.test:0/ HTTP/1.1|Host: a.test||",
		gets: "502 Bad Gateway: port \"0\": must be a number from 1 to 65535"},
	{name: "CONNECT",
		says:   "CONNECT a.test:80 HTTP/1.1|Host: b.test||GET / HTTP/1.1|Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 Connection established||HTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "CONNECT after a request",
		says: "GET http://a.test/1 HTTP/1.1|Host: a.test||CONNECT a.test:80 HTTP/1.1|" +
			"Host: a.test:80||GET /2 HTTP/1.1|Host: a.test||",
		server: "GET /1 HTTP/1.1|Host: a.test||GET /2 HTTP/1.1|Host: a.test||",
		gets: "HTTP/1.1 200 OK|Content-Length: 2||okHTTP/1.1 200 Connection established||" +
			"HTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "CONNECT with a body",
		says: "CONNECT a.test:80 HTTP/1.1|Host: a.test|Content-Length: 4||GET / HTTP/1.1|" +
			"Host: a.test||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 Connection established||HTTP/1.1 200 OK|Content-Length: 2||ok"},
	{name: "CONNECT with a URL",
		says: "CONNECT http://a.test:80/ HTTP/1.1|Host: a.test||",
		gets: "400 Bad Request: port \"\": must be a number from 1 to 65535"},
	{name: "CONNECT, blocked",
		says: "CONNECT private.test:443 HTTP/1.1|Host: a.test||",
		gets: "403 Forbidden: 10.77.0.1 is in 10.0.0.0/8, which is closed"},
	{name: "an invalid answer",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "nonsense||",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets: "502 Bad Gateway: net/http: HTTP/1.x transport connection broken: malformed HTTP " +
			"response \"nonsense\""},
	{name: "an answer with two lengths",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 200 OK|Content-Length: 2|Content-Length: 3||ok",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets: "502 Bad Gateway: net/http: HTTP/1.x transport connection broken: http: message " +
			"cannot contain multiple Content-Length headers; got [\"2\" \"3\"]"},
	{name: "an answer with a bare CR",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 200 OK|X-A: b\rSet-Cookie: c|Content-Length: 2||ok",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets: "502 Bad Gateway: net/http: HTTP/1.x transport connection broken: malformed MIME " +
			"header line: \"X-A: b\\rSet-Cookie: c\""},
	{name: "no type in the answer",
		says:   "GET http://a.test/ HTTP/1.1|Host: a.test||",
		answer: "HTTP/1.1 200|Content-Length: 13||<html></html>",
		server: "GET / HTTP/1.1|Host: a.test||",
		gets:   "HTTP/1.1 200 200|Content-Length: 13||<html></html>"},
}
