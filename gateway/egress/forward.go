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

// serveHTTP serves requests until one is CONNECT, or the last. net/http reads, sends and writes
// them. Its Server is not used: it takes a connection back from its own reader, for CONNECT as
// after each request, by a read deadline, which a channel of SSH does not have. It would also
// rewrite more of an answer, and drop the request of a program that has ended its direction.
func (c *proxied) serveHTTP() {
	transport := &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 1,
		IdleConnTimeout: proxyIdle, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			host, port, err := splitAddress(address, 80)
			if err != nil {
				return nil, err
			}
			out, err := c.proxy.dial(host, port) // outlives the request that it is made for
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

// request is the body of a request that is forwarded. The transport reads it. From its end on,
// request waits for what the program sends next: so it notices a program that goes away before the
// answer has come.
type request struct {
	io.Reader
	from *proxied
	gone context.CancelFunc // called when the program has gone

	whole chan struct{} // closed when the body has been read
	next  chan struct{} // closed when there is another request, or will be none
}

func (r *request) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		r.end()
	}
	return n, err
}

// end starts to wait for what follows the body. Only the one who reads it calls end.
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
		case errors.Is(err, io.EOF): // it may have gone, or only have ended its direction
			time.AfterFunc(r.from.proxy.patience, r.gone)
		case err != nil:
			r.gone()
		}
	}()
}

// Close leaves what was not read: the body may have no end.
func (*request) Close() error { return nil }

// forward forwards one request for a URL, and its answer. It reports whether another may follow.
func (c *proxied) forward(transport *http.Transport, r *http.Request) bool {
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		c.refuse(http.StatusBadRequest,
			errors.New("this is a proxy: ask it for http:// URLs, or CONNECT"))
		return false
	}
	c.idle.Stop() // a request takes as long as it takes
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
		r.Header["User-Agent"] = nil // none of ours
	}
	answer, err := transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		c.refuse(statusOf(err), err)
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		c.refuse(http.StatusBadGateway, errors.New("the server switches to another protocol, unasked"))
		return false
	}
	adopt(answer, recent, again)
	if answer.Write(c.Conn) != nil {
		return false
	}
	select {
	case <-sending.whole:
	default: // answered early: what comes next is no request, and the transport may still read it
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

// adopt makes an answer of a server one of the proxy, which sends its own version (RFC 9110,
// section 2.5). Without a length or chunks the answer ends with the program's connection, as it
// does if the program takes no other request on it, or speaks HTTP/1.0.
func adopt(answer *http.Response, recent, again bool) {
	deleteHop(answer.Header)
	answer.ProtoMajor, answer.ProtoMinor = 1, 0
	if recent {
		answer.ProtoMinor = 1
	}
	answer.Close = !again || answer.ContentLength < 0 && len(answer.TransferEncoding) == 0
}

// hopHeaders are for the next party alone, as are those that Connection names (RFC 9110, section
// 7.6.1).
var hopHeaders = []string{
	"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Upgrade", "Expect",
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

// linger gives the program time to read the last answer: closing a connection on what the program
// still sends may lose it.
func (c *proxied) linger() {
	if closeWrite(c.Conn) != nil {
		return
	}
	c.idle.Reset(proxyLinger)
	_, _ = io.CopyN(io.Discard, c.Conn, maxLinger)
}

// outward returns an error as a program in the sandbox may read it, without this machine's address.
func outward(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil && op.Addr != nil {
		return fmt.Sprintf("%s %s: %v", op.Op, op.Addr, op.Err)
	}
	return err.Error()
}
