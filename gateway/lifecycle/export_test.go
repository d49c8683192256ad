package lifecycle

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// What tests shorten, observe and call.
func (o *Options) PlanLife(s NewSpec, b sandbox.Backend) (Life, error) { return o.planLife(s, b) }
func (o *Options) Made(f func(*Registry))                              { o.made = f }
func (o *Options) At(f func(step string))                              { o.at = f }
func (o *Options) SetLateBoot(d time.Duration)                         { o.lateBoot = d }
func (o *Options) SetDiskEvery(d time.Duration)                        { o.diskEvery = d }
func (o *Options) SetDiskWithin(d time.Duration)                       { o.diskWithin = d }
func (o *Options) SetPackagesWithin(d time.Duration)                   { o.packagesWithin = d }
func (o *Options) SetProxyAddress(address string)                      { o.proxyAddress = address }
func (reg *Registry) Pooled() *pool.Pool[*Sandbox, Record]             { return reg.pooled.Pool }
func (reg *Registry) Renew(ctx context.Context)                        { reg.pooled.renew(ctx) }
func (reg *Registry) CheckExpiry()                                     { reg.checkExpiry() }

func (sb *Sandbox) Transition(ctx context.Context, change func(*Record)) error {
	return sb.transition(ctx, change)
}
func (sb *Sandbox) Forget()                        { sb.reg.pool.Forget(sb.id) }
func (sb *Sandbox) Lock(ctx context.Context) error { return sb.lock(ctx) }
func (sb *Sandbox) Unlock()                        { sb.unlock() }
func (sb *Sandbox) Disconnect(cause error)         { sb.guest.disconnect(cause) }
func (sb *Sandbox) SetEndReason(reason string)     { sb.setEndReason(reason) }
func (sb *Sandbox) Observed(ctx context.Context, state State, reason string) {
	sb.observed(ctx, state, reason)
}
func (sb *Sandbox) Expiring() bool           { return sb.expiry.under.Load() }
func (sb *Sandbox) Connected(e egress.Event) { sb.network.connected(e) }
func (sb *Sandbox) Dial(ctx context.Context) (*connect.Control, error) {
	return sb.guest.control(ctx, nobody, nil)
}

// Refresh compares the sessions with those of the guest, as on a new connection.
func (sb *Sandbox) Refresh(ctx context.Context, c *connect.Control) error {
	return new(link).refresh(ctx, sb.guest, c)
}
func (sb *Sandbox) RunInside(ctx context.Context, command string, limit int) ([]byte, error) {
	return runInside(ctx, sb, sb.get().Instance, command, limit)
}

// Row is f as the store has it.
func (f Record) Row(id string) (store.Sandbox, error) { return f.row(id) }

// AsPooled is f as a pooled sandbox.
func (f Record) AsPooled(id string) Record { return f.asPooled(id) }

// Sweeps is how often a young daemon sweeps.
var Sweeps = len(sweeps)

func (reg *Registry) Boots() int { return cap(reg.boots) }

func (reg *Registry) Plan(owner string, spec NewSpec) (Record, error) {
	return reg.options.plan(owner, spec)
}

func DialRunning[C any](ctx context.Context, sb *Sandbox, progress func(string),
	dial func(context.Context, sandbox.Instance) (C, error)) (C, error) {
	return dialRunning(ctx, sb.guest, nobody, progress, dial)
}

const (
	ClockSettles = clockSettles
	DiskTries    = diskTries
	FirstRetry   = firstRetry
	MaxNameShown = maxNameShown
	MaxPackages  = maxPackages

	Nobody = nobody
	Copied = copied
)
