package sshd

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// BenchmarkJoin joins a session with 1,000 lines of history on an open connection, until the screen
// and its status line have arrived.
func BenchmarkJoin(b *testing.B) {
	w := newWorld(b, worldOptions{})
	w.sandbox("demo")
	if _, err := w.shared().Request(b.Context(), wire.Request{Verb: wire.VerbRun,
		Text: `for i in $(seq 1100); do printf '%d \e[3%dmthe quick brown fox jumps over the lazy dog\e[0m\n' $i $((i%8)); done; echo the last line`}); err != nil {
		b.Fatal(err)
	}
	c := w.dial("alice", "demo")
	var bytes int
	var took time.Duration
	for b.Loop() {
		ch, reqs := openSession(b, c)
		go ssh.DiscardRequests(reqs)
		pty := wire.Marshal(wire.PtyReq{Term: "xterm-256color", Cols: 120, Rows: 41})
		if ok, err := ch.SendRequest("pty-req", true, pty); !ok || err != nil {
			b.Fatal(ok, err)
		}
		began := time.Now()
		if ok, err := ch.SendRequest("shell", true, nil); !ok || err != nil {
			b.Fatal(ok, err)
		}
		var got strings.Builder
		for buf := make([]byte, 64<<10); !strings.Contains(got.String(), "the last line") ||
			!strings.Contains(got.String(), "demo~main"); {
			n, err := ch.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			got.Write(buf[:n])
		}
		took += time.Since(began)
		bytes = max(bytes, got.Len())
		ch.Close()
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "join-ms")
	b.ReportMetric(float64(bytes)/1024, "join-KiB")
	b.ReportMetric(0, "ns/op")
}
