package secret

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestBrokerServerCertificate(t *testing.T) {
	w := newWorld(t, func(http.ResponseWriter, *http.Request) {
		t.Error("a request reached a server with a bad certificate")
	}, nil)
	w.broker.options.Roots = x509.NewCertPool()
	answer, err := w.client(true).Get("https://" + apiHost + "/v1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body struct{ Error problem }
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	const want = "the server's certificate is not trusted: x509: certificate signed by unknown"
	if answer.StatusCode != 502 || !strings.Contains(body.Error.Message, want) ||
		!strings.Contains(w.reports(&w.failed), want) {
		t.Errorf("got %s, %+v; reported %s", answer.Status, body, w.reports(&w.failed))
	}
}

// The program's TLS must be for the host that it connected to.
func TestBrokerHandshake(t *testing.T) {
	w := newWorld(t, func(http.ResponseWriter, *http.Request) {}, nil)
	for _, tt := range []struct {
		name   string
		config *tls.Config
		list   *[]string
		want   string
	}{
		{"another name", &tls.Config{ServerName: "other.example.com", RootCAs: w.ca}, &w.denied,
			`TLS is for "other.example.com"`},
		{"no name", &tls.Config{InsecureSkipVerify: true}, &w.denied,
			"TLS without a server name (SNI)"},
		{"pinned", &tls.Config{ServerName: apiHost, RootCAs: x509.NewCertPool()}, &w.denied,
			"the program rejects the certificate of the broker"},
		{"pinned, TLS 1.2", &tls.Config{ServerName: apiHost, RootCAs: x509.NewCertPool(),
			MaxVersion: tls.VersionTLS12}, &w.denied,
			"the program rejects the certificate of the broker"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := tls.Client(w.connect(), tt.config)
			defer conn.Close()
			if err := conn.Handshake(); err == nil {
				t.Error("the handshake succeeds")
			}
			_, _ = io.ReadAll(conn) // until the broker has ended it
			conn.Close()
			w.served.Wait()
			if got := w.reports(tt.list); !strings.Contains(got, apiHost+": "+tt.want) {
				t.Errorf("reported %q, want %q", got, tt.want)
			}
		})
	}
	late := tls.Client(w.connect(), &tls.Config{ServerName: apiHost, RootCAs: w.ca})
	if err := late.Handshake(); err != nil {
		t.Fatal(err)
	}
	late.Close()
	w.served.Wait()
	if got := w.reports(&w.failed); !strings.Contains(got,
		"the program ended the connection before a request") {
		t.Errorf("reported %q", got)
	}
	conn := w.connect()
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(conn)
	w.served.Wait()
	if got := w.reports(&w.denied); !strings.Contains(got, apiHost+": not TLS") {
		t.Errorf("reported %q", got)
	}
}

// A program that has read an earlier certificate authority still accepts the hosts in it, and no
// authority signs for other hosts.
func TestBrokerAuthority(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, nil)
	first := w.ca
	s := secretOf("other", "other.example.com")
	w.set(s)
	for name, pool := range map[string]*x509.CertPool{"first": first, "second": w.ca} {
		w.ca = pool
		if _, err := w.client(true).Get("https://" + apiHost + "/"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	block, _ := pem.Decode(w.broker.Authority())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.PermittedDNSDomainsCritical || !cert.MaxPathLenZero || cert.MaxPathLen != 0 ||
		strings.Join(cert.PermittedDNSDomains, " ") != apiHost+" other.example.com" {
		t.Errorf("got %+v", cert)
	}
	a := w.broker.authority
	for _, change := range []func(*x509.Certificate){
		func(c *x509.Certificate) { c.DNSNames = []string{"evil.test"} },
		func(c *x509.Certificate) { c.DNSNames = []string{"example.com"} },
		func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{{10, 0, 0, 1}} },
		func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv6loopback} },
	} {
		leaf, err := a.leaf(apiHost)
		if err != nil {
			t.Fatal(err)
		}
		forged := *leaf.Leaf
		change(&forged)
		der, err := x509.CreateCertificate(nil, &forged, a.cert, forged.PublicKey, a.key)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parsed.Verify(x509.VerifyOptions{Roots: w.ca}); err == nil {
			t.Errorf("accepted for %v %v", forged.DNSNames, forged.IPAddresses)
		}
	}
}

// A change of the rules applies to open connections, as does the end of a binding.
func TestBrokerRebind(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, nil)
	client := w.client(false)
	get := func(want int) {
		t.Helper()
		answer, err := client.Get("https://" + apiHost + "/v1")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("got %s, want %d", answer.Status, want)
		}
	}
	get(200)
	s := secretOf("api", apiHost)
	s.Bindings[0].Rules = []Rule{{Path: "/v2"}}
	w.set(s)
	get(403)
	if _, err := w.broker.Bind(nil); err != nil {
		t.Fatal(err)
	}
	get(403)
	if got := w.broker.Authority(); got != nil {
		t.Errorf("authority of no bindings: %s", got)
	}
}

// The end of the context ends what is under way.
func TestBrokerEnds(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	program, accepted := net.Pipe()
	defer program.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		w.broker.Serve(ctx, apiHost, accepted, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", w.server.Listener.Addr().String())
		})
	}()
	conn := tls.Client(program, &tls.Config{RootCAs: w.ca, ServerName: apiHost})
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", apiHost)
	if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-served
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}

// A sandbox has a number of requests open at the same time, on all its connections.
func TestBrokerBounds(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-release
	}, nil)
	clients := []*http.Client{w.client(true), w.client(true)}
	get := func(i int) (*http.Response, error) {
		return clients[i%2].Get("https://" + apiHost + "/")
	}
	for i := range maxRequests {
		answer, err := get(i)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %v, %v", i, answer, err)
		}
		defer answer.Body.Close()
	}
	answer, err := get(0)
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("one too many: %v, %v", answer, err)
	}
	answer.Body.Close()
	close(release)
	if got := w.reports(&w.denied); got != apiHost+": 128 requests are open, the limit" {
		t.Errorf("reported %q", got)
	}
}

// A broker of the same seed has the same key and name, so that a program that trusts the one
// accepts the other. Another sandbox, and a store that was made anew, have others.
func TestAuthoritySeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets.json")
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	value, err := ParseValue([]byte("k3y"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Set(Secret{Name: "api", Owner: "owner", Bindings: []Binding{{
		Host: "api.test", Header: "X-Api-Key: {}"}}, Source: Source{Kind: KindValue}},
		value); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	made := func(seed []byte) *authority {
		t.Helper()
		a, err := newAuthority(seed)
		if err == nil {
			err = a.setHosts([]string{"api.test"})
		}
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, b := made(first.Seed("id")), made(again.Seed("id"))
	if !a.key.Equal(b.key) {
		t.Error("the key changes with the daemon")
	}
	leaf, err := b.leaf("api.test")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "api.test"})
	if err != nil {
		t.Errorf("with the earlier certificate: %v", err)
	}
	for what, seed := range map[string][]byte{"another sandbox": first.Seed("id2"),
		"another store": other.Seed("id"), "no seed": nil} {
		if made(seed).key.Equal(a.key) {
			t.Errorf("%s has the same key", what)
		}
	}
}
