package httpd

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// swipe moves a finger from one point of the window to another.
func (b *tab) swipe(fromX, fromY, toX, toY float64) {
	b.t.Helper()
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		touch := func(kind input.DispatchTouchEventType, points ...*input.TouchPoint) error {
			_, err := cdp.Call(ctx, target, input.DispatchTouchEvent,
				input.DispatchTouchEventParams{Type: kind, TouchPoints: points})
			return err
		}
		const steps = 10
		err := touch(input.DispatchTouchEventTypeTouchStart, &input.TouchPoint{X: fromX, Y: fromY})
		for i := 1.0; i <= steps && err == nil; i++ {
			err = touch(input.DispatchTouchEventTypeTouchMove, &input.TouchPoint{
				X: fromX + (toX-fromX)*i/steps, Y: fromY + (toY-fromY)*i/steps})
		}
		if err == nil {
			err = touch(input.DispatchTouchEventTypeTouchEnd)
		}
		return chromedp.Void{}, err
	})
}

// A finger moves a terminal: down to earlier lines, and sideways to the rest of a wide screen.
func TestPageSwipes(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"),
		"for i in $(seq 200); do printf 'line %-110sEND\\n' $i; done; read answer")
	b := newTab(browser, t, 390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch)
	b.open(w.link(wire.RightDrive))
	b.click(".row.asks")
	b.sees("line 200")
	for range 12 {
		b.swipe(200, 250, 200, 600)
	}
	b.until("the first line", `/line 1\s/.test(`+terminalText+`)`)
	for range 12 {
		b.swipe(200, 600, 200, 250)
	}
	b.sees("line 200")
	b.swipe(350, 400, 30, 400)
	b.swipe(350, 400, 30, 400)
	b.sees("END")
	b.fine()
}

// A phone on its side shows the list or a session, as upright.
func TestPageOnItsSide(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	b := newTab(browser, t, 844, 390, chromedp.EmulateMobile, chromedp.EmulateTouch)
	b.open(w.link(wire.RightDrive))
	b.until("the list", `document.querySelector("#list .row")`)
	b.click("#list .row")
	b.sees("you: watching")
	b.until("the session alone", `!document.querySelector("#side").checkVisibility()`)
	b.until("its name", `document.querySelector("#name").getBoundingClientRect().width > 100`)
	b.shoot("phone-side")
	b.fine()
}

// Without a network the page says at once that what it shows is old, and goes on saying so. Then it
// shows the present state again, in the list and in the session.
func TestPageOffline(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	a := w.agent("demo")
	w.run(a, "read -p 'one? ' a")
	b := newTab(browser, t, 1200, 760)
	b.open(w.link(wire.RightDrive))
	b.click(".row.asks")
	b.sees("one?")
	offline := func(is bool) {
		b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
			// Any other rate stays as it is.
			_, err := cdp.Call(ctx, target,
				cdp.Command[network.OverrideNetworkStateParams, cdp.Empty]{
					Method: "Network.emulateNetworkConditions"},
				network.OverrideNetworkStateParams{Offline: is, DownloadThroughput: -1,
					UploadThroughput: -1})
			return chromedp.Void{}, err
		})
	}
	const says = `document.querySelector("#summary").textContent.startsWith("The daemon does not")`
	offline(true)
	b.until("the list says so", says)
	b.until("the session says so",
		`document.querySelector("#problem").textContent.includes("connection is lost")`)
	if kept := valueOf[bool](b, `(async () => { for (let i = 0; i < 25; i++) { `+
		`await new Promise((go) => setTimeout(go, 100)); if (!`+says+`) return false } `+
		`return true })()`); !kept {
		t.Error("the list no longer says so")
	}
	if _, err := a.Request(t.Context(),
		wire.Request{Verb: wire.VerbType, Text: "yes\n"}); err != nil {
		t.Fatal(err)
	}
	offline(false)
	b.until("the present state", `document.querySelector("#summary").textContent === "Nobody needs you"`)
	b.sees("yes")
	b.until("no problem", `document.querySelector("#problem").hidden`)
}
