// Package gateway decides which principal may do what with which sandbox, and delegates the work.
// Use a [Hub] in a server (SSH, HTTP, the command table) that has authenticated a principal.
// Package gateway/lifecycle holds the sandboxes, gateway/attach what parties do in sessions. This
// package knows no server, no Docker and no user's terminal.
package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure a Hub: its sandboxes, and who may log in.
type Options struct {
	lifecycle.Options

	Logins []string // login names of the admin: a login under one of them creates no sandbox
	// Principals returns how many principals can log in now; nil means one.
	Principals func() int
	// LogsIn reports whether a principal can log in with a key listed as its own, and with a
	// certificate of an authority that may name it. nil means that everybody has a key.
	LogsIn func(principal string) (key, certificate bool)

	Hook attention.HookOptions // called when a session's attention state changes
}

// expireEvery is the interval between checks for unused shared attachments.
const expireEvery = 5 * time.Second

// Hub authorises what principals do with the daemon's sandboxes. Its methods are safe for
// concurrent use from the start of Run until it returns.
type Hub struct {
	Sessions *Sessions // of its sandboxes
	Relay    *Relay    // of SSH connections to its sandboxes
	Secrets  *Secrets  // that its sandboxes use

	options     Options
	registry    *lifecycle.Registry
	attachments *attach.Attachments
	hook        *attention.Hook
}

// New returns a hub of the sandboxes in the store. It starts nothing; Run does.
func New(o Options) (*Hub, error) {
	o.Logins = slices.Clone(o.Logins)
	registry, err := lifecycle.New(o.Options)
	if err != nil {
		return nil, err
	}
	log := registry.Log()
	h := &Hub{options: o, registry: registry,
		attachments: attach.New(attach.Options{Log: log, Bound: registry.Bound,
			Public: registry.Public}),
		hook: attention.NewHook(o.Hook, registry.Board(), log)}
	h.Sessions, h.Relay, h.Secrets = &Sessions{hub: h}, &Relay{h}, &Secrets{h}
	return h, nil
}

// Run serves until ctx ends, as lifecycle.Registry.Run does. It returns when everything it started
// has ended.
func (h *Hub) Run(ctx context.Context) error {
	h.registry.Run(ctx, []func(context.Context){h.hook.Run, h.expire}, h.release)
	return nil
}

// expire closes unused shared attachments until ctx ends.
func (h *Hub) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.attachments.Expire()
		case <-ctx.Done():
			return
		}
	}
}

// release closes the attachments of persons, which gives up the keyboard. A person's connection
// ends with the daemon, and the next one is another party. Agents resume as the same party and keep
// the keyboard.
func (h *Hub) release() {
	var wg sync.WaitGroup
	for _, l := range h.registry.Lives() {
		for _, m := range l.Members() {
			if m.Party().Kind == wire.Person {
				wg.Go(func() { m.Disconnect(interrupt.ErrClosed) })
			}
		}
	}
	wg.Wait()
}

// Ready waits until Run has compared the store with the backends once. It does not wait for
// backends that do not answer.
func (h *Hub) Ready(ctx context.Context) error { return h.registry.Ready(ctx) }

// Public returns what a client may see of err: the *wire.Error within it, or "internal error" with
// an id. err itself is logged under that id. Public(nil) is nil.
func (h *Hub) Public(err error) *wire.Error { return h.registry.Public(err) }

// oneLine returns at most n characters of untrusted text as one printable line.
func oneLine(s string, n int) string { return text.Line(s, n) }
