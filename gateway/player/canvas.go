package player

import (
	"io"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Canvas draws a session's output on a person's terminal, at most thirty times a second, with the
// renderer of live sessions: no escape sequence of the record reaches the terminal.
type Canvas struct {
	to       io.Writer
	resized  <-chan wire.WindowChange
	mu       sync.Mutex
	screen   *screen.Screen // guarded by mu
	status   string         // guarded by mu
	held     bool           // guarded by mu; nothing is drawn
	renderer *view.Renderer // guarded by mu
	drawn    time.Time      // guarded by mu
	later    *time.Timer    // guarded by mu; draws output that came too soon after the last frame
	err      error          // guarded by mu; of to
}

// NewCanvas uses a person's terminal, with a window of windowCols by windowRows, for a record of
// cols by rows. resized receives the window's changes.
func NewCanvas(to io.Writer, cols, rows, windowCols, windowRows int,
	resized <-chan wire.WindowChange) *Canvas {
	c := &Canvas{to: to, resized: resized, screen: newCanvasScreen(cols, rows),
		status:   " replay   ^C ends",
		renderer: view.NewRenderer(windowCols, windowRows)}
	_, c.err = to.Write(c.renderer.Enter())
	return c
}

// newCanvasScreen keeps the lines that may come between two frames.
func newCanvasScreen(cols, rows int) *screen.Screen {
	return screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: canvasLines})
}

const (
	canvasLines = 1000
	frameTime   = time.Second / 30 // between two repaints
)

// Write feeds the screen and draws it, immediately or within a thirtieth of a second.
func (c *Canvas) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	_, _ = c.screen.Write(p) // never fails
	return len(p), c.soonLocked()
}

// soonLocked draws immediately, or within a thirtieth of a second of the last frame.
func (c *Canvas) soonLocked() error {
	if c.held {
		return nil
	}
	if since := time.Since(c.drawn); since < frameTime {
		if c.later == nil {
			c.later = time.AfterFunc(frameTime-since, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.later != nil && !c.held {
					c.drawLocked()
				}
			})
		}
		return nil
	}
	c.drawLocked()
	return c.err
}

// Status sets the line below the screen.
func (c *Canvas) Status(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status != line {
		c.status = line
		_ = c.soonLocked() // the next Write returns the error
	}
}

// Jump restarts with the screen of a snapshot, or with an empty one of a size, and holds.
func (c *Canvas) Jump(snapshot []byte, cols, rows int) error {
	s := newCanvasScreen(cols, rows)
	if snapshot != nil {
		var err error
		if s, err = screen.Restore(snapshot, canvasLines); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.screen, c.held = s, true
	return nil
}

// Hold delays drawing until Show.
func (c *Canvas) Hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// Show draws what Hold has delayed.
func (c *Canvas) Show() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	c.renderer.Anew()
	c.drawLocked()
	return c.err
}

// Snapshot returns the screen for Jump.
func (c *Canvas) Snapshot() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.screen.Snapshot()
}

// Resize changes the recorded terminal's size.
func (c *Canvas) Resize(cols, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.screen.Resize(cols, rows)
}

// Window changes the size of the person's window, if NewCanvas got no channel for it.
func (c *Canvas) Window(cols, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renderer.Resize(cols, rows)
	if !c.held {
		c.drawLocked()
	}
}

// Close draws the last frame and restores the terminal.
func (c *Canvas) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
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
	out := c.renderer.Draw(view.Frame{Screen: c.screen, Status: c.status})
	if len(out) > 0 && c.err == nil {
		_, c.err = c.to.Write(out)
	}
}
