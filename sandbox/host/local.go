package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// local has the sessions of a machine without a guest. They run in this process, each on a terminal
// of the machine's SSH server, and end with the connection. The set outlives the connection, so
// that callers learn why the sessions ended.
type local struct {
	b    *Backend
	inst sandbox.Instance
	set  *session.Set

	mu   sync.Mutex
	link *link  // guarded by mu; the newest, possibly ended
	f    facts  // guarded by mu; of the machine; zero if it does not report them
	tier string // guarded by mu
}

// defaultPrompt matches the end of a prompt, unless the spec describes the prompt.
var defaultPrompt = regexp.MustCompile(`[^\s<>|][$#%>❯»] ?$|^[$#%>❯»] ?$`)

// localOf returns the sessions of inst in this process, now on link l.
func (b *Backend) localOf(inst sandbox.Instance, l *link, f facts, tier string) (*local, error) {
	looks := defaultPrompt
	if inst.Host.Prompt != "" {
		// The whole end of the line, with the blank at the end of most prompts.
		re, err := regexp.Compile(`(?:` + inst.Host.Prompt + `)\s*$`)
		if err != nil {
			return nil, err
		}
		looks = re
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errBackendClosed
	}
	lo := b.locals[inst.ID]
	if lo == nil {
		lo = &local{b: b, inst: inst}
		lo.set = session.NewSet(session.Options{Start: lo.start, Shell: lo.shell, Log: b.log,
			Prompt: looks.MatchString})
		b.locals[inst.ID] = lo
	}
	lo.mu.Lock()
	defer lo.mu.Unlock()
	lo.link, lo.f, lo.tier = l, f, tier
	return lo, nil
}

// forget ends the sessions of an instance in this process.
func (b *Backend) forget(ctx context.Context, id string) error {
	b.mu.Lock()
	lo := b.locals[id]
	delete(b.locals, id)
	b.mu.Unlock()
	if lo == nil {
		return nil
	}
	return lo.set.Close(ctx)
}

var errBackendClosed = errors.New("the daemon is shutting down")

// Close ends all sessions in this process. Those of guests continue.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	var all []*local
	for _, lo := range b.locals {
		all = append(all, lo)
	}
	clear(b.locals)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, lo := range all {
		errs = append(errs, lo.set.Close(ctx))
	}
	return errors.Join(errs...)
}

// shell is the account's own if it can print marks. In tier screen the machine chooses the program.
func (lo *local) shell() session.Shell {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	if lo.tier != TierMarks {
		return session.Shell{Path: cmp.Or(lo.f.shell, "shell")}
	}
	return lo.f.startupShell.shellOf(lo.f)
}

// localLink is the daemon's handle of sessions in this process.
type localLink struct {
	*link
	local     *local
	tier, why string

	serving sync.WaitGroup
}

// Tier returns the tier, and why it is not a better one.
func (ll *localLink) Tier() (string, string) { return ll.tier, ll.why }

// Wait returns when the connection has ended, and with it the streams.
func (ll *localLink) Wait() error {
	err := ll.link.Wait()
	ll.serving.Wait()
	return err
}

// Open opens a session stream.
func (ll *localLink) Open(context.Context) (io.ReadWriteCloser, error) {
	ours, theirs, err := connect.Pipe()
	if err != nil {
		return nil, err
	}
	ll.link.mu.Lock()
	defer ll.link.mu.Unlock()
	if ll.link.ended != nil {
		ours.Close()
		theirs.Close()
		return nil, ll.link.ended
	}
	ll.streams[theirs] = true
	ll.serving.Go(func() {
		defer func() {
			ll.link.mu.Lock()
			defer ll.link.mu.Unlock()
			delete(ll.streams, theirs)
		}()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stop := context.AfterFunc(ll.link.life, cancel)
		defer stop()
		_ = ll.local.set.Serve(ctx, theirs, true) // the other side learns how the stream ended
	})
	return ours, nil
}

// Order carries out an order of the daemon.
func (ll *localLink) Order(_ context.Context, order []byte) ([]byte, error) {
	var o wire.Control
	if err := json.Unmarshal(order, &o); err != nil {
		return nil, err
	}
	if err := ll.lost(); err != nil {
		return nil, err
	}
	answer := wire.ControlReply{Version: wire.Version, Software: "sandboxd"}
	switch o.Do {
	case "hello":
	case "health":
		answer.Health = "ok"
	default:
		answer.Error = wire.Errorf(wire.CodeUnavailable,
			"%s: not available on a host without the guest (tier %s)", o.Do, ll.tier)
	}
	return json.Marshal(answer)
}
