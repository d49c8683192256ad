package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// picker is the live list of sandboxes and sessions on the control host. A key joins a session. It
// draws its own text with the renderer of sessions.
type picker struct {
	s      *session
	items  []pick
	chosen int
	keys   listKeys
	digits string // of a number being typed
	naming bool   // a name for a new sandbox is being typed
	name   string
	making bool   // a sandbox with that name will be created
	notice string // shown instead of the keys, until a key is pressed
}

// pick is a row of the list: a session, or a sandbox without a session main.
type pick struct {
	target wire.Target
	state  lifecycle.State // of the sandbox
	need   attention.Need  // attention state of the session
}

// errQuit ends the list.
var errQuit = errors.New("quit")

// pick shows a person their sandboxes and joins the chosen session. When they leave it, it shows
// the list again, until they quit.
func (s *session) pick(ctx context.Context) {
	s.client.server.beginTTY()
	defer s.client.server.endTTY()
	s.begin()
	s.typed = &turns{chunks: make(chan []byte)}
	go s.typed.fill(s.client.meter.Source(s.channel), s.channel.Closed) // ends with the channel
	p := &picker{s: s}
	for {
		target, err := p.choose(ctx)
		switch {
		case errors.Is(err, errQuit):
			s.exit(0)
			return
		case err != nil && ctx.Err() == nil:
			s.fail(err)
			return
		case s.expelled(ctx):
			return
		case err != nil:
			if !errors.Is(context.Cause(ctx), errClientGone) {
				s.say("the gateway is stopping")
			}
			s.exit(wire.ExitTransport)
			return
		case s.client.grant.Kind == wire.Agent:
			s.raw(ctx, target, false)
			return
		}
		err = s.visit(ctx, target, false, func(_ int, words string) { p.notice = words })
		if err != nil {
			p.notice = plain(s.client.public(err).Message)
		}
	}
}

// choose shows the list until a session is chosen. It restores the terminal before it returns.
func (p *picker) choose(ctx context.Context) (t wire.Target, err error) {
	hub, principal := p.s.client.hub(), p.s.client.grant.Principal
	ctx, cancel := context.WithCancel(ctx)
	watch := hub.Sessions.WatchAttention(principal)
	defer watch.Close()
	changed := make(chan error, 1)
	// One call at a time: the next starts when its result was received.
	next := func() { changed <- watch.Wait(ctx) }
	go next()
	defer func() {
		cancel()
		<-changed //nolint:errcheck // the cancellation
	}()

	r := view.NewRenderer(int(p.s.ask.pty.Cols), int(p.s.ask.pty.Rows))
	sc := screen.New(screen.Options{Cols: 1, Rows: 1})
	if _, err := p.s.channel.Write(r.Enter()); err != nil {
		return t, err
	}
	defer func() { _, _ = p.s.channel.Write(r.Leave()) }() // a failed write ends the channel, too
	tick := time.NewTicker(time.Second)                    // updates times
	defer tick.Stop()
	var flush <-chan time.Time
	for {
		var keys []listKey
		select {
		case err := <-changed:
			go next()
			if err != nil {
				return t, err
			}
		case <-tick.C:
		case b, ok := <-p.s.typed.chunks:
			if !ok {
				return t, errQuit
			}
			keys, flush = p.keys.feed(b), nil
			if p.keys.pending() {
				flush = time.After(person.FlushTime)
			}
		case <-flush:
			keys, flush = p.keys.flush(), nil
		case q, ok := <-p.s.channel.Requests:
			if !ok {
				return t, errQuit
			}
			w, parsed := parseWindow(q.Payload)
			if parsed = parsed && q.Type == wire.RequestWindowChange; parsed {
				p.s.ask.pty.Cols, p.s.ask.pty.Rows = w.Cols, w.Rows
				r.Resize(int(w.Cols), int(w.Rows))
			}
			_ = q.Reply(parsed, nil)
		case <-ctx.Done():
			return t, context.Cause(ctx)
		}
		for _, key := range keys {
			t, done, err := p.press(key)
			if done || err != nil {
				return t, err
			}
		}
		if err := p.refresh(ctx, hub, principal); err != nil {
			return t, err
		}
		if err := p.draw(r, sc); err != nil {
			return t, err
		}
		if p.making {
			t, err := p.make(ctx)
			if err == nil || errors.Is(err, errQuit) || ctx.Err() != nil {
				return t, err
			}
			if err := p.draw(r, sc); err != nil {
				return t, err
			}
		}
	}
}

// make creates the sandbox with the typed name, and returns its session. If the person leaves
// meanwhile, also by ^C, it returns errQuit after the creation has finished or was undone.
func (p *picker) make(ctx context.Context) (wire.Target, error) {
	p.making = false
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var info lifecycle.Info
	var err error
	made := make(chan struct{})
	go func() {
		defer close(made)
		info, err = p.s.client.hub().Create(ctx, p.s.client.grant.Principal,
			lifecycle.NewSpec{Name: p.name}, nil)
	}()
	quit := false
	for waiting := true; waiting; {
		typed := p.s.typed.chunks
		if quit {
			typed = nil
		}
		select {
		case <-made:
			waiting = false
		case b, ok := <-typed:
			if quit = !ok || bytes.IndexByte(b, 3) >= 0; quit {
				cancel()
			}
		}
	}
	if quit {
		return wire.Target{}, errQuit
	}
	if p.notice = ""; err != nil {
		p.notice = plain(p.s.client.public(err).Message)
	}
	return wire.Target{Sandbox: info.Name, Session: wire.DefaultSession}, err
}

// refresh updates the list. The chosen row stays chosen.
func (p *picker) refresh(ctx context.Context, hub *gateway.Hub, principal gateway.Principal) error {
	infos, err := hub.List(ctx, principal)
	if err != nil {
		return err
	}
	needs, err := hub.Sessions.Attention(ctx, principal, "")
	if err != nil {
		return err
	}
	var was wire.Target
	if p.chosen < len(p.items) {
		was = p.items[p.chosen].target
	}
	p.items = p.items[:0]
	for _, info := range infos {
		main := pick{target: wire.Target{Sandbox: info.Name, Session: wire.DefaultSession},
			state: info.State}
		var others []pick
		for _, n := range needs {
			switch {
			case n.Sandbox != info.Name:
			case n.Session == wire.DefaultSession:
				main.need = n
			default:
				others = append(others, pick{n.Target(), info.State, n})
			}
		}
		p.items = append(append(p.items, main), others...)
	}
	for i, item := range p.items {
		if item.target == was {
			p.chosen = i
		}
	}
	p.chosen = max(min(p.chosen, len(p.items)-1), 0)
	return nil
}

// press handles a key. done means that t will be joined.
func (p *picker) press(key listKey) (t wire.Target, done bool, err error) {
	p.notice = ""
	if key == keyInterrupt {
		return t, false, errQuit
	}
	if p.naming {
		p.pressNaming(key)
		return t, false, nil
	}
	if key >= '0' && key <= '9' {
		p.digits += string(rune(key))
		if n, err := strconv.Atoi(p.digits); err == nil && n >= 1 && n <= len(p.items) {
			p.chosen = n - 1
			return t, false, nil
		}
		p.notice, p.digits = "no row "+p.digits, ""
		return t, false, nil
	}
	p.digits = ""
	const page = 10
	switch key {
	case keyUp, 'k':
		p.chosen--
	case keyDown, 'j':
		p.chosen++
	case keyPageUp:
		p.chosen -= page
	case keyPageDown:
		p.chosen += page
	case keyHome, 'g':
		p.chosen = 0
	case keyEnd, 'G':
		p.chosen = len(p.items) - 1
	case 'q':
		return t, false, errQuit
	case 'n':
		p.naming, p.name = true, ""
	case keyEnter:
		if p.chosen < len(p.items) {
			return p.items[p.chosen].target, true, nil
		}
	}
	p.chosen = max(min(p.chosen, len(p.items)-1), 0)
	return t, false, nil
}

// pressNaming handles a key of a new sandbox's name. An empty name is generated.
func (p *picker) pressNaming(key listKey) {
	switch {
	case key == keyEscape:
		p.naming = false
	case key == keyBackspace:
		p.name = p.name[:max(len(p.name)-1, 0)]
	case key > ' ' && key < 0x7f && len(p.name) < wire.MaxLabel:
		p.name += string(rune(key))
	case key == keyEnter:
		if p.name != "" {
			if _, err := wire.ParseSandbox(p.name); err != nil {
				p.notice = plain(p.s.client.public(err).Message)
				return
			}
		}
		p.naming, p.making, p.notice = false, true, "creating the sandbox…"
	}
}

// draw paints the list.
func (p *picker) draw(r *view.Renderer, sc *screen.Screen) error {
	cols, rows := r.Area()
	if w, h := sc.Size(); w != cols || h != rows {
		sc.Resize(cols, rows)
	}
	var b strings.Builder
	// On the alternate screen, so that the list leaves no trace. Long lines end at the edge.
	b.WriteString("\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[H\x1b[J")
	for y, line := range p.lines(cols, rows) {
		if y > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
	}
	_, _ = sc.Write([]byte(b.String())) // in memory, cannot fail
	status, brief := p.status()
	_, err := p.s.channel.Write(r.Draw(view.Frame{Screen: sc, Status: status, Brief: brief}))
	return err
}

func (p *picker) status() (string, []string) {
	switch {
	case p.notice != "":
		return person.Words(p.notice), nil
	case p.naming:
		return person.Words("name of the new sandbox: "+p.name+"_", "Enter create   Esc cancel"),
			[]string{person.Words("name: " + p.name + "_")}
	case len(p.items) == 0:
		return person.Words("n new", "q quit"), nil
	}
	return person.Words("Enter join", "j k or a number select", "n new", "q quit"),
		[]string{person.Words("Enter join", "n new", "q quit"), person.Words("q quit")}
}

// lines returns the visible rows: the part around the chosen row, without the header if there is no
// room.
func (p *picker) lines(cols, rows int) []string {
	if len(p.items) == 0 {
		return []string{" You have no sandboxes.", "", " Press n to create one, or use ssh with a",
			" new name as the user, or: new NAME"}[:min(rows, 4)]
	}
	wide := len("SESSION")
	for _, item := range p.items {
		wide = max(wide, len(item.target.String()))
	}
	wide = min(wide, max(cols/2, 8))
	var lines []string
	if rows >= 4 {
		lines = append(lines, text.Begin(fmt.Sprintf(" %3s  %-*s  %-14s %-6s %-16s %s", "", wide,
			"SESSION", "NEEDS", "SINCE", "KEYBOARD", "LAST"), cols))
	}
	room := rows - len(lines)
	first := max(min(p.chosen-room/2, len(p.items)-room), 0)
	for i, item := range p.items[first:min(first+room, len(p.items))] {
		line := text.Begin(fmt.Sprintf(" %3d  %-*.*s  %s", first+i+1, wide, wide, item.target,
			item.text()), cols)
		if first+i == p.chosen {
			line = fmt.Sprintf("\x1b[7m%-*s\x1b[m", cols, line)
		}
		lines = append(lines, line)
	}
	return lines
}

// text describes a row's session.
func (i pick) text() string {
	n := i.need
	if n.Session == "" { // no session, or not now
		if i.state == lifecycle.Running {
			return ""
		}
		return string(i.state)
	}
	label, since := n.Label(), ""
	if label == "" {
		label = string(n.Phase)
	} else {
		since = gateway.Ago(n.Since)
	}
	return strings.TrimRight(fmt.Sprintf("%-14s %-6s %-16s %s", label, since, n.Keyboard,
		n.LastLine), " ")
}
