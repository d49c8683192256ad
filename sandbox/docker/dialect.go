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
	"github.com/sandboxd/sandboxd/sandbox/docker/usage"
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

// mayBuild rejects an engine whose builder cannot enforce a sandbox's limits on steps.
func (f facts) mayBuild() error {
	if !f.compatible && !f.remote {
		return nil
	}
	why := "the engine's builder does not report its steps"
	if f.remote {
		why = "the engine is remote, and its steps cannot be measured"
	}
	return sandbox.Hint(fmt.Errorf(
		"build an image: %w: %s, so processes, terminals and disk would be unlimited",
		sandbox.ErrUnsupported, why),
		"use an image that was built elsewhere (--image), and move its steps to setup:")

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
	return bounded(c.State.Pid, c.ID, limits)
}

// bounded returns an error if the process pid of the container ref does not have the limits l.
func bounded(pid int, ref string, l sandbox.Limits) error {
	got, err := usage.BoundsOf(pid, ref)
	if err != nil {
		return sandbox.Hint(
			fmt.Errorf("limits: %w: they cannot be read: %w", sandbox.ErrUnsupported, err),
			"a daemon in a container needs the machine's processes and control groups (--pid host "+
				"--cgroupns host)")

	}
	const hundredth = 0.01 // of a processor: systemd rounds
	var ignored []string
	for _, limit := range []struct {
		of          string
		asked, kept float64
	}{
		{"memory", float64(l.Memory), got.Memory},
		{"processes", float64(l.PIDs), got.PIDs},
		{"cpus", l.CPUs + hundredth, got.CPUs},
	} {
		if limit.kept > limit.asked {
			ignored = append(ignored, limit.of)
		}
	}
	if len(ignored) == 0 {
		return nil
	}
	return sandbox.Hint(fmt.Errorf("limits: %w: the engine started the container without those of %s",
		sandbox.ErrUnsupported, strings.Join(ignored, ", ")),
		"run the engine as root; as another user it needs version 2 of control groups")

}

// filter returns the file of the seccomp profile, for an engine whose default is not Docker's.
// Podman's default allows unshare, mount and keyctl, and so all capabilities in a new user
// namespace. Empty means the engine's default.
func (fs *files) filter(f facts) (string, error) {
	if !f.compatible {
		return "", nil
	}
	text, err := systemCalls()
	if err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	path, err := fs.copies.write(text, "seccomp", 0o444)
	if err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	return path, nil
}

// resolver returns the resolv.conf of sandboxes whose network the daemon carries, for an engine
// that writes none for a container without a network. Empty means the engine's own.
func (fs *files) resolver(f facts, spec sandbox.Spec) (string, error) {
	if !f.compatible || !spec.Network.Carried() || spec.Via == sandbox.ViaProxy {
		return "", nil
	}
	path, err := fs.copies.write([]byte("nameserver "+netip.AddrFrom4(wire.TunDNS).String()+"\n"),
		"resolv", 0o444)
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
