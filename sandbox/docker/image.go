package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A registry that has not said anything for so long is not there.
const pullSilence = 10 * time.Second

// images makes, finds and removes images, and decides who may boot which.
type images struct {
	engine    *engine
	instances *instances

	make  func(ctx context.Context, ref string, progress func(string)) error // Options.Build
	makes func(ref string) bool                                              // Options.Builds
}

// image is what an image brings to a sandbox.
type image struct {
	id       string
	size     int64 // bytes
	arch     string
	restored bool // config is of the image below: this one was made of a sandbox
	config   dockerspec.DockerOCIImageConfig
}

// image finds ref on the engine. What is missing is built, if it is the default image or another one of ours, or pulled.
func (im *images) image(ctx context.Context, ref string, progress func(string)) (image, error) {
	got, err := im.engine.inspectImage(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) {
		return got, err
	}
	if isSnapshot(ref) || strings.HasPrefix(ref, buildPrefix) {
		return image{}, err
	}
	if ref == sandbox.DefaultImage || im.makes != nil && im.makes(ref) {
		// Never pulled: whoever takes that name in a public registry would run in every sandbox.
		if im.make == nil {
			return image{}, hinted{err, "build it: images/base/build"}
		}
		progress("building " + ref)
		if err := im.make(ctx, ref, progress); err != nil {
			return image{}, fmt.Errorf("build %s: %w", ref, err)
		}
		return im.engine.inspectImage(ctx, ref)
	}
	if err := im.engine.pull(ctx, ref, progress); err != nil {
		return image{}, err
	}
	return im.engine.inspectImage(ctx, ref)
}

func (e *engine) inspectImage(ctx context.Context, ref string) (image, error) {
	var got client.ImageInspectResult
	err := e.call(ctx, e.limits.quick, "look up image", func(ctx context.Context) (err error) {
		got, err = e.api.ImageInspect(ctx, ref)
		return err
	})
	switch {
	case cerrdefs.IsNotFound(err):
		return image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	case err != nil:
		return image{}, err
	case got.Os != "" && got.Os != "linux":
		return image{}, fmt.Errorf("image %s: %w: it is for %s", ref, sandbox.ErrUnsupported, got.Os)
	}
	i := image{id: got.ID, size: got.Size, arch: got.Architecture}
	if got.Config != nil {
		i.config = *got.Config
		if isSnapshot(ref) || len(got.RepoTags) > 0 && isSnapshot(dockersName(got.RepoTags[0])) {
			if err := originalConfig(&i.config); err != nil {
				return image{}, fmt.Errorf("image %s: %w", ref, err)
			}
			i.restored = true
		}
	}
	return i, nil
}

// Resolve returns the ID of an image that is here. See sandbox.Finder.
func (im *images) Resolve(ctx context.Context, ref string) (string, error) {
	ref, err := parseImage(ref)
	if err != nil {
		return "", err
	}
	i, err := im.engine.inspectImage(ctx, ref)
	return i.id, err
}

// pull fetches ref, telling a person how it goes. A registry that does not answer ends it within pullSilence; one that
// answers may take its time.
func (e *engine) pull(ctx context.Context, ref string, progress func(string)) error {
	noImage := func(err error) error {
		return hinted{fmt.Errorf("%w: %s is not here and could not be pulled: %w", sandbox.ErrNoImage, ref, err),
			"check the name and docker pull " + ref + ", or leave --image out for " + sandbox.DefaultImage}
	}
	progress("pulling " + ref)
	silent := fmt.Errorf("registry did not answer within %v", pullSilence)
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(pullSilence, func() { cancel(silent) })
	defer watchdog.Stop()
	fail := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("pull %s: %w", ref, context.Cause(ctx))
		case pulling.Err() != nil:
			return noImage(context.Cause(pulling))
		case isUnreachable(err) && client.IsErrConnectionFailed(err):
			return hinted{fmt.Errorf("pull %s: %w: %w", ref, sandbox.ErrEngine, err), unreachableHint(err)}
		}
		return noImage(err)
	}
	stream, err := e.api.ImagePull(pulling, ref, client.ImagePullOptions{})
	if err != nil {
		return fail(err)
	}
	defer stream.Close()
	last := make(map[string]string) // status by layer: a line for each change, not for each byte
	for message, err := range stream.JSONMessages(pulling) {
		if err != nil {
			return fail(err)
		}
		watchdog.Reset(pullSilence)
		if message.Error != nil {
			return fail(message.Error)
		}
		if message.Status != "" && last[message.ID] != message.Status {
			last[message.ID] = message.Status
			progress(strings.TrimPrefix(message.ID+": "+message.Status, ": "))
		}
	}
	return nil
}

// parseImage reads an image reference; a name without a tag means :latest, as everywhere.
func parseImage(ref string) (string, error) {
	if ref == "" {
		return sandbox.DefaultImage, nil
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	return reference.FamiliarString(reference.TagNameOnly(named)), nil
}

// defaultPath is what engines give a container whose image names none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// trustVariables name the certificate authorities to the programs that people use: SSL_CERT_FILE alone does not reach pip.
var trustVariables = []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
	"CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO"}

// guestConfig is what the guest is told of the image and the spec, without keys.
func guestConfig(spec sandbox.Spec, config dockerspec.DockerOCIImageConfig, trust bool) wire.GuestConfig {
	g := wire.GuestConfig{Version: wire.Version, Name: spec.Name, Socket: guestSocket, User: spec.User,
		Workdir: config.WorkingDir, StopSignal: config.StopSignal, Sudo: spec.Sudo, Sessions: int(spec.Limits.Sessions)}
	if spec.Workdir != "" {
		g.Workdir = spec.Workdir
	}
	if spec.Network.Carried() && spec.Via != sandbox.ViaProxy {
		g.TunSocket = guestTun
	}
	if g.User == "" {
		g.User = config.User
	}
	g.Env = mergeEnv([]string{"PATH=" + defaultPath}, config.Env)
	if trust {
		for _, name := range trustVariables {
			g.Env = mergeEnv(g.Env, []string{name + "=" + guestCA})
		}
	}
	if spec.Via == sandbox.ViaProxy {
		g.Env = mergeEnv(g.Env, wire.ProxyEnv())
	}
	g.Env = mergeEnv(g.Env, spec.Env)
	if spec.Entrypoint == sandbox.EntrypointSession {
		if argv := slices.Concat(config.Entrypoint, config.Cmd); !isShell(argv) {
			g.Entrypoint = argv
		}
	}
	return g
}

// userOf is who a guest's sessions run as, as a person is told.
func userOf(g wire.GuestConfig) string {
	if g.User == "" {
		return "root"
	}
	return g.User
}

// mergeEnv is base with the variables of more in place of those of the same name.
func mergeEnv(base, more []string) []string {
	out := slices.Clone(base)
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		at := slices.IndexFunc(out, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		if at < 0 {
			out = append(out, kv)
		} else {
			out[at] = kv
		}
	}
	return out
}

// isShell tells an image that has nothing to run from one that has: its command is a shell that would read commands from a
// terminal, as nearly every base image's is.
func isShell(argv []string) bool {
	if len(argv) == 0 {
		return true
	}
	if !slices.Contains([]string{"sh", "bash", "ash", "dash", "zsh", "ksh", "fish"}, path.Base(argv[0])) {
		return false
	}
	return !slices.ContainsFunc(argv[1:], func(arg string) bool { return arg != "-l" && arg != "-i" && arg != "--login" && arg != "-il" })
}
