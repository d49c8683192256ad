package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	ref "github.com/distribution/reference"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/httpd/agentrun"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
)

// NoHTTP is the address that disables the HTTP API.
const NoHTTP = none

// maxPool is the largest pool of an image: each pooled sandbox is a running container.
const maxPool = 1000

const maxCount = 1 << 30

// check returns the error of each setting by itself, or nil. An error reads "problem; what to
// write".
func (c *Config) check() map[string]error {
	wrong := map[string]error{
		"state":       required(c.State),
		"ssh":         address(c.SSH),
		"http":        addressOrNone(c.HTTP),
		"backend":     oneOf("backend", c.Backend),
		"network":     networkRequired(c.Network),
		"allow":       allow(c.Allow),
		"closed":      closed(c.Closed),
		"connections": between(c.Connections, 0, maxCount),

		"docker_options": openOptions(c.DockerOptions),
		"mount_roots":    absolute(c.MountRoots),
		"max_sandboxes":  between(c.MaxSandboxes, 1, maxCount),
		"prefix_key":     prefixKey(c.PrefixKey),
		"alert":          oneOf("alert", c.Alert),

		"quota.sessions":    between(c.Quota.Sessions, 0, maxCount),
		"quota.connections": between(c.Quota.Connections, 0, maxCount),
		"quota.cpus":        cores(c.Quota.CPUs),
		"total.sandboxes":   between(c.Total.Sandboxes, 1, maxCount),
		"total.running":     between(c.Total.Running, 0, maxCount),
		"pool.size":         between(c.Pool.Size, 0, maxPool),
		"pool.images":       imageNames(c.Pool.Images),
		"record.quota":      positive(c.Record.Quota),
		"record.total":      positive(c.Record.Total),

		"log.max_size":  atLeastMiB(c.Log.MaxSize),
		"log.max_files": between(c.Log.MaxFiles, 0, maxCount),

		"hook.exec": program(c.Hook.Exec),
		"hook.url": cmp.Or(httpURL(c.Hook.URL),
			attention.CheckURL(c.Hook.Format, c.Hook.URL)),
		"hook.format": oneOf("hook.format", c.Hook.Format),
		"hook.secret": hookSecret(c.Hook.Secret),

		"python.memory":   positive(c.Python.Memory),
		"python.options":  docker.CheckOptions(c.Python.Options),
		"python.dir":      required(c.Python.Dir),
		"openai.base_url": httpURL(c.OpenAI.BaseURL),
		"e2b.templates":   templateImages(c.E2B.Templates),

		"agentrun.dependencies_whitelist": packages(c.AgentRun.DependenciesWhitelist),
		"agentrun.cached_dependencies":    packages(c.AgentRun.CachedDependencies),
		"agentrun.cpu_quota":              between(c.AgentRun.CPUQuota, 1, maxCount),
		"agentrun.memory_limit":           positive(c.AgentRun.MemoryLimit),
		"agentrun.memswap_limit":          positive(c.AgentRun.MemswapLimit),
		"agentrun.install_from":           allow(c.AgentRun.InstallFrom),
		"agentrun.warm":                   between(c.AgentRun.Warm, 0, maxPool),
		"agentrun.parallel":               between(c.AgentRun.Parallel, 1, maxCount),

		"log_level":     oneOf("log_level", c.LogLevel),
		"record.mode":   oneOf("record.mode", c.Record.Mode),
		"python.images": oneOf("python.images", c.Python.Images),
	}
	limits := c.Limits.SandboxLimits()
	for _, d := range sandbox.AllLimits {
		text := d.Text(limits)
		if text == "" {
			text = "0"
		}
		wrong["limits."+d.Name] = d.Set(new(sandbox.Limits), text)
	}
	return wrong
}

// crossCheck returns the errors of combinations of settings, by the key to change.
func (c *Loaded) crossCheck() map[string]error {
	if len(c.Errors) > 0 {
		return nil // they may be the cause
	}
	wrong := make(map[string]error)
	name := func(section string, err error) {
		if err == nil {
			return
		}
		key, what, ok := strings.Cut(err.Error(), ": ")
		if key = section + "." + key; !ok || find(key) == nil {
			key, what = section, err.Error()
		}
		wrong[key] = errors.New(what)
	}
	name("limits", c.ExplicitLimits().Check())
	runs := c.AgentRunOptions()
	name("agentrun", runs.Check())
	return wrong
}

// ExplicitLimits returns the limits that a source sets, and zero for the others. The backend sets
// those, because it knows its machine.
func (c *Loaded) ExplicitLimits() sandbox.Limits {
	all := c.Limits.SandboxLimits()
	var l sandbox.Limits
	for _, d := range sandbox.AllLimits {
		if c.IsSet("limits." + d.Name) {
			_ = d.Set(&l, d.Text(all)) // checked when it was loaded
		}
	}
	return l
}

// AgentRunOptions returns the configured options of the AgentRun-compatible API.
func (c *Config) AgentRunOptions() agentrun.Options {
	a := &c.AgentRun
	return agentrun.Options{
		DependenciesWhitelist: a.DependenciesWhitelist, CachedDependencies: a.CachedDependencies,
		CPUQuota: a.CPUQuota, MemoryLimit: int64(a.MemoryLimit),
		MemswapLimit: int64(a.MemswapLimit),
		Timeout:      time.Duration(a.Timeout), Image: a.Image, Network: a.Network.Mode,
		InstallFrom: a.InstallFrom, Warm: a.Warm, Parallel: a.Parallel,
	}
}

// ClosedRanges returns the ranges of the setting closed; nil means the default ones.
func (c *Config) ClosedRanges() []netip.Prefix {
	ranges, _ := command.ParseClosed(strings.Join(c.Closed, " ")) // checked when it was loaded
	return ranges
}

func required(p Path) error {
	if p == "" {
		return errors.New("empty; write an absolute path")
	}
	return nil
}

func networkRequired(n Network) error {
	if n.Mode == "" {
		return errors.New("empty; write filtered, allowlist, none or bridge")
	}
	return nil
}

func absolute(paths []string) error {
	for _, p := range paths {
		if err := new(Path).UnmarshalText([]byte(p)); err != nil || p == "" {
			return fmt.Errorf("%q is not an absolute path; write a list of them, or []", p)
		}
	}
	return nil
}

func address(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("not an address; write HOST:PORT")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errors.New("not an address; write HOST:PORT with a port from 0 to 65535")
	}
	return nil
}

func addressOrNone(s string) error {
	if s == NoHTTP {
		return nil
	}
	return address(s)
}

func between[N int | int64](n, least, most N) error {
	if n < least || n > most {
		return fmt.Errorf("out of range; write a number from %d to %d", least, most)
	}
	return nil
}

func positive(s Size) error {
	if s <= 0 {
		return errors.New("out of range; write a size above 0, such as 256m")
	}
	return nil
}

func atLeastMiB(s Size) error {
	if s < 1<<20 {
		return errors.New("out of bounds; write a size from 1m, such as 10m")
	}
	return nil
}

func cores(n float64) error {
	if !(n >= 0 && n <= 1<<20) { // also true for NaN
		return errors.New("not a number of cores; write one such as 8 or 2.5, or 0 for no limit")
	}
	return nil
}

func allow(list []string) error {
	_, err := command.ParseAllow(strings.Join(list, " "))
	return err
}

func closed(list []string) error {
	_, err := command.ParseClosed(strings.Join(list, " "))
	return err
}

func imageNames(list []string) error {
	for _, image := range list {
		if _, err := ref.ParseNormalizedNamed(image); err != nil {
			return fmt.Errorf("%q is not an image name: %w", image, err)
		}
	}
	return nil
}

func templateImages(t Templates) error {
	for _, image := range t {
		if err := imageNames([]string{image}); err != nil {
			return err
		}
	}
	return nil
}

// openOptions checks options with or without a value. An option may have several values.
func openOptions(list []string) error {
	for _, option := range list {
		if slices.Contains(docker.OptionNames(), option) {
			continue
		}
		if err := docker.CheckOptions([]string{option}); err != nil {
			return err
		}
	}
	return nil
}

func prefixKey(name string) error {
	_, err := view.ParsePrefix(name)
	return err
}

func program(argv []string) error {
	if len(argv) > 0 && argv[0] == "" {
		return errors.New("no program; write its path first")
	}
	return nil
}

func hookSecret(s string) error {
	_, err := attention.CheckSecret(s)
	return err
}

func httpURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("not a URL; write http://HOST or https://HOST")
	}
	return nil
}

func packages(list []string) error {
	for _, name := range list {
		if name != "*" && !agentrun.IsPackage(name) {
			return fmt.Errorf("%q is not a package name; write names as for pip", name)
		}
	}
	return nil
}

// oneOf checks a setting that has a fixed set of values.
func oneOf(key, value string) error {
	f := find(key)
	if slices.Contains(f.OneOf, value) {
		return nil
	}
	last := len(f.OneOf) - 1
	words := strings.Join(f.OneOf[:last], ", ") + " or " + f.OneOf[last]
	return fmt.Errorf("must be %s; %s", words, f.Meaning)
}
