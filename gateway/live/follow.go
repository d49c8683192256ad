package live

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// daemonParty is the daemon itself on a session.
var daemonParty = wire.Party{Name: "daemon", Kind: wire.Agent, Rights: wire.RightWatch,
	ID: "replica"}

const (
	// Pauses before a stream that broke is opened again, doubled each time.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	askWithin  = 10 * time.Second // for the answer to a request without an attachment
)

// follower reads one session's stream on one control connection.
type follower struct {
	Feed
	control *connect.Control
}

// Follow feeds the session from its stream on c, opened again when it breaks, until c or the
// session ends. Following it on the connection on which it is followed already does nothing.
func (s *Session) Follow(ctx context.Context, c *connect.Control) {
	s.mu.Lock()
	if s.claim == c {
		s.mu.Unlock()
		return
	}
	s.claim = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.claim == c {
			s.claim = nil
		}
	}()
	f := follower{s.Feed(), c}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		began := time.Now()
		err := f.read(ctx)
		switch {
		case s.Final():
			f.closeUnrecorded(ctx)
			s.set.forget(s)
			return
		case ctx.Err() != nil || c.Err() != nil:
			return
		case errors.Is(err, &wire.Error{Code: wire.CodeNotFound}), errors.Is(err, io.EOF) &&
			!f.still(ctx):
			s.set.Drop(s, "closed")
			return
		}
		s.log.Debug("replica stream ended", "err", err)
		if time.Since(began) > time.Minute {
			pause = firstRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// still reports whether the guest has this session, and not another of its name.
func (f follower) still(ctx context.Context) bool {
	infos, err := List(ctx, f.control)
	return err != nil || slices.ContainsFunc(infos,
		func(i wire.SessionInfo) bool { return i.Name == f.s.name && i.Created == f.s.begun })
}

// closeUnrecorded ends the session in the guest, too, if it was ended because it cannot be
// recorded.
func (f follower) closeUnrecorded(ctx context.Context) {
	if f.s.Unrecorded() == "" {
		return
	}
	if _, err := Ask(ctx, f.control, wire.Request{Verb: wire.VerbClose,
		Session: f.s.name}); err != nil {
		f.s.log.Warn("a session that cannot be recorded was not ended", "err", err)
	}
}

// read reads one stream to its end.
func (f follower) read(ctx context.Context) error {
	stream, err := f.control.OpenStream(ctx)
	if err != nil {
		return err
	}
	f.s.mu.Lock()
	from, after := f.s.replica.end, f.s.seq
	f.s.mu.Unlock()
	// Closed by the handler: the session has ended, or the guest speaks nonsense.
	over := make(chan struct{})
	stop := sync.OnceFunc(func() { close(over) })
	party := daemonParty
	client, err := wire.Open(ctx, stream, wire.Attach{Session: f.s.name, From: wire.At(from),
		After: after, Party: &party, Keep: true}, wire.Handler{
		Output: func(off uint64, p []byte) {
			if !f.Output(off, p) {
				stop()
			}
		},
		Event: func(e wire.Event) {
			if f.Event(e); f.s.Final() {
				stop()
			}
		},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	f.attached(client.Attached())
	defer f.monitoring(ctx, client)()
	select {
	case <-client.Done():
		return client.Err()
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// monitoring runs monitor beside the reading of a stream, until the returned function ends both.
func (f follower) monitoring(ctx context.Context, client *wire.Client) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.monitor(ctx, client) })
	return func() {
		cancel()
		client.Close() // the guest may no longer read
		wg.Wait()
	}
}

// monitor has the guest report the session's state on this stream while a client watches its
// attention state. It returns when the stream or ctx ends.
func (f follower) monitor(ctx context.Context, client *wire.Client) {
	for {
		wanted, turned := f.watched()
		if !wanted {
			select {
			case <-turned:
				continue
			case <-client.Done():
			case <-ctx.Done():
			}
			return
		}
		asked, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { // ends with asked, or the stream
			_, err := client.Request(asked, wire.Request{Verb: wire.VerbHeed})
			done <- err
		}()
		for wanted {
			select {
			case <-turned:
				wanted, turned = f.watched()
			case err := <-done:
				cancel()
				// A guest of a version that does not know how.
				if ctx.Err() == nil && client.Err() == nil {
					f.s.log.Debug("session monitor failed", "err", err)
					select {
					case <-client.Done():
					case <-ctx.Done():
					}
				}
				return
			}
		}
		cancel()
		<-done //nolint:errcheck // the end that was just made
	}
}

func (f follower) watched() (bool, <-chan struct{}) {
	return f.s.set.options.Board.Watched(f.s.set.options.Principals())
}

// List asks a guest for its sessions.
func List(ctx context.Context, c *connect.Control) ([]wire.SessionInfo, error) {
	reply, err := Ask(ctx, c, wire.Request{Verb: wire.VerbList})
	for i, info := range reply.Sessions {
		reply.Sessions[i] = inboundInfo(info)
	}
	return reply.Sessions, err
}

// Ask makes one request on a stream of its own, without an attachment.
func Ask(ctx context.Context, c *connect.Control, r wire.Request) (wire.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	stream, err := c.OpenStream(ctx)
	if err != nil {
		return wire.Reply{}, err
	}
	client, err := wire.Open(ctx, stream, wire.Attach{}, wire.Handler{})
	if err != nil {
		return wire.Reply{}, err
	}
	defer client.Leave() // a guest that is frozen does not end the stream
	return client.Request(ctx, r)
}
