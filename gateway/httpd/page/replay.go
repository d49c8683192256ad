package page

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// longestPause is the longest pause of a replay. Longer idle periods are shortened to it.
const longestPause = 2 * time.Second

// placeTime is the minimum time between two position messages.
const placeTime = 100 * time.Millisecond

// wanted is a command of the page to a replay. Keys can also come as input.
type wanted struct {
	Do    string  `json:"do"` // key, seek, speed or resize
	Key   string  `json:"key"`
	AtMS  int64   `json:"at_ms"`
	Speed float64 `json:"speed"`
	Cols  uint32  `json:"cols"`
	Rows  uint32  `json:"rows"`
}

// place is the position of a replay.
type place struct {
	AtMS     int64   `json:"at_ms"`
	LongMS   int64   `json:"long_ms"`
	Paused   bool    `json:"paused"`
	Speed    float64 `json:"speed"`
	Command  int     `json:"command"`
	Commands int     `json:"commands"`
}

// replay plays a record.
func (h *Handler) replay(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(s *socket) error {
		run, _ := strconv.Atoi(r.FormValue("run"))
		record, err := h.Hub.Sessions.OpenRecord(r.Context(), rest.Principal(r.Context()),
			target(r), run)
		if err != nil {
			return err
		}
		defer record.Close()
		cols, rows := window(r)
		begin := record.Begin()
		canvas := player.NewCanvas(s, begin.Cols, begin.Rows, cols, rows, nil)
		ctx, stop := context.WithCancel(s.ctx)
		sender := newPositionSender(ctx, s)
		defer func() { stop(); sender.wait() }()
		orders := make(chan player.Order)
		s.tasks.Go(func() { s.order(canvas, orders) })
		p := player.New(record, canvas, player.Options{Speed: 1, Idle: longestPause, Stay: true,
			Shown: sender.shown})
		if err := p.Seek(s.ctx, 0); err != nil {
			return err
		}
		if err := p.Play(s.ctx, orders); err != nil {
			return err
		}
		if err := canvas.Close(); err != nil {
			return err
		}
		return s.say(map[string]any{"over": true})
	})
}

// match is a place of a record with the text that a person looks for.
type match struct {
	AtMS int64  `json:"at_ms"`
	Line string `json:"line"`
}

const (
	maxMatches = 500
	maxSought  = 200 // characters
	findTime   = time.Minute
)

// find answers with the places of a record where a text appears.
func (h *Handler) find(w http.ResponseWriter, r *http.Request) {
	matches, more, err := h.matches(r)
	if err != nil {
		rest.Fail(w, r, h.Hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, map[string]any{"matches": matches, "more": more})
}

func (h *Handler) matches(r *http.Request) (all []match, more bool, err error) {
	sought := strings.TrimSpace(r.FormValue("text"))
	if sought == "" || utf8.RuneCountInString(sought) > maxSought {
		return nil, false, wire.Errorf(wire.CodeUsage, "text: must have 1 to %d characters",
			maxSought)
	}
	run, _ := strconv.Atoi(r.FormValue("run"))
	ctx, cancel := context.WithTimeoutCause(r.Context(), findTime, &wire.Error{
		Code: wire.CodeUnavailable, Message: "the record is too long to look through it here",
		Hint: "use sandboxd log NAME | grep TEXT"})
	defer cancel()
	var found []player.Match
	err = h.Hub.Sessions.ReadThrough(ctx, rest.Principal(ctx), target(r), run,
		func(rec *record.Reader) (err error) {
			found, more, err = player.Find(ctx, rec, sought, maxMatches)
			return err
		})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	all = make([]match, len(found))
	for i, m := range found {
		all[i] = match{m.At.Milliseconds(), m.Line}
	}
	return all, more, err
}

// order passes commands of the page to a replay, until the socket ends.
func (s *socket) order(canvas *player.Canvas, orders chan<- player.Order) {
	for s.ctx.Err() == nil {
		var a wanted
		keys, err := s.hear(&a)
		var all []player.Order
		switch {
		case err != nil:
		case len(keys) > 0:
			for _, key := range player.Keys(keys) {
				all = append(all, player.Order{Key: key})
			}
		case a.Do == "resize":
			canvas.Window(wire.ClampSize(a.Cols, a.Rows))
		case a.Do == "key", a.Do == "seek", a.Do == "speed":
			o := player.Order{Key: a.Do,
				At: time.Duration(min(max(a.AtMS, 0), 1<<40)) * time.Millisecond, Speed: a.Speed}
			if a.Do == "key" {
				o.Key = a.Key
			}
			all = append(all, o)
		}
		for _, o := range all {
			select {
			case orders <- o:
			case <-s.ctx.Done():
				return
			}
		}
	}
}

// positionSender sends the position of a replay to the page, at most once per placeTime. A record
// of a flood has thousands of positions a second.
type positionSender struct {
	s    *socket
	more chan struct{}
	done chan struct{}

	mu   sync.Mutex
	last place // guarded by mu
}

// newPositionSender returns one that sends until ctx ends.
func newPositionSender(ctx context.Context, s *socket) *positionSender {
	t := &positionSender{s: s, more: make(chan struct{}, 1), done: make(chan struct{})}
	go t.run(ctx)
	return t
}

func (t *positionSender) shown(p player.Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = place{AtMS: p.At.Milliseconds(), LongMS: p.Long.Milliseconds(), Paused: p.Paused,
		Speed: p.Speed, Command: p.Command, Commands: p.Commands}
	select {
	case t.more <- struct{}{}:
	default:
	}
}

func (t *positionSender) run(ctx context.Context) {
	defer close(t.done)
	for {
		select {
		case <-t.more:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		at := t.last
		t.mu.Unlock()
		if t.s.say(map[string]any{"place": at}) != nil {
			return
		}
		select {
		case <-time.After(placeTime):
		case <-ctx.Done():
			return
		}
	}
}

// wait returns when the sender has stopped.
func (t *positionSender) wait() { <-t.done }
