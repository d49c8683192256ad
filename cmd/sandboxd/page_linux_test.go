package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An agent installs a package and apt asks. A user sees that on the page, takes the keyboard,
// answers and gives it back. A restart of the daemon delays them for a moment. Engine, apt, daemon
// and browser are real.
func TestPageAnswersApt(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("no chromium: run scripts/setup test")
		}
		t.Skip("no chromium: run scripts/setup test")
	}
	m := newMachine(t)
	m.start("--http", "127.0.0.1:0")
	m.control("new web --network none")
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s, err := ask(m.ctx(), c, "run -n web -- apt-get remove less"); err != nil ||
		s.code != wire.ExitWaiting {
		t.Fatalf("%v, %+v", err, s)
	}

	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(chromium)}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses to have one as root
	}
	browser, cancel := chromedp.NewContext(context.Background(),
		chromedp.WithAllocatorOptions(options...))
	t.Cleanup(cancel)
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1000, 440,
		chromedp.EmulateScale(1))); err != nil {
		t.Fatal(err)
	}
	told := heardOf(browser, t)
	do := func(a chromedp.Action[chromedp.Void]) {
		t.Helper()
		// each step has its own timeout: the machine may be busy
		ctx, cancel := context.WithTimeout(browser, patience)
		defer cancel()
		if _, err := chromedp.Run(ctx, a); err != nil {
			t.Fatalf("%v\n%s", err, told())
		}
	}
	until := func(condition string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(browser, patience+10*time.Second)
		defer cancel()
		ok, err := chromedp.Run(ctx,
			chromedp.Evaluate[bool](
				fmt.Sprintf(
					`new Promise((done) => { const end = Date.now() + %d; const look = () => (%s) ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 10); look() })`,
					patience.Milliseconds(), condition), chromedp.EvalAwaitPromise))
		if err != nil || !ok {
			t.Fatalf("not so (%v): %s\n%s", err, condition, told())
		}
	}
	shows := func(text string) {
		t.Helper()
		until(fmt.Sprintf(
			`[...document.querySelectorAll(".xterm-rows > div")].map((d) => d.textContent).join("\n").replaceAll("\u00a0", " ").includes(%q)`, text))
	}
	shoot := func(name string) {
		t.Helper()
		if dir := os.Getenv("SANDBOXD_TEST_PICTURES"); dir != "" {
			png, err := chromedp.Run(browser, chromedp.CaptureScreenshot())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}

	do(chromedp.Navigate(strings.TrimSpace(m.control("page"))))
	until(
		`document.querySelector(".row.asks .last")?.textContent.includes("Do you want to continue? [Y/n]")`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".row.asks").click()`))
	shows("Do you want to continue? [Y/n]")
	until(`document.querySelector("#typing").textContent.startsWith("agent:")`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#take").click()`))
	until(`document.querySelector("#typing").textContent === "You type"`)
	shows("you: typing")
	shoot("apt")
	do(chromedp.Evaluate[chromedp.Void](
		`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "y", keyCode: 89, bubbles: true, cancelable: true }))`))
	shows("[Y/n] y")
	do(chromedp.Evaluate[chromedp.Void](
		`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 13, bubbles: true, cancelable: true }))`))
	shows("Removing less")
	until(`document.querySelector(".row .badge").textContent === "prompt"`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#give").click()`))
	until(`document.querySelector("#typing").textContent !== "You type"`)
	if s, err := ask(m.ctx(), c, "run -n web -- command -v less"); err != nil || s.code != 1 {
		t.Errorf("after the answer: %v, %+v", err, s)
	}

	// After a restart of the daemon, the page finds it and the session again.
	at := strings.TrimPrefix(*m.at.HTTP, "http://")
	c.Close()
	m.end(syscall.SIGTERM)
	until(`!document.querySelector("#problem").hidden`)
	m.start("--http", at)
	until(
		`document.querySelector("#problem").hidden && document.querySelector("#keyboard").checkVisibility()`)
	m.control("run -n web -- echo still here")
	shows("still here")
}

// heardOf records a page's console, failed requests and sockets. It returns a function that prints
// them with the content of the page.
func heardOf(browser context.Context, t *testing.T) func() string {
	t.Helper()
	var mu sync.Mutex
	var all []string
	began := time.Now()
	note := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Since(began).Round(time.Millisecond).String()+" "+fmt.Sprintf(format,
			a...))
	}
	if err := chromedp.Listen(browser, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			for _, a := range e.Args {
				note("console %s: %s %s", e.Type, a.Value, a.Description)
			}
		case *runtime.EventExceptionThrown:
			if e.ExceptionDetails.Exception != nil {
				note("exception: %s", e.ExceptionDetails.Exception.Description)
			}
		case *network.EventRequestWillBeSent:
			note("request %s: %s %s", e.RequestID, e.Request.Method, e.Request.URL)
		case *network.EventResponseReceived:
			note("request %s: %d", e.RequestID, e.Response.Status)
		case *network.EventLoadingFailed:
			note("request %s failed: %s %s", e.RequestID, e.ErrorText, e.BlockedReason)
		case *network.EventWebSocketCreated:
			note("socket %s: %s", e.RequestID, e.URL)
		case *network.EventWebSocketHandshakeResponseReceived:
			note("socket %s: %d", e.RequestID, e.Response.Status)
		case *network.EventWebSocketFrameError:
			note("socket %s failed: %s", e.RequestID, e.ErrorMessage)
		case *network.EventWebSocketClosed:
			note("socket %s is closed", e.RequestID)
		case *network.EventWebSocketFrameReceived:
			if e.Response.Opcode == 1 || e.Response.Opcode == 8 { // text, or a close
				note("socket %s: %.300s", e.RequestID, e.Response.PayloadData)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(browser, func(ctx context.Context,
		target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return chromedp.Void{}, err
	}); err != nil {
		t.Fatal(err)
	}
	return func() string {
		ctx, cancel := context.WithTimeout(browser, 10*time.Second)
		defer cancel()
		shown, err := chromedp.Run(ctx,
			chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
		if err != nil {
			shown = "does not say what it shows: " + err.Error()
		}
		mu.Lock()
		defer mu.Unlock()
		return "the page: " + shown + "\nthe browser:\n" +
			strings.Join(all[max(0, len(all)-100):], "\n")
	}
}
