package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// No window size gives the session a size that its shell cannot handle: bash ended at 2 × 1. The
// person sees a part.
func TestPersonWindows(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for _, tt := range []struct {
		cols, rows         int // of the window
		wantCols, wantRows int // of the session
	}{
		{1, 1, 12, 2},
		{2, 1, 12, 2},
		{2, 2, 12, 2}, // the status line uses one of the rows
		{1, 24, 12, 23},
		{80, 1, 80, 2},
		{12, 3, 12, 2},
		{13, 4, 13, 3},
		{0, 0, 80, 23},
		{math.MaxUint32, math.MaxUint32, 1000, 499},
	} {
		t.Run(fmt.Sprintf("%dx%d", tt.cols, tt.rows), func(t *testing.T) {
			for _, later := range []bool{false, true} {
				p := w.window(t, fmt.Sprintf("w%dx%d-%t", tt.cols, tt.rows, later), tt.cols,
					tt.rows, later)
				eventually(t, "the session has its size", func() bool {
					cols, rows := p.live.Size()
					return cols == tt.wantCols && rows == tt.wantRows
				})
				p.types("\x15echo 'a line that is edited'\x01\x05\x1b[D\x0c\t\t\x05\x15")
				p.types("\x15echo size $(stty size) end\r")
				if want := fmt.Sprintf("size %d %d end", tt.wantRows, tt.wantCols); !p.prints(
					want) {
					t.Errorf("changed later: %t: bash does not print %q", later, want)
				}
			}
		})
	}
}

// windowed is a person whose terminal is a program and may have any size.
type windowed struct {
	t    *testing.T
	in   io.Writer
	live *live.Session
}

// window joins a new session with a window of a size, or changes to that size later, while its
// person drives.
func (w *world) window(t *testing.T, session string, cols, rows int, later bool) *windowed {
	t.Helper()
	c := w.dial("alice", "demo~"+session)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdout = io.Discard
	firstCols, firstRows := cols, rows
	if later {
		firstCols, firstRows = 80, 24
	}
	if err := errors.Join(s.RequestPty("xterm-256color", firstRows, firstCols, ssh.TerminalModes{}),
		s.Shell()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	at, err := w.hub.Sessions.Join(t.Context(), alicePerson,
		wire.Target{Sandbox: "demo", Session: session}, attach.JoinOptions{Watch: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	p := &windowed{t, in, at.Live()}
	p.types("echo 'be''gun'\r")
	if !p.prints("begun") {
		t.Fatal("the session does not begin")
	}
	if later {
		if err := s.WindowChange(rows, cols); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *windowed) types(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, text); err != nil {
		p.t.Fatal(err)
	}
}

// prints reports whether the session prints want before it ends.
func (p *windowed) prints(want string) bool {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	var all strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := p.live.ReadAt(ctx, uint64(all.Len()), buf)
		all.Write(buf[:n])
		if strings.Contains(all.String(), want) {
			return true
		}
		if err != nil {
			p.t.Logf("%v after %q", err, all.String())
			return false
		}
	}
}
