package sshd

import (
	"io"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Canvas draws what a session printed on a person's terminal, at most thirty times a second, by the renderer that draws
// live sessions: no sequence of the record reaches the terminal.
type Canvas struct {
	to       io.Writer
	resized  <-chan wire.WindowChange
	mu       sync.Mutex
	screen   *screen.Screen // guarded by mu
	renderer *view.Renderer // guarded by mu
	drawn    time.Time      // guarded by mu
	later    *time.Timer    // guarded by mu; draws what came too soon after the last time
	err      error          // guarded by mu; of to
}

func newCanvas(to io.Writer, cols, rows int, pty *wire.PtyReq, resized <-chan wire.WindowChange) *Canvas {
	c := &Canvas{to: to, resized: resized, screen: screen.New(screen.Options{Cols: cols, Rows: rows}),
		renderer: view.NewRenderer(int(pty.Cols), int(pty.Rows))}
	_, c.err = to.Write(c.renderer.Enter())
	return c
}

// Write feeds the screen and draws it, now or within a thirtieth of a second.
func (c *Canvas) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	_, _ = c.screen.Write(p) // never fails
	if since := time.Since(c.drawn); since < frameTime {
		if c.later == nil {
			c.later = time.AfterFunc(frameTime-since, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.later != nil {
					c.drawLocked()
				}
			})
		}
		return len(p), nil
	}
	c.drawLocked()
	return len(p), c.err
}

// Resize is a change of the recorded terminal's size.
func (c *Canvas) Resize(cols, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.screen.Resize(cols, rows)
}

// Close draws the end and gives the terminal back.
func (c *Canvas) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drawLocked()
	if _, err := c.to.Write(c.renderer.Leave()); c.err == nil {
		c.err = err
	}
	return c.err
}

func (c *Canvas) drawLocked() {
	if c.later != nil {
		c.later.Stop()
		c.later = nil
	}
	select {
	case w := <-c.resized:
		c.renderer.Resize(int(w.Cols), int(w.Rows))
	default:
	}
	c.drawn = time.Now()
	out := c.renderer.Draw(view.Frame{Screen: c.screen, Status: " replay   ^C ends"})
	if len(out) > 0 && c.err == nil {
		_, c.err = c.to.Write(out)
	}
}
