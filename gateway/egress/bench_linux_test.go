package egress

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkStream is one connection: down is what a program receives.
func BenchmarkStream(b *testing.B) {
	w := newWorld(b, ModeFiltered)
	const size = 256 << 20
	block := make([]byte, 1<<20)
	send := func(c net.Conn) {
		for range size / len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	}
	w.internet.listen(b, 7, send)
	w.internet.listen(b, 8, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		fmt.Fprint(c, "x")
	})
	b.Run("down", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			c, err := w.dial("tcp", public+":7")
			must(b, err)
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, block)
			if n != size || err != nil {
				b.Fatal(n, err)
			}
			c.Close()
		}
	})
	b.Run("up", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			c, err := w.dial("tcp", public+":8")
			must(b, err)
			send(c)
			must(b, c.(*net.TCPConn).CloseWrite())
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}

// BenchmarkConnect is a connection with one byte in each direction.
func BenchmarkConnect(b *testing.B) {
	w := newWorld(b, ModeFiltered)
	w.internet.listen(b, 7, echoes)
	var took []time.Duration
	w.guest.do(func() {
		for b.Loop() {
			start := time.Now()
			c, err := net.Dial("tcp", public+":7")
			must(b, err)
			_, err = c.Write([]byte{1})
			must(b, err)
			_, err = io.ReadFull(c, make([]byte, 1))
			must(b, err)
			took = append(took, time.Since(start))
			c.Close()
		}
	})
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
}

// BenchmarkIdle is the memory of 1,000 idle connections in this process, including programs and
// servers.
func BenchmarkIdle(b *testing.B) {
	w := newWorld(b, ModeFiltered)
	w.internet.listen(b, 7, echoes)
	before := resident(b)
	b.ReportMetric(before, "empty-MB")
	for b.Loop() {
		var list []net.Conn
		w.guest.do(func() {
			for range 1000 {
				c, err := net.Dial("tcp", public+":7")
				must(b, err)
				list = append(list, c)
			}
		})
		b.ReportMetric(resident(b)-before, "more-MB")
		for _, c := range list {
			c.Close()
		}
	}
}

func resident(b *testing.B) float64 {
	runtime.GC()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	must(b, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	must(b, err)
	return float64(pages*os.Getpagesize()) / 1e6
}
