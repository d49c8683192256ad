package main

import (
	"fmt"
	"strconv"

	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/httpd/agentrun"
	"github.com/sandboxd/sandboxd/sandbox"
)

// noPackages is a whitelist of none.
const noPackages = "none"

// agentRun is how code of POST /v1/run/ is run: AgentRun's options, by its names.
func (c config) agentRun() (o agentrun.Options, err error) {
	o.DependenciesWhitelist = command.Words(c.value("agentrun.dependencies_whitelist"))
	if c.value("agentrun.dependencies_whitelist") == noPackages {
		o.DependenciesWhitelist = nil
	}
	o.CachedDependencies = command.Words(c.value("agentrun.cached_dependencies"))
	o.Image = c.value("agentrun.image")
	if network := c.value("agentrun.network"); network != "" {
		if o.Network, _, err = command.ParseNetwork(network); err != nil {
			return o, fmt.Errorf("agentrun.network: %w", err)
		}
	}
	if o.InstallFrom, err = command.ParseAllow(c.value("agentrun.install_from")); err != nil {
		return o, fmt.Errorf("agentrun.install_from: %w", err)
	}
	for key, at := range map[string]*int64{"agentrun.memory_limit": &o.MemoryLimit, "agentrun.memswap_limit": &o.MemswapLimit} {
		if *at, err = sandbox.ParseSize(c.value(key)); err != nil {
			return o, fmt.Errorf("%s: %w", key, err)
		}
	}
	if o.CPUQuota, err = strconv.ParseInt(c.value("agentrun.cpu_quota"), 10, 64); err != nil {
		return o, fmt.Errorf("agentrun.cpu_quota: %w", err)
	}
	if o.Timeout, err = command.ParseAge(c.value("agentrun.timeout")); err != nil {
		return o, fmt.Errorf("agentrun.timeout: %w", err)
	}
	if o.Warm, err = strconv.Atoi(c.value("agentrun.warm")); err != nil {
		return o, fmt.Errorf("agentrun.warm: %w", err)
	}
	if o.Parallel, err = strconv.Atoi(c.value("agentrun.parallel")); err != nil {
		return o, fmt.Errorf("agentrun.parallel: %w", err)
	}
	if err := o.Check(); err != nil {
		return o, usage("agentrun."+err.Error(), "see: sandboxd config show --origin")
	}
	return o, nil
}

func isWhitelist(s string) error {
	if s == "*" || s == noPackages {
		return nil
	}
	return isPackages(s)
}

func isPackages(s string) error {
	for _, name := range command.Words(s) {
		if name != "*" && !agentrun.IsPackage(name) {
			return fmt.Errorf("%q is no name of a package", name)
		}
	}
	return nil
}
