package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// notices reads what a hook that appends its standard input to a file received.
func notices(t *testing.T, file string) (all []attention.Notice) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var n attention.Notice
		if !strings.HasSuffix(line, "\n") {
			continue // it is being written
		}
		if err := json.Unmarshal([]byte(line), &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, n)
	}
	return all
}

// A hook program receives each change in order, with text of the session as data.
func TestHookExec(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	file, env := filepath.Join(t.TempDir(), "received"), filepath.Join(t.TempDir(), "env")
	w.Options.Hook = attention.HookOptions{Exec: []string{"/bin/sh", "-c",
		`env | grep '^SANDBOXD_HOOK_\|^MINE=' | sort | tr '\n' ' ' >>"$2"; echo >>"$2"; cat >>"$1"`,
		"hook", file, env},
		Env: []string{"MINE=yes"}}
	d := w.Start()
	w.Create(d, "demo")
	a := w.person(d)
	w.types(a, `read -p $'It\047s \033[31m"ev\151l"\033]0;x\007 $(reboot) ; `+"`x`"+` ' x`+"\n")
	w.Eventually("a question is reported", func() bool { return len(notices(t, file)) == 1 })
	w.types(a, "\n")
	w.Eventually("the answer is reported", func() bool { return len(notices(t, file)) == 2 })
	w.types(a, "exit 7\n")
	w.Eventually("the end is reported", func() bool { return len(notices(t, file)) == 3 })
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the removal is reported", func() bool { return len(notices(t, file)) == 4 })
	all := notices(t, file)
	var got []string
	for _, n := range all {
		got = append(got, fmt.Sprintf("%s %q from %q %s", n.Target(), n.Needs, n.Was, n.Owner))
		if time.Since(n.Time) > time.Hour || n.Since.After(n.Time) {
			t.Errorf("times of %+v", n)
		}
	}
	want := []string{`demo "asks" from "" alice`, `demo "" from "asks" alice`,
		`demo "dead" from "" alice`, `demo "" from "dead" alice`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("received\n%s", strings.Join(got, "\n"))
	}
	if first := all[0]; first.LastLine != "It's \"evil\" $(reboot) ; `x`" ||
		first.Want != wire.WantLine {
		t.Errorf("first %+v", first)
	}
	if last := all[2]; last.ExitCode == nil || *last.ExitCode != 7 || !all[3].Gone {
		t.Errorf("last %+v, %+v", last, all[3])
	}
	text, err := os.ReadFile(env)
	first, _, _ := strings.Cut(string(text), "\n")
	if err != nil || first != "MINE=yes SANDBOXD_HOOK_NEEDS=asks SANDBOXD_HOOK_OWNER=alice "+
		"SANDBOXD_HOOK_SANDBOX=demo SANDBOXD_HOOK_SESSION=main "+
		"SANDBOXD_HOOK_WANT=line SANDBOXD_HOOK_WAS= " {
		t.Errorf("environment %q, %v", first, err)
	}
	w.Eventually("all are counted", func() bool {
		return w.hook(d) == attention.HookCounts{Delivered: 4}
	})
}

// A sandbox that has the name of one that was removed needs what it needs, and not what that one
// did.
func TestHookOfANameUsedAgain(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	file := filepath.Join(t.TempDir(), "received")
	w.Options.Hook = attention.HookOptions{Exec: []string{"/bin/sh", "-c", `cat >>"$0"`, file}}
	d := w.Start()
	for round := range 2 {
		w.Create(d, "demo")
		a := w.person(d)
		w.types(a, "read -p 'Well? ' x\n")
		w.Eventually("a question is reported", func() bool {
			return len(notices(t, file)) == 2*round+1
		})
		if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
			t.Fatal(err)
		}
		w.Eventually("the removal is reported", func() bool {
			return len(notices(t, file)) == 2*round+2
		})
	}
	for i, n := range notices(t, file) {
		if want := []attention.Kind{attention.None, attention.Answer}[i%2]; n.Was != want ||
			n.Gone != (i%2 == 1) {
			t.Errorf("notice %d: %+v, want it to have been %q", i, n, want)
		}
	}
}

// A program that hangs is ended with what it started, one that fails is counted; sessions do not
// notice.
func TestHookExecFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	pid := filepath.Join(t.TempDir(), "pid")
	w.Options.Hook = attention.HookOptions{Exec: []string{"/bin/sh", "-c",
		`if [ $SANDBOXD_HOOK_NEEDS ]; then sleep 1000 & echo $! >"$0"; wait; fi; echo no such luck; exit 3`, pid},
		Timeout: 3 * time.Second} // enough for a shell to start on a busy machine
	d := w.Start()
	w.Create(d, "demo")
	a := w.person(d)
	w.types(a, "read x\n")
	w.Eventually("one has failed", func() bool { return w.hook(d).Failed == 1 })
	child, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("what it started has ended", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	w.types(a, "\n")
	w.Eventually("two have failed", func() bool { return w.hook(d).Failed == 2 })
	for _, want := range []string{"it ran longer than 3s", "exit status 3: no such luck"} {
		// A failure is counted before it is logged.
		w.Eventually("the log has: "+want, func() bool {
			return strings.Contains(w.Log.String(), want)
		})
	}
}

// A server receives each change, again after a failure; after a permanent error the hook gives up.
func TestHookURL(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	var mu sync.Mutex
	var told []attention.Notice
	answers := []int{503, 429, 200, 400, 302, 200}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		var n attention.Notice
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		if err != nil || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/in" {
			t.Errorf("%s %s %q: %v", r.Method, r.URL, body, err)
		}
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		if answer == 302 {
			rw.Header().Set("Location", "/elsewhere")
		}
		told = append(told, n)
		rw.WriteHeader(answer)
	}))
	t.Cleanup(server.Close)
	w.Options.Hook = attention.HookOptions{URL: server.URL + "/in", Retry: 10 * time.Millisecond}
	d := w.Start()
	t.Cleanup(d.End) // before the server
	w.Create(d, "demo")
	a := w.person(d)
	counts := func(want attention.HookCounts) {
		t.Helper()
		w.Eventually(fmt.Sprintf("%+v", want), func() bool { return w.hook(d) == want })
	}
	w.types(a, "read x\n")
	counts(attention.HookCounts{Delivered: 1}) // after 503 and 429
	w.types(a, "\n")
	counts(attention.HookCounts{Delivered: 1, Failed: 1}) // 400
	w.types(a, "read y\n")
	counts(attention.HookCounts{Delivered: 1, Failed: 2}) // 302 is not followed
	w.types(a, "\n")
	counts(attention.HookCounts{Delivered: 2, Failed: 2})
	mu.Lock()
	defer mu.Unlock()
	var got []string
	for _, n := range told {
		got = append(got, string(n.Needs))
	}
	if s := strings.Join(got, ","); s != "asks,asks,asks,,asks," {
		t.Errorf("received %q", s)
	}
}

// A program that does not end holds up nobody, and the daemon ends.
func TestHookThatHangs(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Hook = attention.HookOptions{Exec: []string{"/bin/sleep", "1000"}, Timeout: time.Hour}
	d := w.Start()
	w.Create(d, "demo")
	w.types(w.person(d), "read x\n")
	w.Eventually("it needs an answer", func() bool {
		all, err := d.Sessions.Attention(w.Ctx(), alice, "demo")
		return err == nil && len(all) == 1 && all[0].Needs == attention.Answer
	})
	a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo", Session: "other"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "echo on"}); err != nil || res.Result.Output != "on\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	d.End()
}
