package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
)

// hub is what the configuration says of the hub: how sandboxes are made, what they may have and for how long, what is recorded. Who it
// is for and what it stands on, the daemon adds.
func (c config) hub() (o gateway.Options, err error) {
	o = gateway.Options{
		Options: lifecycle.Options{
			Bridge:       command.Words(c.value("bridge")),
			Engine:       strings.Fields(c.value("docker_options")),
			Image:        c.value("image"),
			Isolation:    c.value("isolation"),
			Dirs:         dirRules(c),
			RecordStrict: c.value("record.mode") == recordStrict,
		},
		Hook: hookOptions(c),
	}
	o.Pool.Images = command.Words(c.value("pool.images"))
	if err := cmp.Or(
		read(c, sandbox.ParseSize, map[string]*int64{"record.quota": &o.RecordQuota, "record.total": &o.RecordTotal}),
		read(c, command.ParseAge, map[string]*time.Duration{
			"record.keep": &o.RecordKeep, "ttl": &o.TTL, "delete_after": &o.DeleteAfter,
		}),
		read(c, parseQuota, map[string]*int64{
			"quota.memory": &o.Quota.Memory, "quota.disk": &o.Quota.Disk, "disk.min_free": &o.MinFree,
		}),
		read(c, strconv.Atoi, map[string]*int{
			"max_sandboxes": &o.Quota.Sandboxes, "quota.sessions": &o.Quota.Sessions,
			"quota.connections": &o.Quota.Connections, "connections": &o.Connections,
			"total.sandboxes": &o.Total.Sandboxes, "total.running": &o.Total.Running, "pool.size": &o.Pool.Size,
		}),
		read(c, parseFloat, map[string]*float64{"quota.cpus": &o.Quota.CPUs}),
	); err != nil {
		return o, err
	}
	if o.Limits, err = c.limits(); err != nil {
		return o, err
	}
	if o.Allow, err = command.ParseAllow(c.value("allow")); err != nil {
		return o, fmt.Errorf("allow: %w", err)
	}
	if o.Closed, err = command.ParseClosed(c.value("closed")); err != nil {
		return o, fmt.Errorf("closed: %w", err)
	}
	if o.Network, o.Via, err = command.ParseNetwork(c.value("network")); err != nil {
		return o, fmt.Errorf("network: %w", err)
	}
	return o, nil
}

// limits are those of sandboxes that ask for none, as far as somebody has said so: the rest is the backend's own, which knows
// what its machine has.
func (c config) limits() (sandbox.Limits, error) {
	var l sandbox.Limits
	for _, d := range sandbox.AllLimits {
		s := c.find("limits." + d.Name)
		if s.from == "default" {
			continue
		}
		if err := d.Set(&l, s.value); err != nil {
			return l, usage(fmt.Sprintf("%s: %s %q: %v", s.from, s.key, s.value, err), s.help)
		}
	}
	if err := l.Check(); err != nil {
		return l, usage("limits."+err.Error(), "see: sandboxd config show --origin")
	}
	return l, nil
}

// read sets values to what the configuration has for their keys.
func read[T any](c config, parse func(string) (T, error), values map[string]*T) error {
	for key, at := range values {
		v, err := parse(c.value(key))
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		*at = v
	}
	return nil
}

func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// parseQuota reads a size, or 0 for none.
func parseQuota(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	return sandbox.ParseSize(s)
}
