package httpd

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pageCall sends a request as the page does.
func (w *world) pageCall(s session, method, path, body string) answer {
	return w.call(method, path, "", body, func(r *http.Request) {
		r.AddCookie(s.cookie)
		r.Header.Set("X-Sandboxd-Key", s.key)
		r.Header.Set("Origin", "http://"+w.addr)
	})
}

// A person looks at files with hostile names and content, which are text, and uploads one.
func TestPageFiles(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	dir := t.TempDir()
	hostile := `<img src=x onerror="window.wrong.push('run')">`
	for name, text := range map[string]string{
		hostile:    hostile + "<script>window.wrong.push('run')</script>",
		"a.png":    "no picture",
		"nul":      "a\x00b",
		"100% %41": "percent",
	} {
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")), []byte(text),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub%2F dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub%2F dir", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	b := newTab(browser, t, 1100, 700)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	b.click("#tab-files")
	b.until("the home directory", `document.querySelector("#path").textContent.startsWith("/")`)
	valueOf[bool](b, fmt.Sprintf(`location.hash = "demo~main/files" + encodeURIComponent(%q), true`,
		dir))
	b.until("the directory", fmt.Sprintf(`document.querySelector("#path").textContent === %q`, dir))
	pick := func(name string) {
		t.Helper()
		find := fmt.Sprintf(`[...document.querySelectorAll("#entries .row")].find((b) => b.querySelector(".title").textContent === %q)`, name)
		b.until(name+" is listed", find)
		valueOf[bool](b, find+`.click(), true`)
	}
	pick(hostile)
	b.until("its text", `document.querySelector("#preview pre")?.textContent.includes("<script>")`)
	b.shoot("files")
	pick("nul")
	b.until("no text", `document.querySelector("#preview").textContent.includes("No text")`)
	pick("100% %41")
	b.until("percent", `document.querySelector("#preview pre")?.textContent === "percent"`)
	pick("a.png")
	b.until("a picture", `document.querySelector("#preview img")?.complete`)
	pick("link")
	b.until("the directory of the link", fmt.Sprintf(`document.querySelector("#path").textContent === %q`,
		dir+"/link"))
	pick("../")
	pick("sub%2F dir/")
	b.until("the other directory", fmt.Sprintf(`document.querySelector("#path").textContent === %q`,
		dir+"/sub%2F dir"))
	valueOf[bool](b, `(() => {
		const d = new DataTransfer();
		d.items.add(new File(["uploaded"], "up.txt"));
		document.querySelector("#upload").files = d.files;
		document.querySelector("#upload").dispatchEvent(new Event("change"));
		return true;
	})()`)
	pick("up.txt")
	b.until("its text", `document.querySelector("#preview pre")?.textContent === "uploaded"`)
	if text, err := os.ReadFile(dir + "/sub%2F dir/up.txt"); string(text) != "uploaded" {
		t.Errorf("%q, %v", text, err)
	}
	pick("../")
	b.until("back", fmt.Sprintf(`document.querySelector("#path").textContent === %q`, dir))
	b.fine()
}
