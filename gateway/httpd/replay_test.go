package httpd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// worked writes a record of work into a sandbox: ten numbered lines a second, and a command every
// ten seconds.
func (w *world) worked(name, session string, span time.Duration) {
	w.t.Helper()
	info, err := w.hub.Get(w.t.Context(), aliceAgent, name)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := filepath.Join(w.records, info.ID, session)
	began := time.Now().Add(-2 * time.Hour).Truncate(time.Second)
	r, err := record.Create(dir, record.Options{Begun: began, Cols: 80, Rows: 24, Quota: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		w.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(dir, record.LogFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	events, err := os.OpenFile(filepath.Join(dir, record.EventsFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer events.Close()
	out, marks := bufio.NewWriter(log), bufio.NewWriter(events)
	at := 0
	for i := 1; i <= int(span/(100*time.Millisecond)); i++ {
		now := began.Add(time.Duration(i) * 100 * time.Millisecond).UnixMilli()
		if i%100 == 1 {
			fmt.Fprintf(
				marks, `{"seq":0,"kind":"begun","offset":%d,"time_unix_ms":%d,"by":"agent:alice"}`+
					"\n", at, now)
		}
		n, _ := fmt.Fprintf(out, "\x1b[3%dmpiece %d\x1b[m of %s\r\n", i%7+1, i,
			strings.Repeat("work ", 40))
		at += n
		fmt.Fprintf(marks, `{"seq":0,"kind":"output","offset":%d,"time_unix_ms":%d}`+"\n", at, now)
		if i%100 == 0 {
			fmt.Fprintf(
				marks, `{"seq":0,"kind":"over","offset":%d,"time_unix_ms":%d,"exit_code":0}`+"\n",
				at, now)
			fmt.Fprintf(
				marks,
				`{"seq":0,"kind":"state","offset":%d,"time_unix_ms":%d,"state":{"phase":"prompt","basis":[]}}`+"\n", at, now)
		}
	}
	if err := errors.Join(out.Flush(), marks.Flush()); err != nil {
		w.t.Fatal(err)
	}
}

// Records are listed and played, with pauses, jumps and speeds. A jump in an hour's record takes
// less than a second.
func TestPageReplays(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"), "echo something to see again")
	w.worked("demo", "work", time.Hour)
	w.worked("demo", "short", 5*time.Minute)

	b := newTab(browser, t, 1200, 700)
	b.open(w.link(wire.RightDrive))
	b.click(`[data-row="demo~main"]`)
	b.click("#tab-records")
	b.until("all are listed", `document.querySelectorAll("#records .row").length === 3`)
	b.until("with how long they are",
		`[...document.querySelectorAll("#records .row")].some((r) => r.textContent.includes("work") && r.textContent.includes("1:00:00"))`)
	b.shoot("records")

	valueOf[bool](
		b,
		`[...document.querySelectorAll("#records .row")].find((r) => r.textContent.includes("work")).click(), true`)
	b.sees("piece 1 ")
	b.until("it plays", `Number(document.querySelector("#seek").value) > 0`)
	b.click("#play")
	b.until("it stands still", `document.querySelector("#play").textContent === "Play"`)
	jump := func(ms int) {
		t.Helper()
		valueOf[bool](
			b,
			fmt.Sprintf(
				`(() => { const s = document.querySelector("#seek"); s.value = %d; s.dispatchEvent(new Event("input")); s.dispatchEvent(new Event("change")); return true })()`, ms))
	}
	jump(3_599_900) // the first jump builds the index for the others
	b.sees("piece 35999 ")
	for _, to := range []int{1_800_000, 100, 3_000_000, 60_000} {
		began := time.Now()
		jump(to)
		b.sees(fmt.Sprintf("piece %d ", to/100))
		took := time.Since(began)
		t.Logf("a jump to %v of an hour: %v", time.Duration(to)*time.Millisecond,
			took.Round(time.Millisecond))
		if took > 5*time.Second {
			t.Errorf("a jump to %d took %v", to, took)
		}
	}
	jump(60_000)
	b.until("the clock", `document.querySelector("#clock").textContent.startsWith("1:00 /")`)
	b.click("#after")
	b.until("at the next command",
		`document.querySelector("#clock").textContent.startsWith("1:10 /")`)
	b.types("]")
	b.until("the keys do the same",
		`document.querySelector("#clock").textContent.startsWith("1:20 /") && Number(document.querySelector("#seek").value) >= 80000`)
	valueOf[bool](
		b,
		`(() => { const s = document.querySelector("#speed"); s.value = "64"; s.dispatchEvent(new Event("change")); return true })()`)
	b.types(" ")
	b.until("it plays fast", `Number(document.querySelector("#seek").value) > 100000`)
	jump(3_599_500)
	b.until("at the end it waits",
		`document.querySelector("#play").textContent === "Play" && Number(document.querySelector("#seek").value) === 3600000`)
	b.types("q")
	b.until("it goes back to the list",
		`document.querySelector("#records").checkVisibility() && document.querySelectorAll("#records .row").length === 3`)

	valueOf[bool](
		b,
		`[...document.querySelectorAll("#records .row")].find((r) => r.textContent.includes("short")).click(), true`)
	b.sees("piece 1 ")
	find := func(text, found string) {
		t.Helper()
		b.click("#sought")
		valueOf[bool](b, `document.querySelector("#sought").select(), true`)
		b.types(text + "\r")
		b.until(found, fmt.Sprintf(`document.querySelector("#found").textContent === %q`, found))
	}
	find("PIECE 2000 of", "1 of 1")
	b.sees("piece 2000 ")
	find("250 of", "3 of 3") // 250, 1250, and, from there on, 2250
	b.sees("piece 2250 ")
	b.shoot("find")
	b.types("\r")
	b.until("the next", `document.querySelector("#found").textContent === "1 of 3"`)
	find("no such text", "not found")
	b.types(kb.Escape) // the keys are the player's again
	b.types("q")
	b.until("the list",
		`document.querySelector("#records").checkVisibility() && document.querySelectorAll("#records .row").length === 3`)

	valueOf[bool](
		b,
		`[...document.querySelectorAll("#records .row")].find((r) => r.textContent.includes("main")).click(), true`)
	b.sees("something to see again")
	b.click("#tab-live")
	b.until("live again", `document.querySelector("#keyboard").checkVisibility()`)
	b.fine()
}
