package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// drawnBars returns what a terminal received, and what it shows at the end.
func drawnBars(t *testing.T, draw func(b *bars)) (received, shown string) {
	t.Helper()
	master, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	// Not until the other side is closed: the kernel may then drop what was just written.
	const end = 0
	all := make(chan []byte)
	go func() {
		got, err := bufio.NewReader(master).ReadBytes(end)
		if err != nil {
			t.Error(err)
		}
		all <- bytes.TrimSuffix(got, []byte{end})
	}()
	b := newBars(terminal)
	draw(b)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	say(t, terminal, string(rune(end)))
	got := <-all
	terminal.Close()
	s := screen.New(screen.Options{Cols: 100, Rows: 24})
	_, _ = s.Write(got)
	return string(got), s.Text()
}

func say(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Error(err)
	}
}

func TestBarsPull(t *testing.T) {
	received, shown := drawnBars(t, func(b *bars) {
		say(t, b, "starting\npulling busybox:1\nbusybox: Pulling from library/busybox\n")
		say(t, b, "0123456789ab: Pulling fs la")
		say(t, b, "yer\npulled 45%, 12m\n0123456789ab: Pull complete\nDigest: sha256:1\n")
		say(t, b.before(asItIs{b.out}), "web ready\n")
		say(t, b, "note: x")
	})
	if !strings.Contains(received, "pulling busybox:1") || !strings.Contains(received, "45 %") {
		t.Errorf("no bar: %q", received)
	}
	if want := "starting\nweb ready\nnote: x"; strings.TrimSpace(shown) != want {
		t.Errorf("at the end there is\n%s\nwant\n%s\nreceived %q", shown, want, received)
	}
}

func TestBarsBuild(t *testing.T) {
	received, shown := drawnBars(t, func(b *bars) {
		say(t, b, "building the image of Dockerfile\n[1/2] D:1: FROM x\n[2/2] D:2: RUN y\n")
		say(t, b, "  out\x1b[2J\nsandboxd: create web: failed\n")
	})
	if !strings.Contains(received, "50 %") {
		t.Errorf("no bar: %q", received)
	}
	want := "building the image of Dockerfile\n[1/2] D:1: FROM x\n[2/2] D:2: RUN y\n" +
		"  out [2J\nsandboxd: create web: failed"
	if got := strings.TrimSpace(shown); got != want {
		t.Errorf("at the end there is\n%s\nwant\n%s\nreceived %q", got, want, received)
	}
}

// Lines that look like progress are printed where nothing is under way.
func TestBarsOtherLines(t *testing.T) {
	const lines = "pulled 45%, 12m\n[1/2] x\n  y\nDigest: z\n"
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	b := newBars(out)
	say(t, b, lines)
	b.Close()
	if got, err := os.ReadFile(out.Name()); err != nil || string(got) != lines {
		t.Errorf("got %q, %v", got, err)
	}
}
