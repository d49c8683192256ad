package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Data that is not clearly another protocol and names no server does not reach the server of a
// listed name. Other protocols pass unchanged.
func TestContractOpenings(t *testing.T) {
	other := hello(t, "other.test")
	blocked := map[string][]byte{
		"alert, then a ClientHello":      append([]byte{21, 3, 1, 0, 2, 1, 112}, other...),
		"change of cipher, then a hello": append([]byte{20, 3, 1, 0, 1, 1}, other...),
		"heartbeat, then a hello":        append([]byte{24, 3, 1, 0, 3, 1, 0, 0}, other...),
		"SSLv2":                          sslv2,
		"HTTP/0.9":                       []byte("GET http://other.test/\r\n"),
		"control in the request line":    []byte("GET /\x01 HTTP/1.1\r\nHost: other.test\r\n\r\n"),
		"zero byte before the request":   []byte("\x00GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
		"line before the request":        []byte("FOO\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
		"header in a header":             []byte("GET / HTTP/1.1\r\nA: b\rHost: other.test\r\nHost: cdn.test\r\n\r\n"),
		"CONNECT":                        []byte("CONNECT other.test:443 HTTP/1.1\r\nHost: cdn.test\r\n\r\n"),
		"PROXY protocol, then a hello":   append([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n"), other...),
		"PROXY protocol 2, then a hello": append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x00"), other...),
		"a dot behind the name":          bytes.Replace(hello(t, "cdn.test"), []byte("cdn.test"), []byte("cdntest."), 1),
		"a prelude that is a polyglot":   append([]byte("SSH-2.0-x HTTP/1.1\r\nHost: other.test\r\n\r\n"), other...),
	}
	contract(t, ModeAllowlist, []string{"cdn.test"}, func(t *testing.T, w *world, n network) {
		got := make(chan []byte)
		w.internet.listen(t, 443, func(c net.Conn) {
			b := make([]byte, 64<<10)
			n, _ := c.Read(b)
			got <- b[:n]
		})
		for what, b := range blocked {
			c, err := n.connect("cdn.test", 443)
			must(t, err)
			_, _ = c.Write(b)
			if b := <-got; len(b) > 0 {
				t.Errorf("%s: %q arrived", what, b[:min(len(b), 80)])
				continue
			}
			w.await(what, is(KindRefused, "cdn.test"))
		}
		for _, text := range []string{"SSH-2.0-x\r\n", "*1\r\n$4\r\nPING\r\n", "@RSYNCD: 31.0\n",
			"\x00\x00\x00\x08\x04\xd2\x16\x2f"} {
			c, err := n.connect("cdn.test", 443)
			must(t, err)
			_, err = io.WriteString(c, text)
			must(t, err)
			if b := <-got; string(b) != text {
				t.Errorf("%q arrived as %q", text, b)
			}
		}
		// PostgreSQL's request for TLS has no name; the ClientHello after it has one.
		for name, ok := range map[string]bool{"cdn.test": true, "other.test": false} {
			c, err := n.connect("cdn.test", 443)
			must(t, err)
			_, err = c.Write(append([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), hello(t, name)...))
			must(t, err)
			if b := <-got; len(b) != 8 && !ok {
				t.Errorf("%s: %q arrived", name, b)
			}
			if !ok {
				w.await("prelude", is(KindRefused, "cdn.test"))
			}
		}
	})
}

// A server that speaks first has another protocol, and its client's data is not parsed. Messages
// that HTTP servers send first do not count.
func TestContractServerSpeaksFirst(t *testing.T) {
	contract(t, ModeAllowlist, []string{"cdn.test"}, func(t *testing.T, w *world, n network) {
		for greeting, ok := range map[string]bool{
			"220 mail.test ESMTP\r\n":              true,
			"\x4a\x00\x00\x00\x0a8.0.36\x00":       true, // MySQL
			"HTTP/1.1 408 \r\n\r\n":                false,
			"\x00\x00\x06\x04\x00\x00\x00\x00\x00": false, // HTTP/2
			"\x15\x03\x01\x00\x02\x01\x00":         false,
		} {
			port := 2000 + len(greeting)
			got := make(chan []byte, 1)
			w.internet.listen(t, port, func(c net.Conn) {
				_, _ = io.WriteString(c, greeting)
				b := make([]byte, 100)
				n, _ := c.Read(b)
				got <- b[:n]
			})
			c, err := n.connect("cdn.test", port)
			must(t, err)
			_, err = io.ReadFull(c, make([]byte, len(greeting)))
			must(t, err)
			_, err = io.WriteString(c, "EHLO other.test\r\n")
			must(t, err)
			if b := <-got; (len(b) > 0) != ok {
				t.Errorf("after %q: %q arrived", greeting, b)
			}
			if !ok {
				if e := w.await("refused", is(KindRefused, "cdn.test")); !strings.HasPrefix(
					e.Opens, public) {
					t.Errorf("got %+v", e)
				}
			}
		}
	})
}

// retry returns a server's request for another ClientHello.
func retry() []byte {
	hello := append(append([]byte{2, 0, 0, 40, 3, 3}, retryRandom...), 0, 0x13, 0x01, 0, 0, 0)
	return append([]byte{21, 3, 3, 0, 2, 1, 112, 22, 3, 3, 0, byte(len(hello))}, hello...)
}

// A server that asks for a second ClientHello uses the name in that one.
func TestContractSecondClientHello(t *testing.T) {
	first, second := hello(t, "cdn.test"), hello(t, "other.test")
	change := []byte{20, 3, 3, 0, 1, 1}
	early := []byte{23, 3, 3, 0, 4, 1, 22, 3, 3}
	cases := map[string]struct {
		again, unasked bool
		says           []byte
		ok             bool
	}{
		"the same name":                 {true, false, first, true},
		"the same name, later":          {true, false, append(bytes.Clone(change), first...), true},
		"another name":                  {true, false, second, false},
		"another name, later":           {true, false, append(append(bytes.Clone(change), early...), second...), false},
		"another name, unasked":         {true, true, second, false},
		"another name, behind a cipher": {true, true, append(append(bytes.Clone(early), change...), second...), false},
		"in records":                    {true, false, split(second, 100), false},
		"no name":                       {true, false, hello(t, ""), false},
		"heartbeat":                     {true, false, append([]byte{24, 3, 1, 0, 3, 1, 0, 0}, first...), false},
		"no second is wanted":           {false, false, []byte{22, 3, 3, 0, 1, 1}, true},
		"no second is wanted, early":    {false, true, early, true},
	}
	contract(t, ModeAllowlist, []string{"cdn.test"}, func(t *testing.T, w *world, n network) {
		port := 4000
		for what, c := range cases {
			port++
			all := make(chan []byte, 1)
			answer := retry()
			if !c.again {
				answer[len(answer)-20] ^= 1
			}
			w.internet.listen(t, port, func(s net.Conn) {
				b := make([]byte, len(first))
				_, _ = io.ReadFull(s, b)
				_, _ = s.Write(answer)
				rest, _ := io.ReadAll(s)
				all <- slices.Concat(b, rest)
			})
			conn, err := n.connect("cdn.test", port)
			must(t, err)
			said := append(bytes.Clone(first), c.says...)
			if c.unasked {
				_, _ = conn.Write(said)
			} else {
				_, _ = conn.Write(first)
			}
			_, err = io.ReadFull(conn, make([]byte, len(answer)))
			if c.ok || !c.unasked { // otherwise the connection may have ended before
				must(t, err)
			}
			if !c.unasked {
				_, _ = conn.Write(c.says)
			}
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			got := <-all
			if c.ok && !bytes.Equal(got, said) {
				t.Errorf("%s: %d bytes of %d arrived", what, len(got), len(said))
			}
			if !c.ok {
				if bytes.Contains(got, second[:43]) || bytes.Contains(got, []byte("other.test")) {
					t.Errorf("%s: it arrived", what)
				}
				w.await(what, is(KindRefused, "cdn.test"))
			}
		}
	})
}

// Go's own server answers after an alert; that does not give access under another name.
func TestContractTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"cdn.test"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	contract(t, ModeAllowlist, []string{"cdn.test"}, func(t *testing.T, w *world, n network) {
		served := make(chan string, 1)
		config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert},
			PrivateKey: key}},
			CurvePreferences: []tls.CurveID{tls.CurveP384}, // not the clients' first choice
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				served <- h.ServerName
				return nil, nil
			}}
		w.internet.listen(t, 443, func(c net.Conn) { echoes(tls.Server(c, config)) })
		c, err := n.connect("cdn.test", 443)
		must(t, err)
		client := tls.Client(c, &tls.Config{ServerName: "cdn.test", InsecureSkipVerify: true})
		_, err = io.WriteString(client, "hello")
		must(t, err)
		b := make([]byte, 5)
		if _, err := io.ReadFull(client, b); err != nil || string(b) != "hello" ||
			<-served != "cdn.test" {
			t.Errorf("a server that asks for another ClientHello: got %q, %v", b, err)
		}
		c, err = n.connect("cdn.test", 443)
		must(t, err)
		_, _ = c.Write([]byte{21, 3, 1, 0, 2, 1, 112})
		err = tls.Client(c, &tls.Config{ServerName: "other.test",
			InsecureSkipVerify: true}).Handshake()
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("behind an alert: %v", err)
		}
		select {
		case name := <-served:
			t.Errorf("%s was reached", name)
		default:
		}
		w.await("alert", is(KindRefused, "cdn.test"))
	})
}
