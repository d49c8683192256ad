package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/admission"
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
	for key, at := range map[string]*int64{"record.quota": &o.RecordQuota, "record.total": &o.RecordTotal} {
		if *at, err = sandbox.ParseSize(c.value(key)); err != nil {
			return o, fmt.Errorf("%s: %w", key, err)
		}
	}
	for key, at := range map[string]*time.Duration{"record.keep": &o.RecordKeep, "ttl": &o.TTL, "delete_after": &o.DeleteAfter} {
		if *at, err = command.ParseAge(c.value(key)); err != nil {
			return o, fmt.Errorf("%s: %w", key, err)
		}
	}
	if o.Limits, err = c.limits(); err != nil {
		return o, err
	}
	if o.Quota, err = c.quota(); err != nil {
		return o, err
	}
	if o.Total, err = c.total(); err != nil {
		return o, err
	}
	if o.Pool, err = c.pool(); err != nil {
		return o, err
	}
	if o.MinFree, err = parseQuota(c.value("disk.min_free")); err != nil {
		return o, fmt.Errorf("disk.min_free: %w", err)
	}
	if o.Allow, err = command.ParseAllow(c.value("allow")); err != nil {
		return o, fmt.Errorf("allow: %w", err)
	}
	if o.Connections, err = strconv.Atoi(c.value("connections")); err != nil {
		return o, fmt.Errorf("connections: %w", err)
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

// quota is what one owner may have.
func (c config) quota() (admission.Quota, error) {
	var q admission.Quota
	var err error
	if q.Sandboxes, err = strconv.Atoi(c.value("max_sandboxes")); err != nil {
		return q, fmt.Errorf("max_sandboxes: %w", err)
	}
	if q.Sessions, err = strconv.Atoi(c.value("quota.sessions")); err != nil {
		return q, fmt.Errorf("quota.sessions: %w", err)
	}
	if q.Connections, err = strconv.Atoi(c.value("quota.connections")); err != nil {
		return q, fmt.Errorf("quota.connections: %w", err)
	}
	if q.CPUs, err = strconv.ParseFloat(c.value("quota.cpus"), 64); err != nil {
		return q, fmt.Errorf("quota.cpus: %w", err)
	}
	for key, at := range map[string]*int64{"quota.memory": &q.Memory, "quota.disk": &q.Disk} {
		if *at, err = parseQuota(c.value(key)); err != nil {
			return q, fmt.Errorf("%s: %w", key, err)
		}
	}
	return q, nil
}

// total is what all owners may have together.
func (c config) total() (admission.Total, error) {
	var t admission.Total
	var err error
	if t.Sandboxes, err = strconv.Atoi(c.value("total.sandboxes")); err != nil {
		return t, fmt.Errorf("total.sandboxes: %w", err)
	}
	if t.Running, err = strconv.Atoi(c.value("total.running")); err != nil {
		return t, fmt.Errorf("total.running: %w", err)
	}
	return t, nil
}

// pool is what is booted ahead.
func (c config) pool() (lifecycle.PoolOptions, error) {
	size, err := strconv.Atoi(c.value("pool.size"))
	if err != nil {
		return lifecycle.PoolOptions{}, fmt.Errorf("pool.size: %w", err)
	}
	return lifecycle.PoolOptions{Size: size, Images: command.Words(c.value("pool.images"))}, nil
}

// parseQuota reads a size, or 0 for none.
func parseQuota(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	return sandbox.ParseSize(s)
}
