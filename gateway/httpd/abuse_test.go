package httpd

import (
	"bufio"
	"encoding/base64"
	bigEndian "encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Requests that a proxy and this server would parse differently are rejected. Their bodies are
// never parsed as requests (A110).
func TestSmuggling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const hidden = "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"
	inner := fmt.Sprintf(hidden, w.alice)
	auth := "Authorization: Bearer " + w.bob + "\r\n"
	for name, text := range map[string]string{
		"two lengths":                   fmt.Sprintf("POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s", auth, len(inner), inner),
		"an invalid length":             "POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: +4\r\n\r\nabcd" + inner,
		"an unknown coding":             "POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n" + auth + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner,
		"a coding spelled oddly":        "POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n" + auth + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
		"a blank before the colon":      "POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length : 4\r\n\r\nabcd" + inner,
		"a chunk that is too long":      "POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + inner,
		"two hosts":                     "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n" + auth + "\r\n",
		"no host":                       "GET /v1/sandboxes HTTP/1.1\r\n" + auth + "\r\n",
		"a host in its first line":      "GET http://evil.example/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n",
		"a header with a NUL":           "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: " + w.bob + "\x00\r\n\r\n",
		"HTTP/2 without being asked":    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a tunnel":                      "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n" + auth + "\r\n",
		"a header that stands for some": "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-Original-Authorization: Bearer " + w.alice + "\r\nX-Forwarded-User: alice\r\nRemote-User: alice\r\n\r\n",
	} {
		c := w.raw(text)
		c.SetReadDeadline(time.Now().Add(patience))
		r := bufio.NewReader(c)
		for n := 0; ; n++ {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				if n == 0 && !strings.Contains(name, "HTTP/2") {
					t.Errorf("%s: no answer: %v", name, err)
				}
				break
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode < 400 || n > 0 {
				t.Errorf("%s: answer %d is %d %.200s", name, n, resp.StatusCode, body)
			}
			if resp.Close || n > 3 || resp.Header.Get("WWW-Authenticate") != "" ||
				resp.StatusCode == http.StatusMisdirectedRequest ||
				resp.StatusCode == http.StatusNotFound {
				break // the connection stays open: nothing followed
			}
		}
		c.Close()
	}
}

// Paths of records, sessions and page files lead nowhere else in any spelling (A114, A118).
func TestPathsLeadNowhere(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	const hidden = "not for any client"
	for _, file := range []string{w.records + "/outside", w.records + "/../outside"} {
		if err := os.WriteFile(file, []byte(hidden), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, odd := range []string{"..", "%2e%2e", "..%2f..%2foutside", "%2e%2e%2foutside", "demo%00",
		"demo%2f..%2fdemo", "DEMO", "démo", "demo%0a", "-demo", "..%5coutside",
		strings.Repeat("a", 300)} {
		for _, path := range []string{"/v1/sandboxes/%s", "/v1/sandboxes/%s/records",
			"/v1/sandboxes/demo/sessions/%s/record", "/v1/sandboxes/demo/sessions/%s/record/cast",
			"/v1/sandboxes/%s/sessions/main/screen",
			"/e2b/sandboxes/%s", "/page/records/%s", "/v1/run/%s/artifacts/x",
			"/v1/run/x/artifacts/%s", "/page/static/%s"} {
			at := fmt.Sprintf(path, odd)
			a := w.call("GET", at, w.alice, "")
			// The redirect target of an unclean path.
			page := strings.HasPrefix(a.header.Get("Content-Type"), "text/html")
			if a.status == http.StatusOK && !page || a.status == http.StatusInternalServerError ||
				strings.Contains(a.body, hidden) {
				t.Errorf("%s: %d %.200s", at, a.status, a.body)
			}
		}
	}
}

// Ranges return no more than there is, however many there are (A112).
func TestRanges(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	w.records4K("demo")
	at := "/v1/sandboxes/demo/sessions/main/record"
	whole := w.call("GET", at, w.alice, "")
	if whole.status != http.StatusOK || len(whole.body) == 0 {
		t.Fatalf("%d, %d bytes", whole.status, len(whole.body))
	}
	ranged := func(r string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set("Range", r) }
	}
	for r, want := range map[string][]int{
		"bytes=0-0": {206}, "bytes=-1": {206}, "bytes=99999999-": {416}, "bytes=5-1": {416, 200}, "bytes=-0": {416, 206}, "lines=1-2": {416, 200}, "bytes=0-99999999999999999999": {416, 206},
		"bytes=" + strings.Repeat("0-,", 3000) + "0-":      {200, 206, 416},
		"bytes=" + strings.Repeat("0-0,1-1,", 1500) + "0-": {200, 206, 416},
	} {
		a := w.call("GET", at, w.alice, "", ranged(r))
		if !slices.Contains(want, a.status) || len(a.body) > 2*len(whole.body)+512*6000 {
			t.Errorf("%.40s: %d, %d bytes of %d", r, a.status, len(a.body), len(whole.body))
		}
		if strings.Contains(r, "0-,0-") && len(a.body) > len(whole.body)+4096 {
			t.Errorf("%.40s: %d bytes of %d", r, len(a.body), len(whole.body))
		}
	}
}

// records4K has a session of that sandbox print text.
func (w *world) records4K(name string) {
	w.t.Helper()
	s := w.login(wire.RightDrive)
	c, _, err := w.socket(s, "/page/terminal/"+name+"/main?cols=80&rows=24")
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.CloseNow()
	tick := time.NewTicker(20 * time.Millisecond) // stays below the rate limit of a token
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		if a := w.call("GET", "/v1/sandboxes/"+name+"/sessions/main/record", w.alice,
			""); a.status == http.StatusOK && len(a.body) > 0 {
			return
		}
		if time.Now().After(end) {
			w.t.Fatal("the session prints nothing")
		}
	}
}

// frameOf returns a frame of RFC 6455, section 5.2, masked with zeros if masked is set.
func frameOf(first byte, masked bool, size uint64, payload []byte) []byte {
	f := []byte{first, 127}
	f = bigEndian.BigEndian.AppendUint64(f, size)
	if masked {
		f[1] |= 0x80
		f = append(f, 0, 0, 0, 0)
	}
	return append(f, payload...)
}

// A violation of the WebSocket protocol ends the socket. Endless pings and endless fragments do not
// affect others (A112).
func TestSocketAbuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sandbox("demo")
	s := w.login(wire.RightDrive)
	handshake := fmt.Sprintf(
		"GET /page/live HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nCookie: %s\r\nConnection: "+
			"Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
			"%s\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: "+
			"sandboxd.page, key.%s\r\n\r\n",
		w.addr, w.addr, s.cookie.String(), base64.StdEncoding.EncodeToString(make([]byte, 16)),
		s.key)
	small := []byte("{}")
	piece := func(first byte, masked bool, p []byte) []byte { // less than 126 bytes
		f := []byte{first, byte(len(p))}
		if masked {
			f[1] |= 0x80
			f = append(f, 0, 0, 0, 0)
		}
		return append(f, p...)
	}
	for name, text := range map[string][]byte{
		"not masked":                     piece(0x81, false, small),
		"a reserved bit":                 piece(0xc1, true, small), // compressed, which was not negotiated
		"a reserved kind":                piece(0x83, true, small),
		"a continuation without a start": piece(0x80, true, small),
		"a piece of a ping":              piece(0x09, true, small),
		"a long ping":                    frameOf(0x89, true, 1<<20, nil),
		"1 GiB":                          append(frameOf(0x82, true, 1<<30, nil), make([]byte, 128<<10)...),
		"more than there is":             frameOf(0x82, true, 1<<63, nil),
		"pieces without end":             append(piece(0x01, true, nil), slices.Repeat(piece(0x00, true, make([]byte, 100)), 2000)...),
		"a bad close":                    piece(0x88, true, []byte{1}),
	} {
		c := w.raw(handshake)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols ||
			resp.Header.Get("Sec-WebSocket-Extensions") != "" {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		began := time.Now()
		go func() { _, _ = c.Write(text) }() // the server may close meanwhile
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, r); err != nil &&
			strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: it is open after %v", name, time.Since(began))
		}
		t.Logf("%s: %v", name, time.Since(began))
		c.Close()
	}
	// Endless pings, with answers that nobody reads: others are still served.
	c := w.raw(handshake)
	flooding := make(chan struct{})
	go func() {
		defer close(flooding)
		flood := slices.Repeat(piece(0x89, true, make([]byte, 100)), 1000)
		for {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
	}()
	for range 20 {
		if a := w.call("GET", "/v1/sandboxes", w.alice, ""); a.status != http.StatusOK {
			t.Errorf("meanwhile: %d", a.status)
		}
	}
	c.Close()
	<-flooding
}

// Aborted requests leave no open descriptors (A112).
func TestDescriptorsAreClosed(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	w.records4K("demo")
	count := func() int {
		w.client.CloseIdleConnections()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := count()
	head := "HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + w.alice + "\r\n"
	for range 100 {
		for _, text := range []string{
			"GET /v1/sandboxes/demo/sessions/main/record " + head + "\r\n",
			"GET /v1/sandboxes/demo/sessions/main/record/cast " + head + "\r\n",
			"POST /v1/run/ " + head + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
			"GET /page/replay/demo/main " + head + "\r\n",
		} {
			w.raw(text).Close()
		}
	}
	for end := time.Now().Add(patience); ; {
		w.await("all are over", func(at map[string]int) bool { return at["alice"] == 0 })
		after := count()
		if after <= before+4 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were", after, before)
		}
	}
}
