package httpd

import (
	"slices"
	"testing"

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
	tab.until("the list", `document.querySelectorAll(".row").length === 1`)

	b.Run("paint", func(b *testing.B) {
		var first, list []float64
		for b.Loop() {
			tab.open("about:blank")
			tab.open("http://" + w.addr + "/")
			tab.until("the list", `document.querySelectorAll(".row").length === 1`)
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

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
