package httpd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A person answers two questions, makes, stops, starts and removes sandboxes from the list. Looking
// at a stopped one does not start it.
func TestPageFleet(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	// The first to ask is the first of the list, until it is answered.
	for _, box := range [][2]string{
		{"login", "read -sp 'Password: ' a; echo \"login got <$a>\""},
		{"apt", "read -p 'Do you want to continue? [Y/n] ' a; echo \"apt got <$a>\""},
	} {
		w.sandbox(box[0])
		w.run(w.agent(box[0]), box[1])
	}
	b := newTab(browser, t, 1200, 760)
	b.open(w.link(wire.RightDrive))
	row := func(name string) string {
		return fmt.Sprintf(`document.querySelector('[data-row="%s~main"]')`, name)
	}
	b.until("both ask", `document.querySelectorAll(".answer:not([hidden])").length === 2`)
	b.shoot("answer")
	b.until("a question for a password hides what is typed",
		row("login")+`.parentElement.querySelector("input").type === "password"`)
	valueOf[bool](b, row("login")+`.parentElement.querySelector("input").focus(), true`)
	b.types("hunter2\r")
	b.until("it was typed", row("login")+`.textContent.includes("login got <hunter2>") || `+
		row("login")+`.parentElement.querySelector(".answer").hidden`)
	b.until("the row has the focus", `document.activeElement === `+row("login"))
	valueOf[bool](b, `[...`+row("apt")+
		`.parentElement.querySelectorAll(".answer button")].find((b) => b.textContent === "y").click(), true`)
	b.until("nobody asks", `document.querySelectorAll(".answer:not([hidden])").length === 0`)
	// A question ends when an answer is typed, before it is printed.
	for name, want := range map[string]string{"apt": "apt got <y>",
		"login": "login got <hunter2>"} {
		a := w.agent(name)
		if _, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbWait,
			For: []wire.Phase{wire.PhasePrompt}, TimeoutMS: 60_000}); err != nil {
			t.Fatal(err)
		}
		got, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
		if err != nil || got.Screen == nil || !strings.Contains(got.Screen.Text, want) {
			t.Errorf("%s: %+v, %v", name, got.Screen, err)
		}
	}

	b.click("#make")
	b.types("fresh")
	b.shoot("new")
	b.types("\r")
	b.until("it is open", `document.querySelector("#name").textContent === "fresh"`)
	b.until("its terminal", `document.querySelector("#keyboard").checkVisibility()`)
	b.click("#make")
	b.types("fresh\r")
	b.until("the name is taken", `document.querySelector("#new-said").textContent.includes("fresh")`)
	b.click("#make")

	b.click("#stop")
	b.click("#really")
	b.until("it is stopped", row("fresh")+`.textContent.includes("stopped")`)
	b.click("#tab-records")
	b.click("#tab-live")
	b.until("it says so", `document.querySelector("#stopped").checkVisibility()`)
	b.until("its records", `document.querySelectorAll("#records .row").length === 1`)
	b.shoot("stopped")
	if info, err := w.hub.Get(t.Context(), aliceAgent, "fresh"); err != nil ||
		info.State != "stopped" {
		t.Errorf("after a look: %v, %v", info.State, err)
	}
	b.click("#wake")
	b.until("its terminal again", `document.querySelector("#keyboard").checkVisibility()`)
	b.until("its row is marked", row("fresh")+`.getAttribute("aria-current") === "true"`)
	b.click("#remove")
	b.click("#spare")
	b.click("#remove")
	b.shoot("remove")
	b.click("#really")
	b.until("it is gone", `!`+row("fresh")+` && document.querySelector("#work").hidden`)
	b.until("a row has the focus", `document.activeElement.classList.contains("row")`)
	valueOf[bool](b, `document.querySelector("#new").reset(), true`)
	for _, name := range []string{"box", "box-2"} { // without a name
		b.click("#make")
		b.types("\r")
		b.until("it is open", `document.querySelector("#name").textContent === "`+name+`"`)
	}
	b.fine()
}

// A click on a row that has just come under the pointer does nothing, and what was written for one
// question is not the answer to another.
func TestPageMovesRows(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	ask := func(name, question string) *attach.Attachment {
		w.sandbox(name)
		a := w.agent(name)
		w.run(a, "read -p '"+question+" [y/N] ' a; read -p 'second [y/N] ' b; "+
			"read -p 'third [y/N] ' c; echo $a,$b")
		return a
	}
	one := ask("one", "first")
	ask("two", "other")
	b := newTab(browser, t, 1200, 760)
	b.open(w.link(wire.RightDrive))
	const asking = `[...document.querySelectorAll(".answer:not([hidden])")]`
	b.until("both ask", asking+`.length === 2`)
	// One asks its second question, and goes below the other: a click at the same place follows at
	// once.
	valueOf[bool](b, `window.place = document.querySelector('[data-row="one~main"]')`+
		`.parentElement.querySelectorAll(".answer button")[1].getBoundingClientRect(), `+
		`window.opened = 0, addEventListener("hashchange", () => opened++), true`)
	valueOf[bool](b, `new Promise((done) => { const list = document.querySelector("#list"); `+
		`new MutationObserver((_, o) => { o.disconnect(); document.elementFromPoint(`+
		`place.x + 5, place.y + 5).dispatchEvent(new MouseEvent("click", `+
		`{ bubbles: true, cancelable: true, detail: 1 })); done(true) })`+
		`.observe(list, { childList: true }); `+
		`document.elementFromPoint(place.x + 5, place.y + 5).click() })`)
	b.until("one asks its second question", `((row) => row.textContent.includes("second") && `+
		`!row.nextSibling.hidden)(document.querySelector('[data-row="one~main"]'))`)
	field := `document.querySelector('[data-row="one~main"]').parentElement.querySelector("input")`
	valueOf[bool](b, field+`.focus(), true`)
	b.types("half")
	b.until("half an answer is in the field", field+`.value === "half"`)
	if _, err := one.Request(t.Context(),
		wire.Request{Verb: wire.VerbType, Text: "n"}); err != nil {
		t.Fatal(err)
	}
	b.until("one asks its third question, and the field is empty",
		`document.querySelector('[data-row="one~main"]').parentElement.querySelector("p").textContent`+
			`.endsWith("not sent: half") && `+field+`.value === ""`)
	if ok := valueOf[bool](b, `!opened && document.querySelector('[data-row="two~main"]')`+
		`.textContent.includes("other")`); !ok {
		t.Error("the second click answered a question, or opened a session")
	}
	b.fine()
}

// The filter shows the rows that have all its words, such as those of a group of agents. What needs
// a person is counted all the same.
func TestPageFilter(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	for _, name := range []string{"fix-1", "fix-2", "web", "db", "docs"} {
		w.sandbox(name)
	}
	b := newTab(browser, t, 1200, 760)
	b.open(w.link(wire.RightDrive))
	rows := func(want string) {
		t.Helper()
		b.until("rows "+want,
			`[...document.querySelectorAll("#list .row")].map((r) => r.dataset.row.split("~")[0]).join() === "`+want+`"`)
	}
	rows("db,docs,fix-1,fix-2,web")
	b.until("few rows need no filter", `!document.querySelector("#filter").checkVisibility()`)
	w.sandbox("asks")
	w.run(w.agent("asks"), "read -p 'Delete it? ' a")
	rows("asks,db,docs,fix-1,fix-2,web")
	valueOf[bool](b, `document.querySelector('[data-row="db~main"]').focus(), true`)
	b.types("/FIX run")
	rows("fix-1,fix-2")
	b.until("what needs a person is counted",
		`document.querySelector("#summary").textContent === "1 needs you"`)
	b.until("pictures follow", `document.querySelectorAll("#grid .card").length <= 2`)
	b.shoot("filter")
	b.types("\r")
	b.until("a row has the focus", `document.activeElement.dataset.row === "fix-1~main"`)
	valueOf[bool](b, `document.activeElement.blur(), true`) // the key works wherever one is
	b.types("/")
	valueOf[bool](b, `document.querySelector("#filter").select(), true`)
	b.types("<b>")
	rows("")
	b.types(kb.Escape)
	rows("asks,db,docs,fix-1,fix-2,web")
	b.until("the list has the focus", `document.activeElement.dataset.row === "asks~main"`)
	b.fine()
}

// An answer that is no line, comes too late, or from a party that may not type, types nothing.
func TestAnswers(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	ask := func() attention.Need {
		t.Helper()
		w.run(agent, "read -p 'name? ' name; echo \"<$name>\"")
		all, err := w.hub.Sessions.Attention(t.Context(), aliceAgent, "demo")
		if err != nil || len(all) != 1 || all[0].Needs != attention.Answer {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	sendTo := func(s session, text, question string, since time.Time) answer {
		body, err := json.Marshal(map[string]any{"text": text, "since": since,
			"last_line": question})
		if err != nil {
			t.Fatal(err)
		}
		return w.pageCall(s, "POST", "/page/answer/demo/main", string(body))
	}
	send := func(s session, text string, since time.Time) answer {
		return sendTo(s, text, "name?", since)
	}
	alice, watcher := w.login(wire.RightDrive), w.login(wire.RightWatch)
	first := ask()
	for name, c := range map[string]struct {
		by    session
		text  string
		since time.Time
		want  string
	}{
		"two lines":        {alice, "a\nrm -rf ~", first.Since, "one line"},
		"a control key":    {alice, "\x03", first.Since, "one line"},
		"long":             {alice, strings.Repeat("x", 1025), first.Since, "1024 bytes"},
		"another question": {alice, "x", first.Since.Add(-time.Second), "nothing was typed"},
		"a watcher":        {watcher, "x", first.Since, "may only watch"},
	} {
		if got := send(c.by, c.text, c.since); got.status < 400 ||
			!strings.Contains(got.body, c.want) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := sendTo(alice, "x", "age?", first.Since); !strings.Contains(got.body,
		"nothing was typed") {
		t.Errorf("another question of the same time: %d %s", got.status, got.body)
	}
	if got := send(alice, "Ada", first.Since); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := send(alice, "again", first.Since); got.status < 400 {
		t.Errorf("the question was answered before: %d", got.status)
	}
	if l := agent.Live(); l.Keyboard() == "person:alice" {
		t.Error("the keyboard was not given back")
	}

	// A person who has the keyboard keeps it.
	person, err := w.hub.Sessions.Join(t.Context(), gateway.Principal{Name: "alice",
		Kind: wire.Person, Rights: wire.RightDrive},
		wire.Target{Sandbox: "demo", Session: "main"}, attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	second := ask()
	if err := person.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := send(alice, "no", second.Since); !strings.Contains(got.body, "has the keyboard") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if !person.Holds() {
		t.Error("the person lost the keyboard")
	}
	look, err := agent.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
	if text := look.Screen.Text; err != nil || !strings.Contains(text, "<Ada>") ||
		strings.Contains(text, "again") || strings.Contains(text, "rm -rf") ||
		!strings.HasSuffix(strings.TrimSpace(text), "name?") {
		t.Errorf("%+v, %v", look.Screen, err)
	}
}
