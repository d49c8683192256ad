package gateway

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sessions authorises what principals do with the sessions of sandboxes.
type Sessions struct {
	hub     *Hub
	reading reading
}

// List asks the guest of a running sandbox for its sessions and adds the parties attached through
// the daemon. A sandbox that is not running has none and is not started.
func (s *Sessions) List(ctx context.Context, p Principal, name string) ([]wire.SessionInfo, error) {
	sb, _, err := s.hub.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	return sb.Guest().ListSessions(ctx)
}

// Close ends a session and its processes. Its record stays.
func (s *Sessions) Close(ctx context.Context, p Principal, t wire.Target) error {
	sb, p, err := s.hub.reachable(p, t.Sandbox, wire.RightDrive, "closing sessions")
	if err == nil {
		err = p.mayMake("closing sessions")
	}
	if err != nil {
		return err
	}
	return sb.Guest().CloseSession(ctx, t.Session)
}

// Live returns the replica of a session for reading, without attaching a party. It starts nothing:
// the sessions of a sandbox that is not running exist as records only.
func (s *Sessions) Live(ctx context.Context, p Principal, t wire.Target) (*live.Session, error) {
	sb, _, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	return sb.Guest().Live(ctx, cmp.Or(t.Session, wire.DefaultSession))
}

// Look calls f with the screen of a live session as the daemon knows it, without what private mode
// hides. It asks no guest, attaches no party and starts nothing. offset is that of the session's
// output. The screen is valid during the call, and f must be quick: others wait for it.
func (s *Sessions) Look(ctx context.Context, p Principal, t wire.Target,
	f func(sc *screen.Screen, offset uint64)) error {
	l, err := s.Live(ctx, p, t)
	if err != nil {
		return err
	}
	return l.Screen(f)
}

// Screen returns what a session's terminal shows. It starts nothing. For a stopped sandbox it
// returns the last screen in the record, with Stopped set.
func (s *Sessions) Screen(ctx context.Context, p Principal, t wire.Target) (wire.Screen, error) {
	sb, _, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return wire.Screen{}, err
	}
	t.Session = cmp.Or(t.Session, wire.DefaultSession)
	switch sb.State() {
	case lifecycle.Paused: // reading the screen does not resume it
		return wire.Screen{}, sb.Guest().NotRunning(t.Session)
	case lifecycle.Stopped:
		r, err := s.OpenRecord(ctx, p, t, 0)
		if err != nil {
			return wire.Screen{}, err
		}
		defer r.Close()
		return live.LastScreen(r)
	}
	party, err := s.Shared(ctx, p, t, attach.JoinOptions{})
	if err != nil {
		return wire.Screen{}, err
	}
	reply, err := party.Request(ctx, wire.Request{Verb: wire.VerbScreen})
	if err != nil {
		return wire.Screen{}, err
	}
	if reply.Screen == nil { // the guest is not trusted
		return wire.Screen{}, wire.Errorf(wire.CodeUnavailable,
			"sandbox %s: reply without a screen", sb.Name())
	}
	return *reply.Screen, nil
}

// Records lists the records of a sandbox in any state, including those of ended sessions.
func (s *Sessions) Records(_ context.Context, p Principal, name string) ([]record.Info, error) {
	sb, _, err := s.hub.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	return record.List(sb.Records())
}

// OpenRecord opens a session's record for reading; the caller closes it. run is the Info.Run to
// open, 0 the latest. Reading fails with interrupt.ErrUnshared once the sandbox is no longer shared
// with p. A missing record is an error with code not_found, an unreadable one has code unavailable.
func (s *Sessions) OpenRecord(_ context.Context, p Principal, t wire.Target,
	run int) (*record.Reader, error) {
	sb, _, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if _, err := wire.ParseLabel("session name", t.Session); err != nil {
		return nil, err
	}
	if run < 0 {
		return nil, wire.Errorf(wire.CodeUsage, "run %d: must not be negative", run)
	}
	dir := record.Dir(sb.Records(), t.Session, run)
	r, err := record.OpenReader(dir)
	if err == nil {
		r.Guard(func() error {
			if rights, _ := sb.RightsOf(p.Name); rights == "" {
				return interrupt.ErrUnshared
			}
			return nil
		})
		return r, nil
	}
	if _, none := os.Lstat(dir); errors.Is(none, fs.ErrNotExist) {
		return nil, wire.Errorf(wire.CodeNotFound, "no record of session %s in sandbox %s",
			t.Session, t.Sandbox)
	}
	// The cause goes to the log only: it names the daemon's files.
	s.hub.registry.Log().Warn("record cannot be read", "dir", dir, "err", err)
	e := wire.Errorf(wire.CodeUnavailable, "the record of session %s in sandbox %s cannot be read",
		t.Session, t.Sandbox)
	e.Hint = "see the daemon's log"
	return nil, e
}

// Attention returns what sessions need from a person, by sandbox and session: those of p's
// sandboxes and of sandboxes shared with p. It asks no guest. name is a sandbox; empty means all.
func (s *Sessions) Attention(_ context.Context, p Principal,
	name string) ([]attention.Need, error) {
	if name != "" {
		if _, _, err := s.hub.reachable(p, name, wire.RightWatch, ""); err != nil {
			return nil, err
		}
	}
	return s.hub.registry.Board().List(p.Name, name), nil
}

// Asking follows which sessions ask for an answer that p may give, those that are shared with p to
// drive included. It calls changed, from any goroutine, when that has changed. The caller closes
// the result.
func (s *Sessions) Asking(p Principal, changed func()) *attention.Asked {
	return s.hub.registry.Board().Follow(p.Name, changed)
}

// WatchAttention follows the attention state of the sessions that p may see. The caller closes the
// watch.
func (s *Sessions) WatchAttention(p Principal) *attention.Watch {
	return s.hub.registry.Board().Watch(p.Name)
}
