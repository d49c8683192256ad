package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/gliderlabs/ssh"
)

// target is what the programs try to reach: an interface of our own, with everything behind it that
// they ask for.
type target struct {
	address string
	hosts   string       // a hosts file in which name is there
	hits    atomic.Int64 // connections and datagrams that arrived
	closers []func()
}

func (t *target) close() {
	for i := len(t.closers) - 1; i >= 0; i-- {
		t.closers[i]()
	}
}

func listen(ctx context.Context, dir string) (_ *target, err error) {
	pid := os.Getpid()
	t := &target{address: fmt.Sprintf("10.232.%d.%d", pid/64%256, pid%64*4+1),
		hosts: filepath.Join(dir, "hosts")}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	// #nosec G306 -- as /etc/hosts.
	if err := os.WriteFile(t.hosts, []byte("127.0.0.1 localhost\n"+t.address+" "+name+
		" other.test\n"), 0o644); err != nil {
		return nil, err
	}
	link := fmt.Sprint("reach", pid%100000)
	for i, args := range [][]string{{"link", "add", link, "type", "bridge"},
		{"addr", "add", t.address + "/30", "dev", link}, {"link", "set", link, "up"}} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		if i == 0 {
			t.closers = append(t.closers, func() {
				_ = exec.CommandContext(context.WithoutCancel(ctx), "ip", "link", "del", link).Run()
			})
		}
	}
	web, err := t.web(ctx, dir)
	if err != nil {
		return nil, err
	}
	shell := &ssh.Server{Handler: func(s ssh.Session) { _ = s.Exit(0) }}
	serve := []struct {
		port  int
		serve func(net.Listener)
	}{
		// #nosec G114 -- for as long as this runs.
		{8080, func(l net.Listener) { _ = http.Serve(l, web) }},
		{8443, func(l net.Listener) {
			s := httptest.NewUnstartedServer(web)
			s.Listener.Close()
			s.Listener = l
			s.StartTLS()
			t.closers = append(t.closers, s.Close)
		}},
		{2222, func(l net.Listener) { _ = shell.Serve(l) }},
		{5432, servePostgres},
	}
	for _, s := range serve {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("%s:%d", t.address, s.port))
		if err != nil {
			return nil, err
		}
		t.closers = append(t.closers, func() { l.Close() })
		counted := &counter{l, &t.hits}
		if s.port == 8443 { // which returns
			s.serve(counted)
		} else {
			go s.serve(counted) // until the listener is closed
		}
	}
	datagrams, err := new(net.ListenConfig).ListenPacket(ctx, "udp", t.address+":9000")
	if err != nil {
		return nil, err
	}
	t.closers = append(t.closers, func() { datagrams.Close() })
	go func() { // until it is closed
		b := make([]byte, 1500)
		for {
			n, from, err := datagrams.ReadFrom(b)
			if err != nil {
				return
			}
			t.hits.Add(1)
			_, _ = datagrams.WriteTo(b[:n], from)
		}
	}()
	return t, nil
}

// counter counts who arrives.
type counter struct {
	net.Listener
	hits *atomic.Int64
}

func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.hits.Add(1)
	}
	return conn, err
}

// web serves a page, a repository, and a package for pip and npm each.
func (t *target) web(ctx context.Context, dir string) (http.Handler, error) {
	repo := filepath.Join(dir, "git", "reach.git")
	if out, err := exec.CommandContext(ctx, "git", "init", "-q", "--bare",
		repo).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("git: %w: %s", err, out)
	}
	libexec, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		return nil, err
	}
	wheel, err := wheel()
	if err != nil {
		return nil, err
	}
	text := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/hello", text("text/plain", "hello\n"))
	mux.Handle("/git/", &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(libexec)),
		"git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repo), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}})
	mux.Handle("/simple/reachpkg/", text(
		"text/html",
		`<!DOCTYPE html><a href="/reachpkg-1.0-py3-none-any.whl">reachpkg-1.0-py3-none-any.whl</a>`))
	mux.HandleFunc("/reachpkg-1.0-py3-none-any.whl",
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel) })
	mux.Handle("/npm/reachpkg", text("application/json",
		`{"name":"reachpkg","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"reachpkg","version":"1.0.0","dist":{"tarball":"http://`+
			name+`:8080/none.tgz"}}}}`))
	return mux, nil
}

// wheel is a package of Python with nothing in it.
func wheel() ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "reachpkg-1.0.dist-info/"
	for _, f := range [][2]string{{info + "METADATA",
		"Metadata-Version: 2.1\nName: reachpkg\nVersion: 1.0\n"},
		{info + "WHEEL",
			"Wheel-Version: 1.0\nGenerator: reach\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""}} {
		w, err := z.Create(f[0])
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return b.Bytes(), err
}

// servePostgres speaks as much of PostgreSQL's protocol 3.0 (Frontend/Backend Protocol, section
// 55.7) as one query needs.
func servePostgres(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // until the client has gone
			defer conn.Close()
			_ = postgres(conn)
		}()
	}
}

func postgres(conn net.Conn) error {
	message := func(kind byte, body string) []byte {
		// #nosec G115 -- of a few bytes.
		return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
	}
	skip := func() error {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(size[:])
		if n < 4 || n > 1<<16 {
			return errors.New("not a message")
		}
		_, err := io.CopyN(io.Discard, conn, int64(n-4))
		return err
	}
	if err := skip(); err != nil { // the start-up
		return err
	}
	ready := message('Z', "I")
	if _, err := conn.Write(append(message('R', "\x00\x00\x00\x00"), ready...)); err != nil {
		return err
	}
	var kind [1]byte
	for {
		if _, err := io.ReadFull(conn, kind[:]); err != nil {
			return err
		}
		if err := skip(); err != nil {
			return err
		}
		if kind[0] != 'Q' {
			continue
		}
		answer := message(
			'T',
			"\x00\x01one\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00")
		answer = append(answer, message('D', "\x00\x01\x00\x00\x00\x011")...)
		answer = append(append(answer, message('C', "SELECT 1\x00")...), ready...)
		if _, err := conn.Write(answer); err != nil {
			return err
		}
	}
}
