package secret

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const apiHost = "api.example.com"

// world is a program, a broker and a server that it dials.
type world struct {
	t      *testing.T
	server *httptest.Server
	broker *Broker
	store  *Store
	ca     *x509.CertPool // of the broker
	served sync.WaitGroup

	mu     sync.Mutex
	denied []string // guarded by mu
	failed []string // guarded by mu
	dials  int      // guarded by mu
}

// newWorld binds apiHost to a server with handler. change may change the binding.
func newWorld(t *testing.T, handler http.HandlerFunc, change func(*Secret)) *world {
	t.Helper()
	w := &world{t: t}
	w.server = httptest.NewUnstartedServer(handler)
	w.server.EnableHTTP2 = true
	w.server.Config.ErrorLog = discard()
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	var err error
	if w.store, err = Open(""); err != nil {
		t.Fatal(err)
	}
	authority, err := newAuthority(nil) // of the server's certificate
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.setHosts([]string{apiHost}); err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.leaf(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	w.server.TLS.Certificates = []tls.Certificate{*leaf}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.pem())
	w.broker = NewBroker(BrokerOptions{Roots: roots,
		Denied: func(host, why string) { w.report(&w.denied, host+": "+why) },
		Failed: func(host, why string) { w.report(&w.failed, host+": "+why) }})
	s := secretOf("api", apiHost)
	if change != nil {
		change(&s)
	}
	w.set(s)
	t.Cleanup(w.served.Wait)
	return w
}

func (w *world) report(list *[]string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*list = append(*list, text)
}

func (w *world) reports(list *[]string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(*list, "\n")
}

// set replaces the secret and binds it.
func (w *world) set(s Secret) {
	w.t.Helper()
	v := Value{}
	if s.Source.Kind != KindCmd {
		v = valueOf(w.t, theKey)
	}
	if _, err := w.store.Set(s, v); err != nil {
		w.t.Fatal(err)
	}
	ca, err := w.broker.Bind(w.store.For("ann", "demo"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.ca = x509.NewCertPool()
	w.ca.AppendCertsFromPEM(ca)
}

// connect returns a program's connection to apiHost, before TLS.
func (w *world) connect() net.Conn {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	program, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { program.Close() })
	accepted, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.served.Go(func() {
		w.broker.Serve(w.t.Context(), apiHost, accepted, func(ctx context.Context) (net.Conn,
			error) {
			w.mu.Lock()
			w.dials++
			w.mu.Unlock()
			return new(net.Dialer).DialContext(ctx, "tcp", w.server.Listener.Addr().String())
		})
	})
	return program
}

// client returns a program's HTTP client.
func (w *world) client(http2 bool) *http.Client {
	transport := &http.Transport{ForceAttemptHTTP2: http2, DisableCompression: true,
		ExpectContinueTimeout: 10 * time.Second,
		TLSClientConfig:       &tls.Config{RootCAs: w.ca},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return w.connect(), nil
		}}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// rawTLS returns what a program receives for the bytes of says, over TLS.
func (w *world) rawTLS(says string) string {
	w.t.Helper()
	conn := tls.Client(w.connect(), &tls.Config{RootCAs: w.ca, ServerName: apiHost})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, says); err != nil {
		w.t.Fatal(err)
	}
	got, _ := io.ReadAll(conn) // until the broker closes, with or without an error
	return string(got)
}

// seen records requests.
type seen struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

func (s *seen) add(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s host=%s", r.Proto, r.Method, r.RequestURI, r.Host)
	_ = r.Header.WriteSubset(&b, map[string]bool{"Accept-Encoding": true, "User-Agent": true})
	fmt.Fprintf(&b, "body=%s trailer=%v", body, r.Trailer)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, b.String())
}

func (s *seen) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

func TestBrokerSetsCredential(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			var got seen
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				got.add(r)
				w.Header().Set("Alt-Svc", `h3=":443"`)
				w.Header().Set("X-Kept", "yes")
				fmt.Fprint(w, "hello")
			}, nil)
			client := w.client(http2)
			for range 3 {
				r, _ := http.NewRequest("POST",
					"https://"+apiHost+"/v1/a%2Fb?x=1;y&key=z", strings.NewReader("the body"))
				for name, text := range map[string]string{"Authorization": "Bearer foreign",
					"X-Api-Key": "foreign", "x_api_key": "foreign", "Cookie": "session=foreign",
					"Proxy-Authorization": "Basic foreign", "Private-Token": "foreign",
					"Connection": "Authorization", "X-Other": "kept",
					"X-Forwarded-Host": "foreign"} {
					if name != "Connection" || !http2 {
						r.Header[name] = []string{text}
					}
				}
				answer, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || string(body) != "hello" || answer.StatusCode != 200 ||
					answer.Header.Get("Alt-Svc") != "" || answer.Header.Get("X-Kept") != "yes" ||
					answer.ProtoMajor == 2 != http2 {
					t.Errorf("got %s, %q, %v, %v", answer.Status, body, answer.Header, err)
				}
			}
			all := got.take()
			for _, one := range all {
				if strings.Contains(one, "foreign") ||
					!strings.Contains(one, "Authorization: Bearer "+theKey) ||
					!strings.Contains(one, "POST /v1/a%2Fb?x=1;y&key=z host="+apiHost) ||
					!strings.Contains(one, "X-Other: kept") ||
					!strings.Contains(one, "body=the body") ||
					!strings.HasPrefix(one, "HTTP/2.0 ") {
					t.Errorf("the server got %s", one)
				}
			}
			if len(all) != 3 || w.dials != 1 {
				t.Errorf("%d requests on %d connections, want 3 on 1", len(all), w.dials)
			}
			if at := w.store.List("ann")[0].LastUsed; at == nil || time.Since(*at) > time.Minute {
				t.Errorf("last used: %v", at)
			}
		})
	}
}

func TestBrokerRefuses(t *testing.T) {
	var got seen
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { got.add(r) },
		func(s *Secret) {
			s.Bindings[0].Rules = []Rule{{Methods: []string{"POST"}, Path: "/v1/messages"}}
		})
	for _, http2 := range []bool{false, true} {
		client := w.client(http2)
		for _, tt := range []struct{ method, path, host, rule string }{
			{"POST", "/v1/files", "", "path"},
			{"GET", "/v1/messages", "", "method"},
			{"POST", "/v1/messages/../files", "", "target"},
			{"POST", "/v1/messages/%2e%2e/files", "", "target"},
			{"POST", "//v1/messages", "", "target"},
			{"POST", "/v1/messages", "other.example.com", "host"},
			{"TRACE", "/v1/messages", "", "method"},
		} {
			r, err := http.NewRequest(tt.method, "https://"+apiHost+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.Host = tt.host; tt.host == "" {
				r.Host = apiHost
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var body struct{ Error problem }
			err = json.NewDecoder(answer.Body).Decode(&body)
			answer.Body.Close()
			if err != nil || answer.StatusCode != 403 || body.Error.Rule != tt.rule ||
				body.Error.Code != "denied" || body.Error.Secret != "api" ||
				answer.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: got %s, %+v, %v, want a denial by %s", tt.method, tt.path,
					answer.Status, body, err, tt.rule)
			}
		}
	}
	if all := got.take(); len(all) > 0 || w.dials > 0 {
		t.Errorf("the server got %q on %d connections", all, w.dials)
	}
	if said := w.reports(&w.denied); !strings.Contains(said,
		apiHost+": POST request: path /v1/files is not bound; secret api") {
		t.Errorf("reported: %s", said)
	}
}

// Requests that parsers read in more than one way.
func TestBrokerSmuggling(t *testing.T) {
	var got seen
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		got.add(r)
		fmt.Fprint(w, "served")
	}, func(s *Secret) { s.Bindings[0].Rules = []Rule{{Path: "/ok"}} })
	const end = "Connection: close\r\n\r\n"
	host := "Host: " + apiHost + "\r\n"
	for _, tt := range []struct{ name, says, want string }{
		{"length and chunks", "POST /ok HTTP/1.1\r\n" + host + "Content-Length: 4\r\n" +
			"Transfer-Encoding: chunked\r\n" + end + "0\r\n\r\nGET /secret HTTP/1.1\r\n" + host +
			"\r\n", "200"},
		{"two lengths", "POST /ok HTTP/1.1\r\n" + host + "Content-Length: 4\r\n" +
			"Content-Length: 40\r\n" + end + "abcd", "400"},
		{"odd encoding", "POST /ok HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n" +
			end + "0\r\n\r\n", "501"},
		{"space before the colon", "POST /ok HTTP/1.1\r\n" + host + "Transfer-Encoding : chunked" +
			"\r\n" + end + "0\r\n\r\n", "400"},
		{"header with a line end", "GET /ok HTTP/1.1\r\n" + host + "X-A: a\n" +
			"Authorization: foreign\r\n" + end, "200"},
		{"header with a CR", "GET /ok HTTP/1.1\r\n" + host + "X-A: a\r" +
			"Authorization: foreign\r\n" + end,
			"400"},
		{"folded header", "GET /ok HTTP/1.1\r\n" + host + "X-A: a\r\n Authorization: x\r\n" + end,
			"200"},
		{"two hosts", "GET /ok HTTP/1.1\r\n" + host + "Host: evil.test\r\n" + end, "400"},
		{"absolute form", "GET https://" + apiHost + "/ok HTTP/1.1\r\n" + host + end, "403"},
		{"absolute form, other host", "GET https://evil.test/ok HTTP/1.1\r\n" + host + end, "403"},
		{"CONNECT", "CONNECT " + apiHost + ":443 HTTP/1.1\r\n" + host + end, "403"},
		{"no host", "GET /ok HTTP/1.0\r\n\r\n", "403"},
		{"h2c", "GET /ok HTTP/1.1\r\n" + host + "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n" +
			"Connection: Upgrade, HTTP2-Settings, close\r\n\r\n", "403"},
		{"trailer", "POST /ok HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n" +
			"Trailer: Authorization\r\n" + end + "0\r\nAuthorization: foreign\r\n\r\n", "200"},
		{"not HTTP", "\x16\x03\x01hello\r\n\r\n", "400"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer := w.rawTLS(tt.says)
			if !strings.HasPrefix(answer, "HTTP/1.1 "+tt.want) &&
				!strings.HasPrefix(answer, "HTTP/1.0 "+tt.want) {
				t.Errorf("got %q, want %s", answer, tt.want)
			}
			all := got.take()
			if want := map[string]int{"200": 1}[tt.want]; len(all) != want {
				t.Errorf("the server got %q", all)
			}
			for _, one := range all {
				if !strings.Contains(one, "Authorization: Bearer "+theKey) ||
					strings.Contains(one, "foreign") {
					t.Errorf("the server got %s", one)
				}
			}
		})
	}
}

// Events arrive one by one, before the response ends.
func TestBrokerStreams(t *testing.T) {
	next := make(chan bool)
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}, nil)
	for _, http2 := range []bool{false, true} {
		answer, err := w.client(http2).Get("https://" + apiHost + "/v1/stream")
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(answer.Body)
		for i := range 3 {
			line, err := lines.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("got %q, %v", line, err)
			}
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			next <- true
		}
		answer.Body.Close()
	}
}

// A request's body arrives while it is sent, and the response may come first.
func TestBrokerStreamsBody(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(w, "echo "+line)
			_ = rc.Flush()
		}
	}, nil)
	body, says := io.Pipe()
	r, _ := http.NewRequest("POST", "https://"+apiHost+"/v1/echo", body)
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(says, "one\n")
		sent <- err
	}()
	answer, err := w.client(true).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(answer.Body)
	for i, want := range []string{"echo one\n", "echo two\n"} {
		if i == 1 {
			if _, err := io.WriteString(says, "two\n"); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := lines.ReadString('\n'); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	says.Close()
}

// A large body passes unchanged, and one that the server rejects is not sent.
func TestBrokerExpectContinue(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	var read int64
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reject" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		read = n
		fmt.Fprint(w, n)
	}, nil)
	for _, http2 := range []bool{false, true} {
		for path, want := range map[string]int{"/take": 200, "/reject": 418} {
			read = 0
			body := bytes.NewReader(large)
			r, _ := http.NewRequest("PUT", "https://"+apiHost+path, body)
			r.Header.Set("Expect", "100-continue")
			answer, err := w.client(http2).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != want || want == 200 && read != int64(len(large)) {
				t.Errorf("%s: got %s, %d bytes", path, answer.Status, read)
			}
			if want == 418 && !http2 && body.Len() != len(large) { // HTTP/2 ends the stream
				t.Errorf("sent %d bytes", len(large)-body.Len())
			}
		}
	}
}

// A server receives no other form of Expect than the one that all know.
func TestBrokerExpectForms(t *testing.T) {
	forms := make(chan []string, 1)
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		forms <- append(r.Header["Expect"], fmt.Sprint(r.Close))
	}, nil)
	w.server.TLS.NextProtos = []string{"http/1.1"}
	answer := w.rawTLS("POST /ok HTTP/1.1\r\nHost: " + apiHost + "\r\nExpect: y 100-continue\r\n" +
		"Expect: z\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	if !strings.Contains(answer, "200 OK") {
		t.Fatalf("answer: %q", answer)
	}
	if got := <-forms; !slices.Equal(got, []string{"100-continue", "true"}) {
		t.Errorf("server received %q", got)
	}
}

func TestBrokerWebSocket(t *testing.T) {
	var protocol, key string
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		protocol, key = r.Header.Get("Sec-Websocket-Protocol"), r.Header.Get("Authorization")
		c, err := websocket.Accept(w, r,
			&websocket.AcceptOptions{Subprotocols: []string{"realtime"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if c.Write(r.Context(), kind, append([]byte("echo "), b...)) != nil {
				return
			}
		}
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+apiHost+"/v1/realtime", &websocket.DialOptions{
		HTTPClient:   w.client(false),
		Subprotocols: []string{"realtime", "openai-insecure-api-key.foreign"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, says := range []string{"one", "two"} {
		if err := c.Write(ctx, websocket.MessageText, []byte(says)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != "echo "+says {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if protocol != "realtime" || key != "Bearer "+theKey {
		t.Errorf("the server got subprotocols %q", protocol)
	}
}
