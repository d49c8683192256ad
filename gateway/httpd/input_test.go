package httpd

import (
	"context"
	"crypto/md5"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

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

// A client that does not read delays neither the session nor other clients. When it reads again, it
// gets the current screen.
func TestSocketThatIsNotRead(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
	}}
	slow := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	t.Cleanup(slow.CloseIdleConnections)
	s := w.login(wire.RightDrive)
	deaf, _, err := w.socketBy(slow, s, "/page/terminal/demo/main?cols=400&rows=150")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.CloseNow()
	other, _, err := w.socket(s, "/page/terminal/demo/main?cols=80&rows=24")
	if err != nil {
		t.Fatal(err)
	}
	defer other.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// until reads up to a text, and returns the number of bytes and frames.
	until := func(c *websocket.Conn, text string) (bytes, frames int) {
		t.Helper()
		c.SetReadLimit(1 << 22)
		for end := ""; !strings.Contains(end, text); {
			kind, p, err := c.Read(ctx)
			if err != nil {
				t.Fatalf("%v while waiting for %q", err, text)
			}
			if kind == websocket.MessageBinary {
				bytes, frames, end = bytes+len(p), frames+1, end[max(0, len(end)-100):]+string(p)
			}
		}
		return bytes, frames
	}
	types := func(text string) {
		t.Helper()
		if err := deaf.Write(ctx, websocket.MessageBinary, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	types("echo its'-'size is $(stty size | tr ' ' -)\r")
	until(deaf, "149-400")
	// Different full screens: more than the kernel buffers, and fewer than disconnect a client that
	// does not read.
	types(
		`i=0; while [ $((i+=1)) -le 100 ]; do printf '\033[H'; head -c 60000 /dev/urandom | base64 -w 0 | head -c 59000; done; clear; echo _^_''^_^_` + "\r")
	began := time.Now()
	_, frames := until(other, "_^_^_^_")
	if most := 4 + int(30*time.Since(began).Seconds()+1); frames > most {
		t.Errorf("%d repaints in %v", frames, time.Since(began))
	}
	if got, _ := until(deaf, "_^_^_^_"); got > 1<<20 {
		t.Errorf("%d bytes came before the present screen", got)
	}
}
