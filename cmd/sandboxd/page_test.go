package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An agent installs something and apt asks. A person sees that on the page, takes the keyboard, answers and gives it back; a restart of the
// daemon costs them a moment. All of it is real: engine, apt, daemon and browser.
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
	m.lobby("new web --network none")
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s, err := ask(m.ctx(), c, "run -n web -- apt-get remove less"); err != nil || s.code != wire.ExitWaiting {
		t.Fatalf("%v, %+v", err, s)
	}

	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(chromium)}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses to have one as root
	}
	browser, cancel := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(options...))
	t.Cleanup(cancel)
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1000, 440, chromedp.EmulateScale(1))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(browser, patience)
	t.Cleanup(cancel)
	do := func(a chromedp.Action[chromedp.Void]) {
		t.Helper()
		if _, err := chromedp.Run(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
	until := func(condition string) {
		t.Helper()
		do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`new Promise((done) => { const look = () => (%s) ? done() : setTimeout(look, 10); look() })`, condition), chromedp.EvalAwaitPromise))
	}
	shows := func(text string) {
		t.Helper()
		until(fmt.Sprintf(`[...document.querySelectorAll(".xterm-rows > div")].map((d) => d.textContent).join("\n").replaceAll("\u00a0", " ").includes(%q)`, text))
	}
	shoot := func(name string) {
		t.Helper()
		if dir := os.Getenv("SANDBOXD_TEST_PICTURES"); dir != "" {
			png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}

	do(chromedp.Navigate(strings.TrimSpace(m.lobby("page"))))
	until(`document.querySelector(".row.asks .last")?.textContent.includes("Do you want to continue? [Y/n]")`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".row.asks").click()`))
	shows("Do you want to continue? [Y/n]")
	until(`document.querySelector("#typing").textContent.startsWith("agent:")`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#take").click()`))
	until(`document.querySelector("#typing").textContent === "You type"`)
	shows("you: typing")
	shoot("apt")
	do(chromedp.Evaluate[chromedp.Void](`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "y", keyCode: 89, bubbles: true, cancelable: true }))`))
	shows("[Y/n] y")
	do(chromedp.Evaluate[chromedp.Void](`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 13, bubbles: true, cancelable: true }))`))
	shows("Removing less")
	until(`document.querySelector(".row .badge").textContent === "prompt"`)
	do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#give").click()`))
	until(`document.querySelector("#typing").textContent !== "You type"`)
	if s, err := ask(m.ctx(), c, "run -n web -- command -v less"); err != nil || s.code != 1 {
		t.Errorf("after the answer: %v, %+v", err, s)
	}

	// The daemon is restarted: the page finds it, and the session, again.
	at := strings.TrimPrefix(*m.at.HTTP, "http://")
	c.Close()
	m.end(syscall.SIGTERM)
	until(`!document.querySelector("#problem").hidden`)
	m.start("--http", at)
	until(`document.querySelector("#problem").hidden && document.querySelector("#keyboard").checkVisibility()`)
	m.lobby("run -n web -- echo still here")
	shows("still here")
}
