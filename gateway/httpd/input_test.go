package httpd

import (
	"context"
	"crypto/md5"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Paste, input methods and mouse reach the program as from any terminal, and only from the
// keyboard's holder.
func TestPageInput(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	w.run(agent, "echo ready")
	b := newTab(browser, t, 1000, 600)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	b.sees("ready")
	b.click("#take")
	b.sees("you: typing")
	b.types("printf '\\033[?2004h'; echo it reads; cat -v\r")
	b.sees("\nit reads")
	paste := func(text string) {
		t.Helper()
		valueOf[bool](b, fmt.Sprintf(`(() => { const d = new DataTransfer(); d.setData("text/plain", %q);
			document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: d, bubbles: true, cancelable: true })); return true })()`, text))
	}
	paste("pasted\x1d]t text")
	b.types("\r")
	// The program printed what the terminal echoed; before it runs, the shell may drop ^C.
	const printed = "the program printed what the terminal has echoed"
	b.until(printed, `(`+terminalText+`).split("^[[200~pasted").length > 2 && (`+terminalText+
		`).split("text^[[201~").length > 2`)

	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, target, input.ImeSetComposition,
			input.ImeSetCompositionParams{Text: "にほ", SelectionStart: 2,
				SelectionEnd: 2}); err != nil {
			return chromedp.Void{}, err
		}
		_, err := cdp.Call(ctx, target, input.InsertText, input.InsertTextParams{Text: "日本"})
		return chromedp.Void{}, err
	})
	b.until("the input method's text came", `(`+terminalText+
		`).includes("M-fM-^WM-%M-fM-^\\M-,") || (`+terminalText+`).includes("日本")`)
	b.types("c", chromedp.ModifierCtrl)
	b.until("the shell is back", `/~[#$] $/.test((`+terminalText+
		`).replaceAll("\u00a0", " ").split("\n").slice(0, -1).join("\n").trimEnd() + " ")`)

	b.types("printf '\\033[?1000h\\033[?1006h'; cat -v\r")
	b.until("the program has the mouse", `document.querySelector(".enable-mouse-events")`)
	b.do(chromedp.MouseClickXY(500, 300))
	b.types("\r")
	b.until(printed, `(`+terminalText+`).split("^[[<0;").length > 3`)
	b.types("c", chromedp.ModifierCtrl)
	b.until("the shell is back", `/~[#$] $/.test((`+terminalText+
		`).replaceAll("\u00a0", " ").split("\n").slice(0, -1).join("\n").trimEnd() + " ")`)
	b.types("printf '\\033[?1000l'\r")
	b.until("the program has it no longer", `!document.querySelector(".enable-mouse-events")`)

	// A large paste arrives whole.
	const line, lines = "0123456789abcdefghijklmnopqrstuvwxyz\n", 8000
	b.types(fmt.Sprintf("stty -echo; echo reads; head -c %d | md5sum; stty echo\r",
		lines*len(line)))
	b.sees("\nreads")
	valueOf[bool](b, fmt.Sprintf(`(() => { const d = new DataTransfer(); d.setData("text/plain", %q.repeat(%d));
		document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: d, bubbles: true, cancelable: true })); return true })()`, line, lines))
	b.sees(fmt.Sprintf("%x  -", md5.Sum([]byte(strings.Repeat(line, lines)))))
	b.fine()
}
