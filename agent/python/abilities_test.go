package python_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/view/picture"
)

// TestAbilities tries what chat assistants with a code interpreter can do, in a sandbox without a
// network. It fails if the list in docs/how-to/python.md differs. SANDBOXD_TEST_BIG_FILE is the
// size in MiB of the transferred file; the default is 64.
func TestAbilities(t *testing.T) {
	needPython(t)
	doc, err := os.ReadFile("../../docs/how-to/python.md")
	if err != nil {
		t.Fatal(err)
	}
	inst := boot(t, pythonImage)
	client := dial(t, inst)
	in := interpreter(t, client, python.Options{})
	c, err := in.Context(bounded(t), "main")
	if err != nil {
		t.Fatal(err)
	}
	ok := func(code string) func(*testing.T) {
		return func(t *testing.T) {
			if res := execute(t, c, code); !res.OK {
				t.Error(res.Text())
			}
		}
	}
	prints := func(code, want string) func(*testing.T) {
		return func(t *testing.T) {
			if res := execute(t, c, code); !res.OK || res.Text() != want {
				t.Errorf("%q, want %q", res.Text(), want)
			}
		}
	}
	tried := make(map[string]bool)
	for _, ability := range []struct {
		name string
		try  func(*testing.T)
	}{
		{"state is kept from call to call", func(t *testing.T) {
			ok("kept = [1, 2, 3]")(t)
			prints("sum(kept)", "6\n")(t)
		}},
		{"the value of the last expression is shown", prints("6 * 7", "42\n")},
		{"an exception comes with its traceback", func(t *testing.T) {
			if res := execute(t, c, "def f(): return {}['x']\nf()"); res.Error == nil ||
				res.Error.Name != "KeyError" || len(res.Error.Traceback) < 2 {
				t.Errorf("%+v", res)
			}
		}},
		{"pandas: a table as HTML and as text", func(t *testing.T) {
			res := execute(t, c, "import pandas as pd; pd.DataFrame({'a': [1, 2]})")
			if !res.OK || !strings.Contains(res.Outputs[0].Text("text/html"), "<table") ||
				res.Outputs[0].Text("text/plain") == "" {
				t.Errorf("%+v", res)
			}
		}},
		{"a plot is shown", func(t *testing.T) {
			res := execute(t, c, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
			if !res.OK || len(res.Outputs) == 0 {
				t.Fatal(res.Text())
			}
			_, plot := res.Outputs[len(res.Outputs)-1].Picture()
			for _, p := range []picture.Protocol{picture.Kitty, picture.ITerm2, picture.Sixel} {
				if drawn, err := picture.Draw(p, plot, 800); err != nil || len(drawn) < 1000 {
					t.Errorf("by %s: %d bytes, %v", p, len(drawn), err)
				}
			}
		}},
		{"images are listed with id, type and size, and fetched", func(t *testing.T) {
			images := c.Images()
			if len(images) != 1 || images[0].Type != "image/png" || images[0].Size < 1000 {
				t.Fatalf("%+v", images)
			}
			if i, ok := c.Image(images[0].ID); !ok || len(i.Data) != images[0].Size {
				t.Error("the image is missing")
			}
		}},
		{"a file goes up and down, streamed", func(t *testing.T) { bigFile(t, client, c) }},
		{"a program of the sandbox runs", prints(
			"import subprocess; print(subprocess.run(['git', '--version'], capture_output=True, "+
				"text=True).stdout[:3])", "git\n")},
		{"a server on loopback answers", prints("import http.server, threading, urllib.request\n"+
			"class H(http.server.SimpleHTTPRequestHandler): log_message = lambda *a: None\n"+
			"s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H); "+
			"threading.Thread(target=s.serve_forever, daemon=True).start()\n"+
			"print(urllib.request.urlopen('http://127.0.0.1:%d/' % s.server_port).status)",
			"200\n")},
		{"there is no network", prints("import socket\ntry: "+
			"socket.create_connection(('192.0.2.1', 80), 2); print('there is one')\nexcept "+
			"OSError: print('none')", "none\n")},
		{"input() is answered", func(t *testing.T) {
			if res := execute(t, c, "input('? ')"); res.Ended != agent.EndedWaiting {
				t.Fatalf("%+v", res)
			}
			if res, err := c.Answer(bounded(t), "yes"); err != nil || res.Text() != "'yes'\n" {
				t.Errorf("%+v, %v", res, err)
			}
		}},
		{"code is interrupted at its deadline, and state stays", func(t *testing.T) {
			res, err := c.Execute(bounded(t),
				python.Call{Code: "import time; time.sleep(60)", Timeout: time.Second})
			if err != nil || res.Ended != agent.EndedDeadline || res.Restart {
				t.Errorf("%+v, %v", res, err)
			}
			prints("sum(kept)", "6\n")(t)
		}},
		{"a restart forgets", func(t *testing.T) {
			if err := c.Restart(bounded(t)); err != nil {
				t.Fatal(err)
			}
			prints("'kept' in dir()", "False\n")(t)
		}},
		{"files outlive the kernel", prints("import os; os.path.exists('big')", "True\n")},
		{"the packages are listed", func(t *testing.T) {
			list, err := in.Packages(bounded(t))
			if err != nil || len(list) < 50 {
				t.Errorf("%d packages, %v", len(list), err)
			}
		}},
	} {
		tried[ability.name] = true
		began := time.Now()
		done := t.Run(ability.name, ability.try)
		t.Logf("| %s | %v | %v |", ability.name, done, time.Since(began).Round(time.Millisecond))
		if !strings.Contains(string(doc), "| "+ability.name+" |") {
			t.Errorf("docs/how-to/python.md does not have: %s", ability.name)
		}
	}
	_, table, _ := strings.Cut(string(doc), "<!-- abilities -->")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		if name := strings.TrimSpace(strings.Split(line, "|")[1]); !tried[name] {
			t.Errorf("docs/how-to/python.md has %q, which nobody tries", name)
		}
	}
}

// bigFile writes a large file to /mnt/data, lets Python read it, and reads it back, as a stream.
func bigFile(t *testing.T, client *agent.Client, c *python.Context) {
	size := int64(64)
	if said := os.Getenv("SANDBOXD_TEST_BIG_FILE"); said != "" {
		var err error
		if size, err = strconv.ParseInt(said, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	size <<= 20
	files, err := client.Files(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	up, err := files.Create(python.DataDir + "/big")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	began := time.Now()
	_, err = up.ReadFrom(io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sum))
	if closed := up.Close(); err != nil || closed != nil {
		t.Fatal(err, closed)
	}
	sent := time.Since(began)
	want := fmt.Sprintf("%x", sum.Sum(nil))
	res := execute(
		t, c, "import hashlib\nwith open('big', 'rb') as f: print(hashlib.file_digest(f, "+
			"'sha256').hexdigest())",
	)
	if res.Text() != want+"\n" {
		t.Errorf("in the sandbox: %s, want %s", res.Text(), want)
	}
	down, err := files.Open(python.DataDir + "/big")
	if err != nil {
		t.Fatal(err)
	}
	defer down.Close()
	sum.Reset()
	began = time.Now()
	if n, err := down.WriteTo(sum); err != nil || n != size ||
		fmt.Sprintf("%x", sum.Sum(nil)) != want {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	t.Logf("%d MiB up in %v, down in %v", size>>20, sent, time.Since(began))
}
