package httpd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// patience is the timeout of a browser's steps.
const patience = 60 * time.Second

// newBrowser starts a real browser. It skips the test if there is none, unless the run forbids
// skips.
func newBrowser(t testing.TB) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is not for short tests")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("no chromium: run scripts/setup test")
		}
		t.Skip("no chromium: run scripts/setup test")
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path)}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // browsers have no sandbox as root
	}
	ctx, cancel := chromedp.NewContext(context.Background(),
		chromedp.WithAllocatorOptions(options...))
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// tab is a browser window with its own cookies.
type tab struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // chromedp identifies a tab by its context
}

// watcher records policy violations and script errors of each document.
const watcher = `window.wrong = [];
addEventListener("securitypolicyviolation", (e) => window.wrong.push("refused by policy: " + e.violatedDirective + " " + e.blockedURI + " " + e.sourceFile + ":" + e.lineNumber + " " + e.sample));
addEventListener("error", (e) => window.wrong.push("error: " + e.message));
addEventListener("unhandledrejection", (e) => window.wrong.push("rejection: " + e.reason));`

func newTab(browser context.Context, t testing.TB, width, height int64,
	o ...chromedp.EmulateViewportOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	// Creates the tab, which ends with the context of this call.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, height, o...))
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{}); err != nil {
			return chromedp.Void{}, err
		}
		_, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument,
			page.AddScriptToEvaluateOnNewDocumentParams{Source: watcher})
		return chromedp.Void{}, err
	})
	return b
}

func (b *tab) do(a chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, a); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// valueOf returns the value of a script.
func valueOf[T any](b *tab, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return v
}

// until waits in the page until a condition holds.
func (b *tab) until(what, condition string) {
	b.t.Helper()
	script := fmt.Sprintf(`new Promise((done) => { const end = Date.now() + %d; const look = () => { let ok = false; try { ok = !!(%s) } catch {}
		ok ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 5) }; look() })`, (patience - 2*time.Second).Milliseconds(), condition)
	if !valueOf[bool](b, script) {
		b.shoot(strings.ReplaceAll(b.t.Name(), "/", "-") + "-failed")
		b.t.Fatalf("not so: %s\nthe page:\n%s\nthe terminal:\n%s\nwrong: %v", what,
			valueOf[string](b, `document.body.innerText`), valueOf[string](b, terminalText),
			valueOf[[]string](b, `window.wrong`))
	}
}

const terminalText = `[...document.querySelectorAll(".xterm-rows > div")].map((d) => d.textContent).join("\n")`

// arrives is until after a navigation, during which scripts return nothing.
func (b *tab) arrives(what, condition string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](
			fmt.Sprintf("(() => { try { return !!(%s) } catch { return false } })()", condition)))
		cancel()
		if err == nil && ok {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("not so: %s (%v)", what, err)
		}
	}
}

// sees waits until the terminal shows a text.
func (b *tab) sees(text string) {
	b.t.Helper()
	b.until("the terminal shows "+text, fmt.Sprintf("(%s).replaceAll('\u00a0', ' ').includes(%q)",
		terminalText, text))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.until(selector+" is visible", fmt.Sprintf("document.querySelector(%q)?.checkVisibility()",
		selector))
	valueOf[bool](b, fmt.Sprintf("document.querySelector(%q).click(), true", selector))
}

// types sends key presses as a keyboard does. A page that handles the press suppresses the text,
// too.
func (b *tab) types(keys string, modifiers ...chromedp.Modifier) {
	b.t.Helper()
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for _, r := range keys {
			var press, release *input.DispatchKeyEventParams
			for _, e := range kb.Encode(r) {
				for _, m := range modifiers {
					e.Modifiers |= int64(m)
				}
				switch e.Type {
				case kb.KeyDown:
					press = e
				case kb.KeyUp:
					release = e
				case kb.KeyChar:
					if len(modifiers) == 0 {
						press.Text, press.UnmodifiedText = e.Text, e.UnmodifiedText
					}
				}
			}
			for _, e := range []*input.DispatchKeyEventParams{press, release} {
				if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, *e); err != nil {
					return chromedp.Void{}, err
				}
			}
		}
		return chromedp.Void{}, nil
	})
}

// prefix sends the prefix key and then key.
func (b *tab) prefix(key string) {
	b.t.Helper()
	b.types("]", chromedp.ModifierCtrl)
	b.types(key)
}

// fine checks that there were no policy violations and no script errors.
func (b *tab) fine() {
	b.t.Helper()
	if wrong := valueOf[[]string](b, `window.wrong`); len(wrong) > 0 {
		b.t.Errorf("in the page: %s", strings.Join(wrong, "\n"))
	}
}

// likes sets the preferred colour scheme: dark or light.
func (b *tab) likes(scheme string) {
	b.t.Helper()
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme},
				{Name: "prefers-reduced-motion", Value: "reduce"},
			}})
		return chromedp.Void{}, err
	})
}

// shoot saves a screenshot if SANDBOXD_TEST_PICTURES names a directory.
func (b *tab) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("SANDBOXD_TEST_PICTURES")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// link returns what sandboxd page prints.
func (w *world) link(rights wire.Rights) string { return w.linkOf("alice", rights) }

func (w *world) linkOf(principal string, rights wire.Rights) string {
	w.t.Helper()
	until := time.Now().Add(time.Hour)
	code, err := w.tokens.Code(token.Token{Principal: principal, Kind: wire.Person, Rights: rights,
		Label: "page", Expires: &until})
	if err != nil {
		w.t.Fatal(err)
	}
	return "http://" + w.addr + "/#code=" + code
}
