package httpd

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The files of a sandbox are listed, read and replaced whole. What is no regular file, no absolute
// path, or of a stopped sandbox, is an error, and changes nothing.
func TestFiles(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	s, dir := w.login(wire.RightDrive), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	put("a.txt", "hello")
	put("<img src=x onerror=alert(1)>", "")
	put("bad\xff", "")
	if err := os.Mkdir(filepath.Join(dir, "zoo"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(what, path string) string {
		return "/page/" + what + "/demo?path=" + url.QueryEscape(path)
	}
	got := w.pageCall(s, "GET", of("files", dir), "")
	for _, want := range []string{`"kind":"dir"`, `"name":"a.txt","kind":"file","size":5`,
		`"unreadable":true`, `"kind":"other"`} {
		if got.status != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("%d %s, want %s", got.status, got.body, want)
		}
	}
	if strings.Index(got.body, "zoo") > strings.Index(got.body, "a.txt") {
		t.Errorf("directories come first: %s", got.body)
	}
	got = w.pageCall(s, "GET", of("file", filepath.Join(dir, "a.txt"))+"&most=4", "")
	if got.body != "hell" || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	// A file of the kernel says that its size is 0.
	for most, want := range map[string]string{"": "Linux version ", "&most=4": "Linu"} {
		got = w.pageCall(s, "GET", of("file", "/proc/version")+most, "")
		if got.status != http.StatusOK || !strings.HasPrefix(got.body, want) ||
			most != "" && got.body != want {
			t.Errorf("%s: %d %q, want %q", most, got.status, got.body, want)
		}
	}
	if got := w.pageCall(s, "PUT", of("file", filepath.Join(dir, "a.txt")),
		"new"); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	info, err := os.Stat(filepath.Join(dir, "a.txt"))
	if err != nil || info.Size() != 3 || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	for _, c := range []struct {
		method, what, path string
		want               int
	}{
		{"GET", "files", "etc", http.StatusBadRequest},
		{"GET", "files", "/a\x00b", http.StatusBadRequest},
		{"GET", "files", dir + "/none", http.StatusNotFound},
		{"GET", "file", dir + "/none", http.StatusNotFound},
		{"GET", "file", dir + "/zoo", http.StatusBadRequest},
		{"GET", "file", dir + "/fifo", http.StatusBadRequest},
		{"GET", "file", "/dev/zero", http.StatusBadRequest},
		{"PUT", "file", dir + "/zoo", http.StatusBadRequest},
		{"PUT", "file", dir + "/fifo", http.StatusBadRequest},
		{"PUT", "file", dir + "/none/x", http.StatusNotFound},
	} {
		if got := w.pageCall(s, c.method, of(c.what, c.path), ""); got.status != c.want {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.what, c.path, got.status, got.body,
				c.want)
		}
	}
	if got := w.pageCall(w.login(wire.RightWatch), "GET", of("files", dir),
		""); got.status != http.StatusForbidden {
		t.Errorf("a watcher: %d %s", got.status, got.body)
	}

	// An upload that breaks leaves the old file, and no other.
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nCookie: %s=%s\r\n"+
		"X-Sandboxd-Key: %s\r\nContent-Length: 1000000\r\n\r\n%s", of("file", dir+"/a.txt"), w.addr,
		w.addr, s.cookie.Name, s.cookie.Value, s.key, strings.Repeat("x", 100_000))
	c.(*net.TCPConn).CloseWrite()
	var reply bytes.Buffer
	_, _ = reply.ReadFrom(c)
	c.Close()
	if text := reply.String(); strings.HasPrefix(text, "HTTP/1.1 2") {
		t.Errorf("a broken upload: %s", text)
	}
	entries, _ := os.ReadDir(dir)
	if text, err := os.ReadFile(dir + "/a.txt"); string(text) != "new" || len(entries) != 5 {
		t.Errorf("after a broken upload: %q, %v, %v", text, err, entries)
	}

	if err := w.hub.Stop(t.Context(), aliceAgent, "demo"); err != nil {
		t.Fatal(err)
	}
	if got := w.pageCall(s, "GET", of("files", dir), ""); got.status < 400 ||
		!strings.Contains(got.body, "start it first") {
		t.Errorf("stopped: %d %s", got.status, got.body)
	}
}
