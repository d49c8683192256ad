//go:build linux

package proc

import (
	"context"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// BenchmarkProbe probes a busy process, a blocked one (which includes a wait of a millisecond
// between two readings), and a pipeline of 46.
func BenchmarkProbe(b *testing.B) {
	for name, script := range map[string]string{
		"busy":     "exec sleep 1000",
		"blocked":  "exec cat",
		"pipeline": "cat" + strings.Repeat("|cat", 45) + "|sleep 1000",
	} {
		b.Run(name, func(b *testing.B) {
			x := open(b, "sh", "-c", script)
			x.until("settled", func(f session.Facts) bool {
				return f.Blocked || f.Listens || strings.Contains(f.Why, "nanosleep")
			})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := (Prober{}).Probe(context.Background(), x.tty); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReading measures the part of a blocked Probe that uses the processor.
func BenchmarkReading(b *testing.B) {
	x := open(b, "cat")
	x.until("blocked", func(f session.Facts) bool { return f.Blocked })
	l := &look{}
	p, err := l.stat(x.tty.SessionPID)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		l.judge(layer{dev: x.tty.Device, members: []*process{p}})
	}
}
