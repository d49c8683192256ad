package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
)

func TestNetworkTextIsLoudWhereItIsOpen(t *testing.T) {
	if text := networkText(sandbox.NetworkBridge, ""); !strings.Contains(text, "OPEN") ||
		!strings.Contains(text, "metadata") {
		t.Errorf("bridge: %q", text)
	}
	if text := networkText("", ""); !strings.HasPrefix(text, "none") {
		t.Errorf("empty: %q", text)
	}
}

func TestLimitsText(t *testing.T) {
	got := limitsText(sandbox.Limits{Memory: 2 << 30, CPUs: 1.5, PIDs: 512, Shm: 64 << 20,
		NoFile: 1024})
	want := "2 GiB memory, 1.5 cpus, 512 processes, 64 MiB /dev/shm, 1024 open files a process"
	if got != want {
		t.Errorf("limits = %q, want %q", got, want)
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"a\nb\x1b[31m\u0085\u2028": "a b [31m  ",
		"ümlaut": "ümlaut", "\xff": " ", "long text": "long …",
		"a\u202eb\u2066": "a<U+202E>b<U+2066>"} {
		n := 100
		if strings.HasPrefix(in, "long") {
			n = 6
		}
		if got := oneLine(in, n); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

// A guest is asked for signs of life as long as any call waits for it.
func TestListening(t *testing.T) {
	var l listening
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan bool)
	go func() { waited <- l.wait(ctx) }()
	leave := l.enter()
	if !<-waited {
		t.Error("a call was not noticed")
	}
	again := l.enter()
	leave()
	if !l.wait(ctx) {
		t.Error("one call has ended, and another has not")
	}
	again()
	cancel()
	if l.wait(ctx) {
		t.Error("nobody waits any more")
	}
}

func FuzzParsePackages(f *testing.F) {
	f.Add("dpkg=3\npython=[\"a\",\"1\"]\n")
	f.Add("dpkg=-1\napk=1\nrpm=2\npython=[]\npython={}\nx")
	f.Add(fmt.Sprintf("python=[%q,\"\"]", strings.Repeat("\u202e", 300)))
	f.Fuzz(func(t *testing.T, out string) {
		all := parsePackages(out)
		if len(all) > 2 {
			t.Errorf("%d kinds", len(all))
		}
		for _, kind := range all {
			if kind.Count < 0 || len(kind.List) > maxPackages {
				t.Errorf("%s: %d, %d named", kind.By, kind.Count, len(kind.List))
			}
			for _, p := range kind.List {
				if len([]rune(p.Name)) > maxPackageName+1 || p.Name != oneLine(p.Name,
					maxPackageName+1) || p.Version != oneLine(p.Version, maxPackageName+1) {
					t.Errorf("package %q", p)
				}
			}
		}
	})
}

// Connections that wait to be written leave room for what people do.
func TestJournalKeepsRoomForActs(t *testing.T) {
	var j journal
	j.init(new(Registry))
	for range 2 * maxWaiting {
		j.add("id", store.Connection, nil)
	}
	j.add("id", "allow", nil)
	if last := j.waiting[len(j.waiting)-1]; last.Kind != "allow" ||
		len(j.waiting) != maxConnections+1 {
		t.Errorf("%d wait, and the last is %q", len(j.waiting), last.Kind)
	}
}

// Events of connections come in a burst at most, and then at a rate.
func TestBudgetOfEvents(t *testing.T) {
	var g budget
	now, n := time.Now(), 0
	for range 10 * eventBurst {
		if g.take(now) {
			n++
		}
	}
	if n != eventBurst {
		t.Errorf("a burst of %d, want %d", n, eventBurst)
	}
	if !g.take(now.Add(time.Second)) {
		t.Error("nothing after a second")
	}
}

// A sandbox of a backend that the daemon was started without says so, and what to do.
func TestBackendNotUsed(t *testing.T) {
	_, err := new(Options).backend("oci")
	e, ok := errors.AsType[*publicError](err)
	if !ok || !strings.Contains(e.public.Message, "does not use backend oci") ||
		e.public.Hint != "start it with backend: oci" {
		t.Errorf("got %+v", err)
	}
}
