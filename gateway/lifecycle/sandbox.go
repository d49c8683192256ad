package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sandbox is one sandbox of a registry. Its methods are safe for concurrent use.
type Sandbox struct {
	*state

	// Until then the backend may still create the instance; used with op held.
	uncertainUntil time.Time

	guest    *Guest
	sessions *live.Sessions
	network  network
	shares   shares
	expiry   expiry
	disk     diskState
	inside   insideCache
}

func newSandbox(reg *Registry, id string, f Record) *Sandbox {
	sb := &Sandbox{state: &state{reg: reg, id: id, op: make(chan struct{}, 1), record: f}}
	sb.guest = &Guest{sb: sb}
	sb.paused = func() { sb.guest.pauses.Interrupt(pausedError(sb.Name())) }
	sb.network.sb, sb.network.broker = sb, newBroker(reg, id, &sb.network)
	sb.expiry = expiry{sb: sb, active: time.Now(), loaded: time.Now()}
	sb.sessions = live.NewSessions(live.Options{ID: id, Name: sb.Name, Records: reg.records(id),
		Quota: reg.options.RecordQuota, Strict: reg.options.RecordStrict,
		Log: reg.log, Board: reg.board, Principals: sb.principals, Settle: sb.network.Settle})
	return sb
}

// Guest returns the daemon's side of the sandbox's guest.
func (sb *Sandbox) Guest() *Guest { return sb.guest }

// Info describes the sandbox for lists.
func (sb *Sandbox) Info() Info {
	f := sb.get()
	notes := slices.Concat(f.Instance.Notes, sb.guest.inspected(), sb.network.troubles())
	i := Info{Name: f.Name, ID: sb.id, Owner: f.Owner, State: f.State, Since: f.Since,
		Reason: f.Reason, Held: f.State == Paused && f.Held, Created: f.Created,
		Backend: f.Instance.Backend, Image: f.Instance.Image, Digest: f.Instance.Digest,
		User: f.Instance.User, Network: f.Instance.Network, Via: f.Instance.Via,
		Isolation: f.Instance.Runtime, Limits: f.Instance.Limits, Allow: f.Allow, Dir: f.Dir,
		Recipe: f.Recipe, ImageOf: f.ImageSource, About: f.About, Mounts: f.Spec.Mounts,
		Volume: f.Spec.Volume, Labels: f.Labels, Notes: notes, SharedWith: sb.shares.list(),
		Sessions: []wire.SessionInfo{}}
	if f.Instance.ID == "" {
		i.Image, i.Network, i.Limits, i.User = f.Spec.Image, f.Spec.Network, f.Spec.Limits,
			f.Spec.User
	}
	i.Secrets = sb.network.secrets(f)
	sb.expiry.fillLife(&i, f)
	if sb.reg.options.Command != nil {
		i.Command = sb.reg.options.Command(f.Name)
	}
	for _, l := range sb.sessions.All() {
		if !l.Final() {
			i.Sessions = append(i.Sessions, l.Info())
		}
	}
	slices.SortFunc(i.Sessions, func(a, b wire.SessionInfo) int {
		return strings.Compare(a.Name, b.Name)
	})
	return i
}
