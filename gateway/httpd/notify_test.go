package httpd

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// noteNotifications lets a page note what it notifies of. Another window has the focus.
const noteNotifications = `
  window.noted = [];
  document.hasFocus = () => false;
  window.Notification = class extends Notification {
    constructor(title, options) {
      super(title, options);
      noted.push(title + ": " + options.body);
      this.shown = true;
      window.last = this;
    }
    close() {
      super.close();
      this.shown = false;
    }
  };
  true`

// A browser notifies once of a need that begins while another window has the focus. The text of a
// program is text, without what turns its direction. The notification goes when the need ends, and
// leads to the session.
func TestPageNotifies(t *testing.T) {
	chrome := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.sandbox("old")
	w.run(w.agent("old"), "read -p 'older question? ' a")
	b := newTab(chrome, t, 1200, 760)
	b.open(w.link(wire.RightDrive))
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, browser.SetPermission, browser.SetPermissionParams{
			Permission:       &browser.PermissionDescriptor{Name: "notifications"},
			Setting:          browser.PermissionSettingGranted,
			BrowserContextID: chromedp.FromContext(ctx).BrowserContextID})
		return chromedp.Void{}, err
	})
	b.until("the old question", `document.querySelectorAll(".answer:not([hidden])").length === 1`)
	valueOf[bool](b, noteNotifications)
	a := w.agent("demo")
	w.run(a, "read -p $'<b>Con\\u202etinue? ' a")
	b.until("a notification", `noted.length > 0`)
	if got := valueOf[string](b, `noted.join()`); got != "demo: asks: <b>Continue?" {
		t.Errorf("notified %q", got)
	}
	b.until("the session", `last.dispatchEvent(new Event("click")), `+
		`document.querySelector("#name").textContent === "demo"`)
	if shown := valueOf[bool](b, `last.shown`); !shown {
		t.Error("the notification went before the need")
	}
	if _, err := a.Request(t.Context(),
		wire.Request{Verb: wire.VerbType, Text: "y\n"}); err != nil {
		t.Fatal(err)
	}
	b.until("the notification goes", `!last.shown`)
	if got := valueOf[int](b, `noted.length`); got != 1 {
		t.Errorf("notified %d times", got)
	}
	b.fine()
}
