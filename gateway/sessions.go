package gateway

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Get returns one sandbox of p. Unknown and forbidden are one error.
func (h *Hub) Get(ctx context.Context, p Principal, name string) (Info, error) {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return Info{}, err
	}
	return b.info(), nil
}

// List returns p's sandboxes and those that are shared with it by name.
func (h *Hub) List(ctx context.Context, p Principal) ([]Info, error) {
	all := []Info{}
	for _, b := range h.all() {
		if rights, _ := b.rightsOf(p.Name); rights != "" {
			all = append(all, b.info())
		}
	}
	slices.SortFunc(all, func(a, b Info) int { return strings.Compare(a.Name+"\x00"+a.ID, b.Name+"\x00"+b.ID) })
	return all, nil
}

// Sessions returns the sessions of a sandbox, asking the guest of one that runs, with the parties
// that are attached through the daemon. A sandbox that does not run has none, and is not started.
func (h *Hub) Sessions(ctx context.Context, p Principal, name string) ([]wire.SessionInfo, error) {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	f := b.get()
	switch f.state {
	case Running:
	case Paused: // as they were
		return b.info().Sessions, nil
	default:
		return []wire.SessionInfo{}, nil
	}
	ctx, over := b.Within(ctx)
	defer over()
	c, err := h.pool.Control(ctx, f.inst)
	if err != nil {
		return nil, b.Reach(err)
	}
	infos, err := live.List(ctx, c)
	if err != nil {
		return nil, b.Reach(err)
	}
	b.mu.Lock()
	lk := b.link
	b.mu.Unlock()
	for i := range infos {
		infos[i].Parties = []wire.Party{}
		if lk == nil {
			continue
		}
		if l, err := lk.take(b, c, infos[i]); err == nil {
			infos[i].Parties = l.Parties()
		}
	}
	slices.SortFunc(infos, func(a, b wire.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// CloseSession ends a session and its processes. Its record stays.
func (h *Hub) CloseSession(ctx context.Context, p Principal, t wire.Target) error {
	b, p, err := h.reachable(p, t.Sandbox, wire.RightDrive, "closing sessions")
	if err != nil {
		return err
	}
	if err := p.mayMake("closing sessions"); err != nil {
		return err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	f := b.get()
	if f.state != Running {
		return b.NotRunning(t.Session)
	}
	ctx, over := b.Within(ctx)
	defer over()
	c, err := h.pool.Control(ctx, f.inst)
	if err != nil {
		return b.Reach(err)
	}
	_, err = live.Ask(ctx, c, wire.Request{Verb: wire.VerbClose, Session: t.Session})
	if errors.As(err, new(*wire.Error)) {
		return err
	}
	return b.Reach(err)
}

func (b *box) noSession(session string) *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", session, b.Name())
}

// Live returns the replica of a session for reading, without attaching anybody. A sandbox that does
// not run is not started: its sessions are records.
func (h *Hub) Live(ctx context.Context, p Principal, t wire.Target) (*live.Session, error) {
	b, _, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if t.Session == "" {
		t.Session = wire.DefaultSession
	}
	if l := b.sessions.Get(t.Session); l != nil {
		return l, nil
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	f := b.get()
	if f.state != Running {
		return nil, b.NotRunning(t.Session)
	}
	ctx, over := b.Within(ctx)
	defer over()
	c, err := h.pool.Control(ctx, f.inst)
	if err != nil {
		return nil, b.Reach(err)
	}
	return b.Session(ctx, c, t.Session, false)
}

// Events returns the newest limit events of a sandbox, oldest first.
func (h *Hub) Events(ctx context.Context, p Principal, name string, limit int) ([]store.Event, error) {
	b, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	h.journal.flush(ctx)
	return h.options.Store.Events(ctx, b.id, limit)
}

// ExecEvent is one relayed command, for the sandbox's events.
type ExecEvent struct {
	Command string `json:"command"` // as asked for; shortened when long. Empty is a shell without a terminal
	Exit    int    `json:"exit"`    // -1 when the connection ended first
	Bytes   int64  `json:"bytes"`   // of standard output and error
}

// maxCommand is how much of a command its event keeps.
const maxCommand = 1024

// Record adds a relayed command to a sandbox's events. It neither waits nor fails: what cannot be
// stored is logged.
func (h *Hub) Record(ctx context.Context, p Principal, name string, e ExecEvent) {
	b, p, err := h.reachable(p, name, wire.RightDrive, "commands")
	if err != nil {
		return
	}
	if len(e.Command) > maxCommand {
		e.Command = strings.ToValidUTF8(e.Command[:maxCommand], "") + "…"
	}
	h.journal.add(b.id, "exec", struct {
		By string `json:"by"`
		ExecEvent
	}{p.party(p.Kind, "").String(), e})
}

// Records lists the records of a sandbox, also of sessions that have ended and of a sandbox that is
// stopped.
func (h *Hub) Records(ctx context.Context, p Principal, name string) ([]record.Info, error) {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	return record.List(h.records(b.id))
}

// OpenRecord opens a session's record for reading, as it is now; the caller closes it. run is the
// Info.Run to open, 0 the latest. What is read of a sandbox that is shared with p no longer is
// attach.ErrUnshared. A record that does not exist is an error with code not_found, one that cannot
// be read an error with code unavailable.
func (h *Hub) OpenRecord(ctx context.Context, p Principal, t wire.Target, run int) (*record.Reader, error) {
	b, _, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if _, err := wire.ParseLabel("session name", t.Session); err != nil {
		return nil, err
	}
	if run < 0 {
		return nil, wire.Errorf(wire.CodeUsage, "run %d is not a number of a record", run)
	}
	dir := record.Dir(h.records(b.id), t.Session, run)
	r, err := record.OpenReader(dir)
	if err == nil {
		r.Guard(func() error {
			if rights, _ := b.rightsOf(p.Name); rights == "" {
				return attach.ErrUnshared
			}
			return nil
		})
		return r, nil
	}
	e := wire.Errorf(wire.CodeNotFound, "no record of session %s in sandbox %s", t.Session, t.Sandbox)
	if _, none := os.Lstat(dir); !errors.Is(none, fs.ErrNotExist) {
		// Why is the daemon's business: it speaks of its files.
		h.log.Warn("record cannot be read", "dir", dir, "err", err)
		e = wire.Errorf(wire.CodeUnavailable, "the record of session %s in sandbox %s is there and cannot be read", t.Session, t.Sandbox)
		e.Hint = "the daemon's log says why"
	}
	return nil, &shown{public: e, err: err}
}

// Screen returns what a session's terminal shows. It starts nothing: of a sandbox that is stopped
// it is what the terminal showed last, by its record, with Stopped set.
func (h *Hub) Screen(ctx context.Context, p Principal, t wire.Target) (wire.Screen, error) {
	b, _, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return wire.Screen{}, err
	}
	if t.Session == "" {
		t.Session = wire.DefaultSession
	}
	switch b.get().state {
	case Paused: // whoever looks does not resume it
		return wire.Screen{}, b.NotRunning(t.Session)
	case Stopped:
		r, err := h.OpenRecord(ctx, p, t, 0)
		if err != nil {
			return wire.Screen{}, err
		}
		defer r.Close()
		return live.LastScreen(r)
	}
	party, err := h.Shared(ctx, p, t, attach.JoinOptions{})
	if err != nil {
		return wire.Screen{}, err
	}
	reply, err := party.Request(ctx, wire.Request{Verb: wire.VerbScreen})
	if err != nil {
		return wire.Screen{}, err
	}
	if reply.Screen == nil { // a guest's answer may be anything
		return wire.Screen{}, wire.Errorf(wire.CodeUnavailable, "sandbox %s answers without its screen", b.Name())
	}
	return *reply.Screen, nil
}
