package docker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/usage"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Other engines speak Docker's API, such as Podman's service, and answer "created" to requests that
// they did not fully honor. This file handles everything that such an engine would silently ignore:
// it does it in another way, or rejects it. docs/concepts/isolation.md lists it.

// IsDockers reports whether an engine is Docker's own, which honors all of its API.
func IsDockers(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components,
		func(c system.ComponentVersion) bool { return c.Name == "Engine" })
}

// adapt adjusts the facts of an engine that speaks Docker's API but is not Docker.
func (f *facts) adapt(info system.Info) {
	f.compatible = true
	f.runtimes = []string{f.defaultRuntime} // it ignores the runtime of a request
	f.sharedGroups = info.CgroupVersion == "1"
}

// mayMount rejects paths that the engine would misread: it joins options with commas, so text after
// a comma would become another option.
func (f facts) mayMount(paths ...string) error {
	for _, path := range paths {
		if f.compatible && strings.ContainsAny(path, ",\"\r\n") {
			return sandbox.Hint(fmt.Errorf(
				"mount %q: %w: the engine splits paths at commas, quotes and line ends", path,
				sandbox.ErrUnsupported),
				"rename the directory, or use Docker's own engine")
		}
	}
	return nil
}

// enforces rejects a container that has just started without its limits: rootless Podman ignores
// them with version 1 of control groups. Docker's engine reports what it cannot limit.
func (e *engine) enforces(ctx context.Context, c container.InspectResponse) error {
	f, err := e.facts(ctx)
	if err != nil || !f.compatible || f.remote {
		return err
	}
	r := c.HostConfig.Resources
	limits := sandbox.Limits{Memory: r.Memory, CPUs: float64(r.NanoCPUs) / 1e9}
	if r.PidsLimit != nil {
		limits.PIDs = *r.PidsLimit
	}
	return usage.Enforced(c.State.Pid, c.ID, limits)
}

// filter returns the file of the seccomp profile, for an engine whose default is not Docker's.
// Podman's default allows unshare, mount and keyctl, and so all capabilities in a new user
// namespace. Empty means the engine's default.
func filter(fs *machine.Files, f facts) (string, error) {
	if !f.compatible {
		return "", nil
	}
	text, err := systemCalls()
	if err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	path, err := fs.Write(text, "seccomp")
	if err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	return path, nil
}

// resolver returns the resolv.conf of sandboxes whose network the daemon carries, for an engine
// that writes none for a container without a network. Empty means the engine's own.
func resolver(fs *machine.Files, f facts, spec sandbox.Spec) (string, error) {
	if !f.compatible || !spec.Network.Carried() || spec.Via == sandbox.ViaProxy {
		return "", nil
	}
	path, err := fs.Write([]byte("nameserver "+netip.AddrFrom4(wire.TunDNS).String()+"\n"),
		"resolv")
	if err != nil {
		return "", fmt.Errorf("resolv.conf: %w", err)
	}
	return path, nil
}

// dockersNames rewrites names and IDs of images to the form of Docker's engine: without the default
// registry, and with the algorithm of the parent's digest.
func dockersNames(list []engineimage.Summary) []engineimage.Summary {
	for i := range list {
		for j, tag := range list[i].RepoTags {
			list[i].RepoTags[j] = dockersName(tag)
		}
		if p := list[i].ParentID; p != "" && !strings.Contains(p, ":") {
			list[i].ParentID = "sha256:" + p
		}
	}
	return list
}

func dockersName(tag string) string {
	named, err := reference.ParseNormalizedNamed(tag)
	if err != nil {
		return tag // <none>:<none>
	}
	return reference.FamiliarString(named)
}

// mayBind rejects an engine that would mount other directories than those of this machine.
func mayBind(all machine.Bound, f facts, runtime string) error {
	switch {
	case len(all.Paths()) == 0:
		return nil
	case f.rootless:
		return sandbox.Hint(fmt.Errorf(
			"mount %s: %w: the engine is rootless, and its users are not this machine's",
			all.Paths()[0], sandbox.ErrUnsupported),
			"use an engine that runs as root, or copy the files in: sandboxd cp")
	}
	if runtime == "" {
		runtime = f.defaultRuntime
	}
	if !passesDescriptors(runtime) {
		return sandbox.Hint(
			fmt.Errorf("mount %s: %w: isolation %s does not show which directory was mounted",
				all.Paths()[0], sandbox.ErrUnsupported, runtime),
			"use --isolation runc, or copy the files in: sandboxd cp")
	}
	return nil
}
