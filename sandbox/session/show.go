package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// showTime is how long a Result waits for a screen that is behind the log.
	showTime = 200 * time.Millisecond
	// maxShown limits the text of a screen in a Result, which must fit a frame.
	maxShown = 256 << 10
)

// awaitScreen waits until the screen is up to date, for at most showTime.
func (s *session) awaitScreen() {
	ctx, cancel := context.WithTimeout(s.ctx, showTime)
	defer cancel()
	_, end := s.log.bounds()
	_ = s.display.sync(ctx, end) // on an error, the screen is older, as its offset shows
}

// addScreen sets r.Screen if the call asks for it, except in private mode.
func (f *call) addScreen(when wire.ShowScreen, r *wire.Result, alt bool) {
	s := f.s
	switch when {
	case wire.ScreenNever:
		return
	case wire.ScreenAlways:
	default:
		front := r.Phase == wire.PhaseRunning || r.Phase == wire.PhaseWaiting ||
			r.Phase == wire.PhaseOpaque
		draws := alt || r.Want == wire.WantPager || r.Want == wire.WantFullscreen ||
			r.Ended == wire.Attention
		if !front || !draws {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyboard.Private() != nil || s.display.veiled() {
		return
	}
	if r.Screen = s.display.snapshot(); len(r.Screen.Text) > maxShown {
		r.Screen, r.Notes = nil, append(r.Notes, wire.NoteNoScreen)
	}
}
