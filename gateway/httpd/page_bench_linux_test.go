package httpd

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// BenchmarkPage measures latency in a real browser on the loopback: until the first paint, until
// the list is painted, and from a key press to its cell on the screen.
func BenchmarkPage(b *testing.B) {
	browser := newBrowser(b)
	w := newWorld(b)
	w.sandbox("demo")
	w.run(w.agent("demo"), "echo ready")
	tab := newTab(browser, b, 1200, 760)
	tab.open(w.link(wire.RightDrive))
	tab.until("the list", `document.querySelectorAll("#list .row").length === 1`)

	b.Run("paint", func(b *testing.B) {
		var first, list []float64
		for b.Loop() {
			tab.open("about:blank")
			tab.open("http://" + w.addr + "/")
			tab.until("the list", `document.querySelectorAll("#list .row").length === 1`)
			list = append(list, valueOf[float64](
				tab, `new Promise((done) => requestAnimationFrame(() => done(performance.now())))`))
			tab.until("the browser has noted it",
				`performance.getEntriesByName("first-contentful-paint").length === 1`)
			first = append(first, valueOf[float64](
				tab, `performance.getEntriesByName("first-contentful-paint")[0].startTime`))
		}
		b.ReportMetric(median(first), "first-ms")
		b.ReportMetric(median(list), "list-ms")
		b.ReportMetric(0, "ns/op")
	})
	b.Run("key", func(b *testing.B) {
		tab.click(".row")
		tab.click("#take")
		tab.sees("you: typing")
		tab.types("cat >/dev/null\r")
		valueOf[bool](tab, `(() => {
			window.waits = []; let pressed = 0, shown = 0;
			const count = () => [...document.querySelectorAll(".xterm-rows > div")].map((d) => d.textContent).join("").split("§").length - 1;
			addEventListener("keydown", () => { pressed = performance.now(); shown = count(); }, true);
			new MutationObserver(() => { if (pressed && count() > shown) { window.waits.push(performance.now() - pressed); pressed = 0; } })
				.observe(document.querySelector(".xterm-rows"), { subtree: true, childList: true, characterData: true });
			return true })()`)
		var waits []float64
		for b.Loop() {
			tab.types("§")
			tab.until("a key press", `window.waits.length > 0`)
			waits = append(waits, valueOf[float64](tab, `window.waits.shift()`))
			if len(waits)%60 == 0 {
				tab.types("\r")
			}
		}
		slices.Sort(waits)
		b.ReportMetric(median(waits), "median-ms")
		b.ReportMetric(waits[len(waits)*95/100], "p95-ms")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkFleet has 50 sessions that print twice a second. It measures what showing pictures of
// all of them costs the daemon, the browser's memory for them, and the time from a question to its
// row.
func BenchmarkFleet(b *testing.B) {
	const sessions, span = 50, 10 * time.Second
	browser := newBrowser(b)
	w := newWorld(b)
	var begun sync.WaitGroup
	for i := range sessions {
		name := fmt.Sprintf("agent-%d", i)
		w.sandbox(name)
		a := w.agent(name)
		begun.Go(func() {
			if _, err := a.Request(b.Context(), wire.Request{Verb: wire.VerbRun, TimeoutMS: 10_000,
				Text: "seq 30; while :; do date +%N; sleep 0.5; done"}); err != nil {
				b.Error(err)
			}
		})
	}
	begun.Wait()
	w.sandbox("asks")
	tab := newTab(browser, b, 1300, 800)
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	during := func() float64 {
		before := used()
		<-time.After(span)
		return float64(used()-before) / float64(span) * 100
	}
	tab.open(w.link(wire.RightDrive))
	tab.until("the pictures",
		fmt.Sprintf(`document.querySelectorAll(".card").length > %d`, sessions))
	b.Run("pictures", func(b *testing.B) {
		tab.open("about:blank")
		without := during()
		tab.open("http://" + w.addr + "/")
		tab.until("the pictures", fmt.Sprintf(
			`[...document.querySelectorAll(".card pre")].filter((p) => p.textContent).length > %d`, sessions-1))
		with := during()
		for b.Loop() {
			b.ReportMetric(with-without, "percent-core")
			b.ReportMetric(rendererMemory(browser, b), "page-MiB")
		}
		b.ReportMetric(0, "ns/op")
	})
	b.Run("need", func(b *testing.B) {
		a := w.agent("asks")
		var waits []float64
		for b.Loop() {
			began := time.Now()
			if _, err := a.Request(b.Context(), wire.Request{Verb: wire.VerbRun,
				Text: "read x"}); err != nil {
				b.Fatal(err)
			}
			tab.until("its row", `document.querySelector("#list .row.asks")`)
			waits = append(waits, float64(time.Since(began).Microseconds())/1000)
			_, err := a.Request(b.Context(), wire.Request{Verb: wire.VerbInterrupt})
			if err != nil {
				b.Fatal(err)
			}
			tab.until("it has gone", `!document.querySelector("#list .row.asks")`)
		}
		b.ReportMetric(median(waits), "need-ms")
		b.ReportMetric(0, "ns/op")
	})
}

// rendererMemory returns the memory of the largest process that shows a page, in MiB. What it
// shares with others counts in parts.
func rendererMemory(browser context.Context, b *testing.B) float64 {
	all, err := cdp.Call(browser, chromedp.FromContext(browser).Browser, systeminfo.GetProcessInfo,
		cdp.Empty{})
	if err != nil {
		b.Fatal(err)
	}
	pss := regexp.MustCompile(`(?m)^Pss: +(\d+) kB$`)
	var largest float64 // KiB
	for _, p := range all.ProcessInfo {
		if p.Type != "renderer" {
			continue
		}
		memory, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.ID))
		found := pss.FindSubmatch(memory)
		if found == nil {
			b.Fatalf("process %d: %v %s", p.ID, err, memory)
		}
		n, _ := strconv.ParseFloat(string(found[1]), 64)
		largest = max(largest, n)
	}
	return largest / 1024
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
