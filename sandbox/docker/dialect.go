package docker

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/distribution/reference"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"github.com/moby/profiles/seccomp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Other engines speak Docker's API, such as Podman's service, and answer "created" to requests
// that they did not fully honor. Everything that such an engine would silently leave out is
// handled here: in another way, or by refusing. docs/concepts/isolation.md lists it.

// IsDockers reports whether an engine is Docker's own, which honors all of its API.
func IsDockers(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Engine" })
}

// speaker adapts the facts of an engine that only speaks Docker's API.
func (f *facts) speaker(info system.Info) {
	f.speaks = true
	f.runtimes = []string{f.defaultRuntime} // it takes that one, whatever it is asked for
	f.sharedGroups = info.CgroupVersion == "1"
}

// mayBuild refuses an engine whose builder cannot hold steps to a sandbox's limits.
func (f facts) mayBuild() error {
	if !f.speaks {
		return nil
	}
	return hinted{fmt.Errorf("build an image: %w: the engine's builder does not tell of its steps, which would have no limits of processes, terminals and disk", sandbox.ErrUnsupported),
		"name an image that was built elsewhere (--image), and do what its steps do in setup:"}
}

// mayMount refuses paths that the engine would misread: it joins options with commas, and text
// after a comma would be another option.
func (f facts) mayMount(paths ...string) error {
	for _, path := range paths {
		if f.speaks && strings.ContainsAny(path, ",\"\r\n") {
			return hinted{fmt.Errorf("mount %q: %w: the engine takes such a path apart at commas, quotes and ends of lines", path, sandbox.ErrUnsupported),
				"give the directory another name, or use Docker's own engine"}
		}
	}
	return nil
}

// filter returns the file of the seccomp profile, for an engine whose default is not Docker's:
// Podman's allows unshare, mount and keyctl, and so all capabilities in a new user namespace.
// Empty means the engine's default.
func (fs *files) filter(f facts) (string, error) {
	if !f.speaks {
		return "", nil
	}
	text, err := json.Marshal(seccomp.DefaultProfile())
	if err != nil {
		return "", fmt.Errorf("filter of system calls: %w", err)
	}
	path, err := fs.copies.write(text, "seccomp", 0o444)
	if err != nil {
		return "", fmt.Errorf("filter of system calls: %w", err)
	}
	return path, nil
}

// resolver returns the resolv.conf of sandboxes whose network the daemon carries, for an engine
// that writes none for a container without a network. Empty means the engine's.
func (fs *files) resolver(f facts, spec sandbox.Spec) (string, error) {
	if !f.speaks || !spec.Network.Carried() || spec.Via == sandbox.ViaProxy {
		return "", nil
	}
	path, err := fs.copies.write([]byte("nameserver "+netip.AddrFrom4(wire.TunDNS).String()+"\n"), "resolv", 0o444)
	if err != nil {
		return "", fmt.Errorf("resolv.conf: %w", err)
	}
	return path, nil
}

// dockersNames rewrites names and IDs of images as Docker's engine has them: without the default
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
