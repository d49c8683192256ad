package httpd

import (
	"fmt"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The page shows pictures of all screens while no session is open, and draws what changes. A click
// opens a session.
func TestPageGrid(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	for i := range 8 {
		name := fmt.Sprintf("agent-%d", i)
		w.sandbox(name)
		w.run(w.agent(name), fmt.Sprintf(`printf '\e[1mbuild %d\e[0m\n'; seq 20; echo '<b>bold</b>'`, i))
	}
	b := newTab(browser, t, 1300, 800)
	b.open(w.link(wire.RightDrive))
	picture := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll(".card")].find((c) => c.querySelector(".title").textContent === %q)?.querySelector("pre").textContent`, name)
	}
	for i := range 8 {
		name := fmt.Sprintf("agent-%d", i)
		b.until("the picture of "+name, picture(name)+fmt.Sprintf(
			`?.includes("build %d\n1\n") && `, i)+picture(name)+`.includes("<b>bold</b>")`)
	}
	b.until("all of a screen", `[...document.querySelectorAll(".card")].every((c) => {
		const [pre, frame] = [c.querySelector("pre"), c.querySelector(".picture")].map((e) => e.getBoundingClientRect());
		return pre.width > frame.width / 3 && pre.width <= frame.width + 1 && pre.height <= frame.height + 1;
	})`)
	b.shoot("grid")
	w.run(w.agent("agent-3"), "clear; echo changed")
	b.until("the change", picture("agent-3")+`.includes("changed") && !`+picture("agent-3")+
		`.includes("build")`)
	alice := gateway.Principal{Name: "alice", Kind: wire.Person}
	if _, err := w.hub.Remove(t.Context(), alice, "agent-4"); err != nil {
		t.Fatal(err)
	}
	b.until("7 pictures", `document.querySelectorAll(".card").length === 7`)
	b.click(".card")
	b.until("the session", `document.querySelector("#keyboard").checkVisibility() && !document.querySelector("#grid").checkVisibility()`)
	b.click("#leave")
	b.until("the pictures again", picture("agent-3")+`?.includes("changed")`)
	b.likes("dark")
	b.shoot("grid-dark")
	b.fine()

	phone := newTab(browser, t, 390, 700)
	phone.open(w.link(wire.RightDrive))
	phone.until("the list", `document.querySelectorAll("#list .row").length === 7`)
	phone.until("no pictures", `!document.querySelector("#grid").checkVisibility()`)
	phone.fine()
}
