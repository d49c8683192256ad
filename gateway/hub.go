// Package gateway authorises: it says which principal may do what with which sandbox, and has it
// done. Reach for a [Hub] from a server – SSH, HTTP, the command table – that has authenticated a
// principal. What sandboxes are and how they change is in gateway/lifecycle, what parties do on
// sessions in gateway/attach. It knows no server, no Docker and no terminal of a person.
package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a Hub works with: those of its sandboxes, and who may come in.
type Options struct {
	lifecycle.Options

	Logins []string // login names of the admin: a login with one of them makes no sandbox
	// Principals returns how many principals can log in now; nil means one.
	Principals func() int
	// LogsIn returns how a principal can log in: by a key that is listed as its own, and by a
	// certificate of an authority that may name it. nil means that everybody has a key.
	LogsIn func(principal string) (key, certificate bool)

	Hook attention.HookOptions // called when the attention state of a session changes
}

// expireEvery is how often shared attachments that nobody uses any more are looked for.
const expireEvery = 5 * time.Second

// Hub authorises the acts of principals on the sandboxes of the daemon. Its methods may be called
// at once, from when Run began until it returned.
type Hub struct {
	Sessions *Sessions // of its sandboxes
	Relay    *Relay    // of SSH connections to its sandboxes

	options     Options
	registry    *lifecycle.Registry
	attachments *attach.Attachments
	hook        *attention.Hook
}

// New returns a hub on what the store knows. It starts nothing: Run does.
func New(o Options) (*Hub, error) {
	o.Logins = slices.Clone(o.Logins)
	registry, err := lifecycle.New(o.Options)
	if err != nil {
		return nil, err
	}
	log := registry.Log()
	h := &Hub{options: o, registry: registry,
		attachments: attach.New(attach.Options{Log: log, Bound: registry.Bound, Public: registry.Public}),
		hook:        attention.NewHook(o.Hook, registry.Board(), log)}
	h.Sessions, h.Relay = &Sessions{h}, &Relay{h}
	return h, nil
}

// Run serves until ctx ends, as lifecycle.Registry.Run does. It returns when everything that it
// started has ended.
func (h *Hub) Run(ctx context.Context) error {
	h.registry.Run(ctx, []func(context.Context){h.hook.Run, h.expire}, h.release)
	return nil
}

// expire ends shared attachments that nobody uses any more, until ctx ends.
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

// release ends the attachments of people, who give the keyboard back: their connections end with
// the daemon, and on the next one they are another party. Agents come back as the party that they
// are, and keep it.
func (h *Hub) release() {
	var wg sync.WaitGroup
	for _, l := range h.registry.Lives() {
		for _, m := range l.Members() {
			if m.Party().Kind == wire.Person {
				wg.Go(func() { m.Disconnect(attach.ErrClosed) })
			}
		}
	}
	wg.Wait()
}

// Ready waits until Run has compared the store with the backends once. Backends that do not answer
// do not hold it up.
func (h *Hub) Ready(ctx context.Context) error { return h.registry.Ready(ctx) }

// Public returns what a stranger may see of err: the *wire.Error within it, or "internal error"
// with an id under which err itself is in the log. nil stays nil.
func (h *Hub) Public(err error) *wire.Error { return h.registry.Public(err) }

// oneLine is text of others in one line that may be shown and logged, n characters of it.
func oneLine(s string, n int) string { return text.Line(s, n) }
