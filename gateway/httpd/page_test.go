package httpd

import (
	"bytes"
	"context"
	"image/png"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var aliceAgent = gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}

func (w *world) sandbox(name string) {
	w.t.Helper()
	if _, err := w.hub.Create(w.t.Context(), aliceAgent, lifecycle.NewSpec{Name: name},
		nil); err != nil {
		w.t.Fatal(err)
	}
}

// agent joins a session as a program of alice's.
func (w *world) agent(name string) *attach.Attachment {
	w.t.Helper()
	a, err := w.hub.Sessions.Shared(w.t.Context(), aliceAgent,
		wire.Target{Sandbox: name, Session: "main"}, attach.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// run runs a command as an agent does, until it ends or waits.
func (w *world) run(a *attach.Attachment, command string) wire.Result {
	w.t.Helper()
	got, err := a.Request(w.t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: 20000})
	if err != nil {
		w.t.Fatal(err)
	}
	return *got.Result
}

// parties returns the people and programs in session main.
func (w *world) parties(name string) []wire.Party {
	w.t.Helper()
	all, err := w.hub.Sessions.List(w.t.Context(), aliceAgent, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return all[0].Parties
}

// A person logs in by a link, sees which session asks, watches, takes the keyboard from the agent,
// answers, gives it back and leaves.
func TestPage(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	w.run(
		agent,
		"echo '\x1b[32mfrom the agent\x1b[0m'; read -p 'Do you want to continue? [Y/n] ' answer; "+
			"echo \"got <$answer>\"")

	b := newTab(browser, t, 1200, 760)
	b.likes("dark")
	b.open(w.link(wire.RightDrive))
	b.until("the list has what asks",
		`document.querySelector(".row.asks .last")?.textContent.includes("Do you want to continue?")`)
	b.until("the address has no code", `location.href.endsWith("/")`)
	b.shoot("list")
	b.click(".row")
	b.sees("from the agent")
	b.sees("Do you want to continue? [Y/n]")
	b.until("the holder is shown",
		`document.querySelector("#typing").textContent === "agent:alice types"`)
	b.shoot("watch")
	b.click("#take")
	b.until("the person has the keyboard",
		`document.querySelector("#typing").textContent === "You type"`)
	b.types("y\r")
	b.sees("got <y>")
	b.shoot("taken")
	const ground = `getComputedStyle(document.querySelector(".xterm-scrollable-element") ?? document.querySelector(".xterm-viewport")).backgroundColor`
	dark := valueOf[string](b, ground)
	b.likes("light")
	b.until("the terminal becomes light with the page", ground+` !== "`+dark+`"`)
	b.click("#give")
	b.until("the keyboard was given back",
		`document.querySelector("#typing").textContent !== "You type"`)
	b.click("#leave")
	b.until("the list", `document.querySelector("#work").hidden`)
	b.fine()
}

// Everything works by keyboard alone, from the login on.
func TestPageByKeys(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	for _, name := range []string{"aaa", "bbb", "ccc"} {
		w.sandbox(name)
	}
	agent := w.agent("bbb")
	secret, _ := w.token(token.Token{Principal: "alice", Kind: wire.Person})

	b := newTab(browser, t, 1000, 600)
	b.open("http://" + w.addr + "/")
	b.until("a token is asked for", `document.activeElement.id === "token"`)
	b.shoot("login")
	b.types("sbx_0123456789abcdef0123456789abcdef\r")
	b.until("a wrong one is refused",
		`document.querySelector("#login-problem").textContent.includes("unknown token")`)
	b.types(w.alice + "\r")
	b.until("a program's is refused",
		`document.querySelector("#login-problem").textContent.includes("belongs to a program")`)
	b.types(secret + "\r")
	b.until("the list", `document.querySelectorAll("#list .row").length === 3`)
	focused := `document.activeElement.dataset.row`
	b.until("the first row has the focus", focused+` === "aaa~main"`)
	b.types(kb.ArrowDown)
	b.until("the arrow goes down", focused+` === "bbb~main"`)
	b.types("\r")
	b.until("it shows the session",
		`document.querySelector("#name").textContent === "bbb" && document.activeElement.closest("#terminal")`)
	w.run(agent, "read -p 'name? ' name; echo \"hello $name\"")
	b.sees("name? ")
	b.types("x")
	b.sees("agent:alice holds the keyboard")
	b.prefix("t")
	b.sees("you: typing")
	b.types("Ada Lovelace\r")
	b.sees("hello Ada Lovelace")
	b.types("echo up; cat -v\r")
	b.types(kb.ArrowUp + kb.Escape + "\t")
	b.types("a", chromedp.ModifierAlt)
	b.types("\r")
	b.sees("^[[A^[")
	b.sees("^[a")
	b.types("c", chromedp.ModifierCtrl)
	b.prefix("p")
	b.until("private mode",
		`document.querySelector("#typing").textContent === "You type, and only you see it"`)
	b.prefix("p")
	b.until("end of private mode", `document.querySelector("#typing").textContent === "You type"`)
	b.prefix("g")
	b.until("the keyboard was given back",
		`document.querySelector("#typing").textContent !== "You type"`)
	b.prefix("d")
	b.until("the list has the focus again", `document.querySelector("#work").hidden && `+focused+
		` === "bbb~main"`)
	b.fine()
}

// A phone shows either the list or the session, as wide as the screen, and has buttons for missing
// keys.
func TestPageOnAPhone(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.sandbox("a-sandbox-whose-name-is-longer-than-any-telephone-is-wide")
	agent := w.agent("demo")
	w.run(
		agent,
		"for i in $(seq 40); do echo line $i of a text that is wider than the window of a "+
			"telephone, so that it is clipped; done; read answer")

	b := newTab(browser, t, 390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch)
	fits := func(what string) {
		t.Helper()
		if wide := valueOf[float64](
			b,
			`Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll("button, footer, #stage")].filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect().right))`); wide > 390.5 {
			t.Errorf("%s is %v wide", what, wide)
		}
	}
	b.open(w.link(wire.RightDrive))
	b.until("the list", `document.querySelectorAll("#list .row").length === 2`)
	fits("the list")
	b.shoot("phone-list")
	b.click(".row.asks")
	b.sees("line 40")
	b.until("the list has gone", `!document.querySelector("#side").checkVisibility()`)
	fits("the session")
	b.shoot("phone")
	b.click("#take")
	b.until("the person has the keyboard",
		`document.querySelector("#typing").textContent === "You type"`)
	fits("the session with the keyboard")
	b.click("[data-key=interrupt]")
	b.until("^C came", `document.querySelector("#typing").textContent === "You type"`)
	// Until the shell is back, an interrupt may send another ^C, which drops what was typed.
	b.until("the prompt", `/\^C\s+\S*[$#]/.test(`+terminalText+`.replaceAll("\u00a0", " "))`)
	b.types("stty size; cat -v\r")
	cols := valueOf[int](
		b, `new Promise((done) => { const look = () => { const m = /^\d+ (\d+)\s*$/m.exec(`+
			terminalText+
			`.replaceAll("\u00a0", " ")); m ? done(Number(m[1])) : setTimeout(look, 20) }; look() })`)
	if cols < 30 || cols > 80 {
		t.Errorf("the driver has %d columns", cols)
	}
	for _, key := range []string{"esc", "up", "left"} {
		b.click("[data-key=" + key + "]")
	}
	b.click("[data-key=ctrl]")
	b.types("a")
	b.click("[data-key=enter]")
	b.sees("^[^[[A^[[D^A")
	b.shoot("phone-driver")
	b.click("#tab-files")
	b.until("the files", `document.querySelector("#path").textContent`)
	fits("the files")
	b.shoot("phone-files")
	b.click("#remove")
	fits("the question before removing")
	b.click("#back")
	b.until("the list is back", `document.querySelector("#side").checkVisibility()`)
	b.click("#make")
	fits("the form for a new sandbox")
	b.shoot("phone-new")
	b.fine()
}

// A read-only user cannot type. A user who is not the owner asks for the keyboard. Sandboxes of
// others look missing.
func TestPageRoles(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.sandbox("secret")
	if err := w.hub.Share(t.Context(), aliceAgent, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	agent := w.agent("demo")
	if got := w.run(agent, "echo it works"); got.Ended != wire.Done {
		t.Fatalf("echo ended with %+v", got)
	}

	watcher := newTab(browser, t, 1000, 500)
	watcher.open(w.link(wire.RightWatch))
	watcher.click(`[data-row="demo~main"]`)
	watcher.sees("it works")
	if valueOf[bool](
		watcher,
		`["take", "give", "private"].some((id) => document.getElementById(id).checkVisibility())`) {
		t.Error("a read-only user has buttons to type with")
	}
	watcher.types("x")
	watcher.sees("you may only watch")

	owner := newTab(browser, t, 1000, 500)
	owner.open(w.link(wire.RightDrive))
	owner.click(`[data-row="demo~main"]`)
	owner.click("#take")
	owner.until("the person has the keyboard",
		`document.querySelector("#typing").textContent === "You type"`)

	guest := newTab(browser, t, 1000, 500)
	guest.open(w.linkOf("bob", wire.RightDrive))
	guest.until("only what is shared is listed", `document.querySelectorAll("#list .row").length === 1`)
	guest.click(".row")
	guest.until("the holder is shown",
		`document.querySelector("#typing").textContent === "person:alice types"`)
	guest.until("the keyboard can only be requested",
		`document.querySelector("#take").textContent === "Ask for the keyboard"`)
	guest.click("#take")
	owner.until("the owner is asked",
		`document.querySelector("#typing").textContent === "person:bob asks for the keyboard"`)
	owner.shoot("asked")
	owner.click("#keep")
	guest.sees("person:alice keeps the keyboard for now")
	guest.click("#take")
	owner.until("the owner is asked again",
		`document.querySelector("#typing").textContent === "person:bob asks for the keyboard"`)
	owner.click("#give")
	guest.until("the guest has the keyboard",
		`document.querySelector("#typing").textContent === "You type"`)
	guest.open("http://" + w.addr + "/#secret~main")
	guest.open("http://" + w.addr + "/#secret~main") // the first one only changed the fragment
	guest.until("a foreign sandbox looks missing",
		`document.querySelector("#problem").textContent.includes("no sandbox")`)

	if _, err := w.hub.Sessions.Disconnect(t.Context(), aliceAgent,
		wire.Target{Sandbox: "demo", Session: "main"}, "person:alice"); err != nil {
		t.Fatal(err)
	}
	owner.until("the disconnected person sees the reason",
		`document.querySelector("#problem").textContent.includes("the owner disconnected you")`)
	for _, b := range []*tab{watcher, owner, guest} {
		b.fine()
	}
}

// Revoking a login ends it at once, with its terminals.
func TestPageRevoked(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	b := newTab(browser, t, 1000, 500)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	b.sees("demo:~")
	var id string
	for _, tok := range w.tokens.List("alice") {
		if tok.Label == "page" {
			id = tok.ID
		}
	}
	began := time.Now()
	if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
		t.Fatal(err)
	}
	b.until("the page asks to log in",
		`document.querySelector("#login").checkVisibility() && document.querySelector("#login-problem").textContent.includes("ended")`)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("after %v", took)
	}
	if n := len(w.parties("demo")); n != 0 {
		t.Errorf("%d parties are left", n)
	}
	b.open("http://" + w.addr + "/")
	b.until("it still does", `document.querySelector("#login").checkVisibility()`)

	b.open(w.link(wire.RightDrive))
	b.click("#logout")
	b.until("logged out", `document.querySelector("#login").checkVisibility()`)
	for _, tok := range w.tokens.List("alice") {
		if tok.Label == "page" {
			t.Error("the token outlives the logout")
		}
	}
	b.fine()
}

// If part of the page does not load, the page says so and retries. The terminal module loads last.
func TestPageLoadedInParts(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	for part, late := range map[string]bool{"page": false, "daemon": false, "terminal": true,
		"xterm": true, "csp": true} {
		t.Run(part, func(t *testing.T) {
			b := newTab(browser, t, 1000, 500)
			block := func(all bool) {
				b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
					_, err := cdp.Call(ctx, target, network.SetBlockedURLs,
						network.SetBlockedURLsParams{URLPatterns: []*network.BlockPattern{
							{URLPattern: "*://*:*/*/" + part + ".mjs", Block: all},
						}})
					return chromedp.Void{}, err
				})
			}
			block(true)
			b.open(w.link(wire.RightDrive))
			if late {
				b.click(".row")
				b.until("the retry message",
					`document.querySelector("#problem").textContent.includes("trying again")`)
				block(false)
			} else {
				b.until("the retry message",
					`document.querySelector("#loading").checkVisibility({ visibilityProperty: true }) && document.querySelector("#loading").textContent.includes("trying again")`)
				block(false)
				b.click(".row")
			}
			b.sees("demo:~")
			if valueOf[bool](b, `document.querySelector("#loading").checkVisibility()`) {
				t.Error("it still says that it loads")
			}
			b.fine()
		})
	}
}

// After a restart of the daemon, each page continues where it was.
func TestPageAfterARestart(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.worked("demo", "work", time.Hour)
	agent := w.agent("demo")
	w.run(agent, "echo before it")
	live, replay := newTab(browser, t, 1000, 500), newTab(browser, t, 1000, 500)
	live.open(w.link(wire.RightDrive))
	live.click(".row")
	live.sees("before it")
	replay.open(w.link(wire.RightDrive))
	replay.click(".row")
	replay.click("#tab-records")
	replay.until("the record is listed", `document.querySelectorAll("#records .row").length === 2`)
	valueOf[bool](
		replay,
		`[...document.querySelectorAll("#records .row")].find((r) => r.textContent.includes("work")).click(), true`)
	replay.click("#play")
	replay.until("it stands still", `document.querySelector("#play").textContent === "Play"`)
	valueOf[bool](
		replay,
		`(() => { const s = document.querySelector("#seek"); s.value = 1800000; s.dispatchEvent(new Event("input")); return true })()`)
	replay.sees("piece 18000 ")
	replay.until(
		"the position", `document.querySelector("#clock").textContent.startsWith("30:00 /")`)

	w.end()
	for _, b := range []*tab{live, replay} {
		b.until("the retry message",
			`document.querySelector("#problem").textContent.includes("trying again")`)
		b.until("the retry message of the list",
			`document.querySelector("#summary").textContent.includes("trying again")`)
	}
	w.serve()
	w.run(agent, "echo after it")
	live.sees("after it")
	live.until("the earlier state",
		`document.querySelector("#problem").hidden && document.querySelector("#keyboard").checkVisibility() && document.querySelector("#summary").textContent === "Nobody needs you"`)
	replay.sees("piece 18000 ")
	replay.until("it stands where it stood",
		`document.querySelector("#problem").hidden && document.querySelector("#play").textContent === "Play" && document.querySelector("#seek").value === "1800000"`)
	live.fine()
	replay.fine()
}

// The page shows names, titles and program output as text (A118).
func TestPageShowsText(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	const evil = `<img src=x onerror=alert(1)><script>alert(2)</script>`
	w.run(agent, "printf '\\033]2;"+evil+
		"\\007\\033]8;;javascript:alert(3)\\033\\\\link\\033]8;;\\033\\\\\\033]52;c;eA==\\007\\n'; read -p '"+evil+"' answer")
	b := newTab(browser, t, 1200, 500)
	b.open(w.link(wire.RightDrive))
	b.until("the list shows it as text",
		`document.querySelector(".row .last")?.textContent.includes("<img src=x onerror=alert(1)>")`)
	b.click(".row")
	b.sees("<img src=x onerror=alert(1)><script>alert(2)</script>")
	if n := valueOf[int](
		b, `document.querySelectorAll("img, script:not([src]), a, iframe").length`); n != 0 {
		t.Errorf("%d elements of it are in the document", n)
	}
	if title := valueOf[string](b, `document.title`); title != "(1) sandboxd" {
		t.Errorf("the title is %q", title)
	}
	b.open("http://" + w.addr + "/#" + url.QueryEscape(evil))
	b.fine()
}

// Underscores are drawn whole, at one device pixel a CSS pixel and in every size of the page's
// terminals.
func TestPageUnderscores(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"), `clear; printf '\n________\n\n'; read x`)
	for _, width := range []int64{390, 1200} {
		b := newTab(browser, t, width, 700)
		b.likes("light")
		b.open(w.link(wire.RightDrive))
		b.click(".row")
		b.sees("________")
		row := valueOf[map[string]float64](b, `(() => {
			const row = [...document.querySelectorAll(".xterm-rows > div")].find((d) => d.textContent.includes("________"));
			const { x, y, height } = row.getBoundingClientRect();
			return { x, y, height };
		})()`)
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(shot))
		if err != nil {
			t.Fatal(err)
		}
		darkest := uint32(0xffff)
		for y := int(row["y"]); y < int(row["y"]+row["height"]); y++ {
			_, green, _, _ := img.At(int(row["x"])+20, y).RGBA()
			darkest = min(darkest, green)
		}
		if darkest > 0xb000 { // half of a pixel, where white is 0xffff
			t.Errorf("at a width of %d the darkest pixel of an underscore is %#x, in a row of %v",
				width, darkest, row)
		}
		b.fine()
	}
}
