package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// A request for a URL is forwarded with its body, and others may follow on the connection. What is
// not allowed gets an error status.
func TestProxyRequests(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.serveHTTP(80, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s %q %s", r.Method, r.Host, r.URL.Path,
			r.Header.Get("Proxy-Connection")+r.Header.Get("User-Agent"), body)
	}))
	n := newProxyNetwork(w, Options{Policy: policy(t, ModeFiltered), Resolve: w.resolve,
		Event: w.event}, throughConnect).(proxyNetwork)
	conn, err := net.Dial("tcp", n.address)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(60*time.Second)))
	in := bufio.NewReader(conn)
	for _, c := range []struct{ request, status, want string }{
		{"GET http://public.test/a HTTP/1.1\r\nHost: public.test\r\nProxy-Connection: keep-alive\r\n\r\n", "200", `GET public.test /a "" `},
		{"POST http://cdn.test/b HTTP/1.1\r\nHost: other.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody", "200", `POST cdn.test /b "" body`},
		{"GET http://private.test/ HTTP/1.1\r\nHost: private.test\r\n\r\n", "403", "which is closed"},
	} {
		_, err := io.WriteString(conn, c.request)
		must(t, err)
		answer, err := http.ReadResponse(in, nil)
		for err == nil && answer.StatusCode == http.StatusContinue {
			answer, err = http.ReadResponse(in, nil)
		}
		must(t, err)
		body, err := io.ReadAll(answer.Body)
		must(t, err)
		if !strings.HasPrefix(answer.Status, c.status) || !strings.Contains(string(body), c.want) {
			t.Errorf("%q: got %s %q, want %s %q", c.request, answer.Status, body, c.status, c.want)
		}
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection is open after a refusal")
	}
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":                    "HTTP/1.1 400 ",
		"GET https://public.test/ HTTP/1.1\r\nHost: a\r\n\r\n": "HTTP/1.1 400 ",
		"CONNECT public.test:0 HTTP/1.1\r\n\r\n":               "HTTP/1.1 400 ",
		"CONNECT nobody.test:80 HTTP/1.1\r\n\r\n":              "HTTP/1.1 502 ",
		"CONNECT a%00b:80 HTTP/1.1\r\n\r\n":                    "",
		"\x05\x01\x00\x05\x02\x00\x01\xcb\x00\x71\x0a\x00\x50": "\x05\x00\x05\x02", // BIND
		"\x05\x01\x00\x05\x03\x00\x01\xcb\x00\x71\x0a\x00\x50": "\x05\x00\x05\x02", // UDP ASSOCIATE
		"\x04\x01\x00\x50\xcb\x00\x71\x0a\x00":                 "",                 // SOCKS4
		"nonsense\r\n\r\n":                                     "",
	} {
		conn, err := net.Dial("tcp", n.address)
		must(t, err)
		must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = io.WriteString(conn, request)
		must(t, err)
		got, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 &&
			!strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("%q: got %q, want %q", request, got, want)
		}
		conn.Close()
	}
}

// A program's input to the proxy is not trusted: none ends the daemon, or dials a closed address.
func FuzzProxy(f *testing.F) {
	for _, s := range []string{"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT a.test:80 HTTP/1.1\r\n\r\n", "\x05\x01\x00\x05\x01\x00\x03\x06a.test\x00\x50",
		"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", "\x05\x01\x00\x05\x01\x00\x04",
		"CONNECT [::1]:80 HTTP/1.1\r\n\r\n",
		"POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		p, err := NewProxy(Options{
			Policy: policy(t, ModeFiltered),
			Own:    func() []netip.Prefix { return nil },
			Resolve: func(context.Context, string) (
				[]netip.Addr, error) {
				return addrs("10.0.0.1", public), nil
			},
			Dial: func(_ context.Context, _, address string) (net.Conn, error) {
				if dst := netip.MustParseAddrPort(address); policy(t, ModeFiltered).refuses(
					"", dst, nil) != (refusal{}) {
					t.Errorf("%s was dialled", dst)
				}
				return nil, errors.New("no answer")
			},
		})
		must(t, err)
		here, there := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { p.Serve(there) })
		wg.Go(func() { _, _ = io.Copy(io.Discard, here) })
		_, _ = here.Write(said)
		here.Close()
		wg.Wait()
		must(t, p.Close())
	})
}
