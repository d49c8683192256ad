package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"time"
)

// serveHTTP serves requests until CONNECT or the last request. It uses net/http to parse, send and
// write them, but not its Server. The Server takes a connection back from its own reader with a
// read deadline, for CONNECT and after each request, and an SSH channel has no deadlines. It would
// also change more of a response, and drop the request of a program that has closed its direction.
func (c *proxied) serveHTTP() {
	transport := &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 1,
		IdleConnTimeout: proxyIdle, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			host, port, err := splitAddress(address, 80)
			if err != nil {
				return nil, err
			}
			out, err := c.proxy.dial(host, port) // outlives the request
			if err != nil {
				return nil, err
			}
			return out, nil
		},
	}
	defer transport.CloseIdleConnections()
	for {
		c.limit.N = maxHead
		r, err := http.ReadRequest(c.in)
		if err != nil {
			return
		}
		if r.Method == http.MethodConnect {
			c.connect(r)
			return
		}
		c.limit.N = math.MaxInt64
		if !c.forward(transport, r) {
			return
		}
	}
}

func (c *proxied) connect(r *http.Request) {
	host, port, err := splitAddress(r.Host, 443)
	if err != nil {
		c.refuse(http.StatusBadRequest, err)
		return
	}
	out, err := c.proxy.dial(host, port)
	if err != nil {
		c.refuse(statusOf(err), err)
		return
	}
	if _, err := io.WriteString(c.Conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = out.Close()
		return
	}
	c.carry(c.in, out)
}

// request is the body of a forwarded request. The transport reads it. At its end, request waits for
// what the program sends next, and so detects a program that leaves before the response has
// arrived.
type request struct {
	io.Reader
	from *proxied
	gone context.CancelFunc // called when the program has left

	whole chan struct{} // closed when the body has been read
	next  chan struct{} // closed when there is another request, or there will be none
}

func (r *request) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		r.end()
	}
	return n, err
}

// end starts to wait for what follows the body. Only the reader calls it.
func (r *request) end() {
	select {
	case <-r.whole:
		return
	default:
	}
	close(r.whole)
	go func() { // ends with the program's connection
		defer close(r.next)
		r.from.limit.N = maxHead
		switch _, err := r.from.in.Peek(1); {
		case errors.Is(err, io.EOF): // the program left, or only closed its direction
			time.AfterFunc(r.from.proxy.patience, r.gone)
		case err != nil:
			r.gone()
		}
	}()
}

// Close does not read the rest: the body may be endless.
func (*request) Close() error { return nil }

// forward forwards one request for a URL, and its response. It reports whether another request may
// follow.
func (c *proxied) forward(transport *http.Transport, r *http.Request) bool {
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		c.refuse(http.StatusBadRequest,
			errors.New("this is a proxy: request an http:// URL, or use CONNECT"))
		return false
	}
	c.idle.Stop() // no time limit during a request
	if strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		if _, err := io.WriteString(c.Conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return false
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sending := &request{Reader: r.Body, from: c, gone: cancel,
		whole: make(chan struct{}), next: make(chan struct{})}
	if r.Body == http.NoBody {
		sending.end()
	} else {
		r.Body = sending
	}
	recent := r.ProtoAtLeast(1, 1)
	again := recent && !r.Close
	r.RequestURI, r.Close = "", false
	deleteHop(r.Header)
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = nil // add none
	}
	answer, err := transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		c.refuse(statusOf(err), err)
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		c.refuse(http.StatusBadGateway, errors.New(
			"the server switched protocols without a request"))
		return false
	}
	adopt(answer, recent, again)
	if answer.Write(c.Conn) != nil {
		return false
	}
	select {
	case <-sending.whole:
	default: // early response: the rest of the body follows, and the transport may still read it
		c.linger()
		return false
	}
	if answer.Close {
		return false
	}
	c.idle.Reset(c.proxy.patience)
	<-sending.next
	return true
}

// adopt makes a server's response one of the proxy, which sends its own version (RFC 9110, section
// 2.5). Without a length or chunks, the response ends with the program's connection. It also does
// if the program sends no other request on it, or uses HTTP/1.0.
func adopt(answer *http.Response, recent, again bool) {
	deleteHop(answer.Header)
	answer.ProtoMajor, answer.ProtoMinor = 1, 0
	if recent {
		answer.ProtoMinor = 1
	}
	answer.Close = !again || answer.ContentLength < 0 && len(answer.TransferEncoding) == 0
}

// hopHeaders are for the next hop only, as are those that Connection names (RFC 9110, section
// 7.6.1).
var hopHeaders = []string{
	"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Upgrade",
	"Expect",
}

func deleteHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopHeaders {
		h.Del(name)
	}
}

func statusOf(err error) int {
	if _, ok := errors.AsType[refusal](err); ok {
		return http.StatusForbidden
	}
	return http.StatusBadGateway
}

// refuse answers a request with the reason why it is not forwarded, and ends the connection.
func (c *proxied) refuse(status int, why error) {
	text := outward(why) + "\n"
	_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\n"+
		"Content-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(text), text)
	c.linger()
}

// linger gives the program time to read the last response: closing the connection while the program
// still sends may lose it.
func (c *proxied) linger() {
	if closeWrite(c.Conn) != nil {
		return
	}
	c.idle.Reset(proxyLinger)
	_, _ = io.CopyN(io.Discard, c.Conn, maxLinger)
}

// outward returns an error for a program in the sandbox, without this machine's address.
func outward(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil && op.Addr != nil {
		return fmt.Sprintf("%s %s: %v", op.Op, op.Addr, op.Err)
	}
	return err.Error()
}
