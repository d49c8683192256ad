package main

import (
	"cmp"
	"time"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes"
)

// hubOptions returns the options of the hub that the configuration sets: images, limits, lifetimes,
// recording. The daemon adds the owner, the store and the backends.
func hubOptions(c *config.Loaded) gateway.Options {
	o := gateway.Options{
		Options: lifecycle.Options{
			Bridge:       c.Bridge,
			Engine:       c.DockerOptions,
			Image:        c.Image,
			Isolation:    c.Isolation,
			Dirs:         dirRules(c),
			RecordStrict: c.Record.Mode == config.RecordStrict,
			RecordQuota:  int64(c.Record.Quota),
			RecordTotal:  int64(c.Record.Total),
			RecordKeep:   time.Duration(c.Record.Keep),
			TTL:          time.Duration(c.TTL),
			DeleteAfter:  time.Duration(c.DeleteAfter),
			Limits:       c.ExplicitLimits(),
			MinFree:      int64(c.Disk.MinFree),
			Allow:        c.Allow,
			Connections:  c.Connections,
			Closed:       c.ClosedRanges(),
			Network:      c.Network.Mode,
			Via:          c.Network.Via,
			Pool:         lifecycle.PoolOptions{Size: c.Pool.Size, Images: c.Pool.Images},
			Quota: admission.Quota{
				Sandboxes: c.MaxSandboxes, Sessions: c.Quota.Sessions,
				Connections: c.Quota.Connections, CPUs: c.Quota.CPUs,
				Memory: int64(c.Quota.Memory), Disk: int64(c.Quota.Disk),
			},
			Total: admission.Total{Sandboxes: c.Total.Sandboxes, Running: c.Total.Running},
		},
		Hook: hookOptions(c),
	}
	if c.Backend == kubernetes.Name { // what this machine can carry does not matter
		o.Boots = clusterBoots
		o.Total.Running = cmp.Or(o.Total.Running, o.Total.Sandboxes)
	}
	return o
}

// clusterBoots is how many pods may be starting at a time. Most of them wait: for a node, an image.
const clusterBoots = 256
