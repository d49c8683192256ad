package sshd

import (
	"io"
	"runtime"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// BenchmarkExec runs a command on an open connection.
func BenchmarkExec(b *testing.B) {
	w := newWorld(b, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	for b.Loop() {
		s, err := c.NewSession()
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Run("true"); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkEcho sends one byte to a program on its own terminal, and back.
func BenchmarkEcho(b *testing.B) {
	w := newWorld(b, worldOptions{})
	w.sandbox("demo")
	ch, reqs := openSession(b, w.dial("alice", "demo"))
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("pty-req", true,
		wire.Marshal(wire.PtyReq{Term: "x", Cols: 80, Rows: 24})); !ok || err != nil {
		b.Fatal(ok, err)
	}
	execute(b, ch, "stty raw -echo; echo r; exec cat")
	buf := make([]byte, 1)
	if _, err := io.ReadFull(ch, make([]byte, 2)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ch.Write([]byte("x")); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(ch, buf); err != nil {
			b.Fatal(err)
		}
	}
	ch.Close()
}

// BenchmarkBulk measures output through the gateway.
func BenchmarkBulk(b *testing.B) {
	w := newWorld(b, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		s, err := c.NewSession()
		if err != nil {
			b.Fatal(err)
		}
		s.Stdout = io.Discard
		if err := s.Run("head -c 67108864 /dev/zero"); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkConnections measures the memory of an idle connection with a terminal, in gateway,
// client and sandbox together: all of them are this process.
func BenchmarkConnections(b *testing.B) {
	w := newWorld(b, worldOptions{})
	w.sandbox("demo")
	const n = 20
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		clients := make([]*ssh.Client, n)
		for i := range clients {
			clients[i] = w.dial("alice", "demo")
			ch, reqs := openSession(b, clients[i])
			go ssh.DiscardRequests(reqs)
			if ok, err := ch.SendRequest("pty-req", true,
				wire.Marshal(wire.PtyReq{Term: "x", Cols: 80, Rows: 24})); !ok || err != nil {
				b.Fatal(ok, err)
			}
			execute(b, ch, "echo r; exec cat")
			io.ReadFull(ch, make([]byte, 3))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse+
			after.StackInuse-before.HeapInuse-before.StackInuse)/n/1024, "KiB/conn")
		for _, c := range clients {
			c.Close()
		}
	}
}
