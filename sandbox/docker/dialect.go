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

// Engines of others speak Docker's API, as Podman's service does, and answer "created" to some requests that they did not heed. What such an
// engine would leave out in silence is here, all of it: it is had in another way, or refused. docs/isolation.md lists it.

// IsDockers reports whether an engine is Docker's own, which heeds everything that its API takes.
func IsDockers(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Engine" })
}

// speaker makes of an engine's facts those of one that only speaks Docker's API.
func (f *facts) speaker(info system.Info) {
	f.speaks = true
	f.runtimes = []string{f.defaultRuntime} // it takes that one, whatever it is asked for
	f.sharedGroups = info.CgroupVersion == "1"
}

// mayBuild refuses an engine whose builder cannot hold steps to the limits of a sandbox.
func (f facts) mayBuild() error {
	if !f.speaks {
		return nil
	}
	return hinted{fmt.Errorf("build an image: %w: the engine's builder does not tell of its steps, which would have no limits of processes, terminals and disk", sandbox.ErrUnsupported),
		"name an image that was built elsewhere (--image), and do what its steps do in setup:"}
}

// mayMount refuses paths that the engine would take apart: it makes a list with commas of what is asked for in fields of their own, and what
// follows a comma would be an option.
func (f facts) mayMount(paths ...string) error {
	for _, path := range paths {
		if f.speaks && strings.ContainsAny(path, ",\"\r\n") {
			return hinted{fmt.Errorf("mount %q: %w: the engine takes such a path apart at commas, quotes and ends of lines", path, sandbox.ErrUnsupported),
				"give the directory another name, or use Docker's own engine"}
		}
	}
	return nil
}

// filter returns the file of the system calls that sandboxes have where the engine's own default is not Docker's: Podman's lets through
// unshare, mount and keyctl, upon which root in a sandbox has every capability in a namespace of its own. Empty leaves the engine's.
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

// resolver returns the resolv.conf of sandboxes whose network the daemon carries, where the engine makes none for a container without a
// network, whatever name server it is asked for. Empty leaves it to the engine.
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

// dockersNames gives images the names and numbers that Docker's engine has for them: without the registry that is meant where none is said,
// and with the kind of the parent's sum.
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
