package httpd

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// axeFile is axe-core, which scripts/setup test installs.
const axeFile = "../../sandbox/session/screen/testdata/xterm/node_modules/axe-core/axe.min.js"

// accessible reports what axe-core says is a serious or critical fault of what the page shows
// (https://github.com/dequelabs/axe-core/blob/develop/doc/API.md, WCAG 2.2 A and AA).
func (b *tab) accessible(axe, view string) {
	b.t.Helper()
	if !valueOf[bool](b, `typeof axe === "object"`) {
		valueOf[bool](b, axe+"\n;true")
	}
	// The terminal draws the colours of a new scheme in a later frame.
	text := valueOf[string](b, `(async () => { for (let i = 0; i < 5; i++) await new Promise(requestAnimationFrame) })().then(() => axe.run(document, { preload: false, resultTypes: ["violations"],
		runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }).then((r) => JSON.stringify(
		r.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id + ": " + v.nodes.map((n) => n.html + " " + n.failureSummary).join(" | ")))))`)
	var faults []string
	if err := json.Unmarshal([]byte(text), &faults); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range faults {
		b.t.Errorf("%s: %s", view, f[:min(len(f), 500)])
	}
}

// No view has a serious fault for people who use a screen reader, the keyboard alone, or need
// contrast: in light and dark, on a desktop and a phone.
func TestPageAccessible(t *testing.T) {
	browser := newBrowser(t)
	text, err := os.ReadFile(axeFile)
	if err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("no axe-core: run scripts/setup test")
		}
		t.Skip("no axe-core: run scripts/setup test")
	}
	axe := string(text)
	w := newWorld(t)
	for _, name := range []string{"demo", "asks", "idle"} {
		w.sandbox(name)
	}
	w.run(w.agent("demo"), "printf 'one \\e[31mred\\e[0m\\n'")
	if _, err := w.agent("asks").Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: "read -p 'Continue? [y/n] ' a"}); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.Stop(t.Context(), aliceAgent, "idle"); err != nil {
		t.Fatal(err)
	}
	dir := repo(t)
	put(t, dir, "a", "one\n2\n")
	for _, width := range []int64{1200, 390} {
		b := newTab(browser, t, width, 800, chromedp.EmulateScale(1))
		b.open("http://" + w.addr + "/")
		b.until("the login", `document.querySelector("#token").checkVisibility()`)
		b.accessible(axe, fmt.Sprint(width, " login"))
		b.open(w.link(wire.RightDrive))
		b.until("the list", `document.querySelectorAll("#list .row").length === 3`)
		if width > 700 {
			b.until("pictures", `[...document.querySelectorAll(".card pre")].some((p) => p.textContent.includes("red"))`)
		}
		views := []struct{ name, open, ready string }{
			{"list", `location.hash = ""`, `document.querySelector(".answer:not([hidden])")`},
			{"a new sandbox", `document.querySelector("#make").click()`,
				`document.querySelector("#new").checkVisibility()`},
			{"session", `document.querySelector("#make").click(), location.hash = "demo"`,
				`document.querySelector("#keyboard").checkVisibility() && document.querySelector(".xterm-rows").textContent.includes("red")`},
			{"share", `document.querySelector("#share").click()`,
				`document.querySelector("#link").checkVisibility()`},
			{"remove", `document.querySelector("#remove").click()`,
				`document.querySelector("#surely").checkVisibility()`},
			{"records", `location.hash = "demo/records"`,
				`document.querySelector("#records .row")`},
			{"replay", `document.querySelector("#records .row").click()`,
				`document.querySelector("#player").checkVisibility()`},
			{"files", fmt.Sprintf(`location.hash = "demo/files" + encodeURIComponent(%q)`, dir),
				`document.querySelectorAll("#entries .row").length > 1`},
			{"a file", `[...document.querySelectorAll("#entries .row")].at(-1).click()`,
				`document.querySelector("#preview pre")`},
			{"changes", `document.querySelector("#changes").click()`,
				`document.querySelector("#preview .added")`},
			{"ports", `location.hash = "demo/ports"`,
				`document.querySelector("#ports").checkVisibility()`},
			{"stopped", `location.hash = "idle"`,
				`document.querySelector("#stopped").checkVisibility()`},
		}
		for _, v := range views {
			valueOf[bool](b, v.open+", true")
			b.until(v.name, v.ready)
			for _, scheme := range []string{"light", "dark"} {
				b.likes(scheme)
				b.accessible(axe, fmt.Sprint(width, " ", scheme, " ", v.name))
			}
			b.shoot(fmt.Sprintf("axe-%d-%s", width, strings.ReplaceAll(v.name, " ", "-")))
		}
		b.fine()
	}
}
