package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// booting is one run of Boot, or of the part of it that Start shares.
type booting struct {
	machine.Stages
	b *Backend

	madeDir bool
	// The engine got a request for a container; it may have made one even if the call failed.
	asked bool
	ref   string // the container, once known
	exit  int    // exit code of its guest, if it ended

	bundle      string // file with this machine's certificate authorities; empty: none
	authorities []byte // Spec.Authorities
}

// Boot creates and starts a container and returns when its guest has connected. See
// sandbox.Backend.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	s := &booting{b: b, Stages: machine.Stages{Entered: b.at}}
	inst, err := s.boot(ctx, spec)
	if err != nil {
		if left := s.undo(ctx, spec.ID); left != nil {
			err = fmt.Errorf("%w; %w", err, left)
		}
		return sandbox.Instance{}, s.Error(err)
	}
	return inst, nil
}

func (s *booting) boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	var none sandbox.Instance
	if err := s.Enter(ctx, sandbox.StageValidate); err != nil {
		return none, err
	}
	own, err := parseOptions(spec.Options)
	if err != nil {
		return none, err
	}
	spec.Env = slices.Concat(spec.Env, own.Env)
	if spec, err = validate(spec); err != nil {
		return none, err
	}
	if err := s.b.images.Names.MayBoot(spec); err != nil {
		return none, err
	}
	bound, err := machine.Bind(s.b.opts.Dirs, &spec)
	if err != nil {
		return none, err
	}
	unlock, err := s.b.instances.Lock(ctx, spec.ID)
	if err != nil {
		return none, err
	}
	defer unlock()

	p, f, err := s.plan(ctx, &spec, own, bound)
	if err != nil {
		return none, err
	}

	if err := s.Enter(ctx, sandbox.StageImage); err != nil {
		return none, err
	}
	img, err := s.b.images.Ensure(ctx, spec)
	if err != nil {
		return none, err
	}
	p.Image = img.ID
	if err := spec.Await(ctx); err != nil {
		return none, err
	}

	if err := s.Enter(ctx, sandbox.StageKeys); err != nil {
		return none, err
	}
	config := machine.GuestConfig(spec, img.Config.ImageConfig, p.ca(s.bundle))
	bound.Configure(&config)
	if f.remote {
		if config, err = remoteConfig(config, s.bundle); err != nil {
			return none, err
		}
	}
	k, err := guestconfig.NewKeys(config)
	if err != nil {
		return none, err
	}
	d, err := s.prepare(spec.ID, k)
	if err != nil {
		return none, err
	}

	inst := sandbox.Instance{Backend: Name, ID: spec.ID, Image: spec.Image, Digest: img.ID,
		Created: p.Created,
		User:    k.User(), Runtime: spec.Isolation, Network: spec.Network, Via: spec.Via,
		Mounts: spec.Mounts,
		Notes:  append(notes(p, f, img), bound.Notes...)}
	if inst.Runtime == "" {
		inst.Runtime = f.defaultRuntime
	}
	inst.Revision = machine.Revision(p.GuestFile, inst.Runtime)
	pid, err := s.launch(ctx, &p, inst.Runtime, spec.Limits.NoFile != 0, k, d)
	if err != nil {
		return none, err
	}
	inst.Ref = s.ref
	inst.Limits, inst.DiskQuota = p.Limits, p.Sized
	if inst.Limits.NoFile == 0 { // the engine's own
		inst.Limits.NoFile, _ = noFileOf(pid)
	}
	if err := s.b.state.WriteNote(spec.ID,
		guestconfig.Note{Name: spec.Name, Instance: inst}); err != nil {
		return none, err
	}
	if ctx.Err() != nil { // ended between the checks
		return none, context.Cause(ctx)
	}
	return inst, nil
}

// plan checks with the engine whether spec is possible, and sets fields of spec that were left
// open.
func (s *booting) plan(ctx context.Context, spec *sandbox.Spec, own options,
	dirs machine.Bound) (p plan, f facts, err error) {
	if err := s.Enter(ctx, sandbox.StageEngine); err != nil {
		return p, f, err
	}
	if f, err = s.b.engine.facts(ctx); err != nil {
		return p, f, err
	}
	p = plan{
		Daemon: s.b.opts.DaemonID, ID: spec.ID, Created: time.Now().UTC().Truncate(time.Second),
		Network: spec.Network, Sudo: spec.Sudo, Runtime: spec.Isolation, Logs: f.logs,
		RunDir: s.b.state.RunDir(spec.ID), Mounts: spec.Mounts, Options: own,
	}
	if p.Host, err = wire.ParseLabel("sandbox name", spec.Name); err != nil {
		// A pooled sandbox has no name yet, and no process in it may change the host name.
		p.Host = ""
	}
	p.Limits, err = fit(*spec, f, s.b.engine.cache.defaultNoFile(f))
	// Facts may be old: a runtime may have been installed.
	if errors.Is(err, sandbox.ErrUnsupported) {
		s.b.engine.cache.forget()
		if f, err = s.b.engine.facts(ctx); err == nil {
			p.Limits, err = fit(*spec, f, s.b.engine.cache.defaultNoFile(f))
		}
	}
	if err != nil {
		return p, f, err
	}
	if spec.Via, err = via(*spec, f); err != nil {
		return p, f, err
	}
	p.Via = spec.Via
	if err := own.fit(*spec, p.Limits.Memory, f); err != nil {
		return p, f, err
	}
	if err := mayBind(dirs, f, spec.Isolation); err != nil {
		return p, f, err
	}
	p.Sized = s.b.engine.cache.sized(f)
	if p.GuestFile, s.bundle, err = s.b.files.Place(f.arch, spec.Trust); err != nil {
		return p, f, err
	}
	s.authorities = spec.Authorities
	if err := machine.MayTrust(s.bundle, s.authorities); err != nil {
		return p, f, err
	}
	if s.bundle != "" {
		p.TrustDir = s.b.state.TrustDir(spec.ID)
	}
	if p.Filter, err = filter(s.b.files, f); err != nil {
		return p, f, err
	}
	if p.Resolver, err = resolver(s.b.files, f, *spec); err != nil {
		return p, f, err
	}
	if f.remote {
		return p, f, p.planRemote(f, *spec)
	}
	return p, f, f.mayMount(append(dirs.Paths(), p.GuestFile, p.RunDir, p.TrustDir)...)
}

// Revision returns the revision of an instance made now. See sandbox.Reviser.
func (b *Backend) Revision(ctx context.Context, spec sandbox.Spec) (string, error) {
	f, err := b.engine.facts(ctx)
	if err != nil {
		return "", err
	}
	guest, _, err := b.files.Place(f.arch, sandbox.TrustImage)
	if err != nil {
		return "", err
	}
	return machine.Revision(guest, cmp.Or(spec.Isolation, f.defaultRuntime)), nil
}

// prepare makes everything that must exist before the container: its directory, keys and sockets.
// It returns nil if the guest listens itself.
func (s *booting) prepare(id string, k guestconfig.Keys) (*guestsock.Server, error) {
	if err := os.Mkdir(s.b.state.Dir(id), 0o700); errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("sandbox %s: %w", id, fs.ErrExist)
	} else if err != nil {
		return nil, err
	}
	s.madeDir = true
	if k.Listens() {
		if len(s.authorities) > 0 {
			if err := s.b.state.writeAuthorities(id, s.authorities); err != nil {
				return nil, err
			}
		}
		return nil, s.b.state.WriteKeys(id, k)
	}
	if err := os.Mkdir(s.b.state.RunDir(id), 0o700); err != nil {
		return nil, err
	}
	if s.bundle != "" {
		if err := s.b.files.MakeTrust(s.b.state.TrustDir(id), s.authorities); err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
	}
	if err := s.b.state.WriteKeys(id, k); err != nil {
		return nil, err
	}
	return s.b.listen(id, k)
}

// listen opens the sockets on which a guest calls, and returns the one for SSH; nil if the guest
// listens itself.
func (b *Backend) listen(id string, k guestconfig.Keys) (*guestsock.Server, error) {
	if k.Listens() {
		return nil, nil
	}
	return b.sockets.OpenGuest(id, k.Guest.TunSocket != "")
}

// launch creates and starts the container, and returns its first process by its number on this
// machine. If the engine cannot raise the descriptor limit to our default, the container gets the
// engine's own limit. If the spec asks for a limit, that is an error.
func (s *booting) launch(ctx context.Context, p *plan, runtime string, fixed bool,
	k guestconfig.Keys, d *guestsock.Server) (pid int, err error) {
	for {
		if err = s.Enter(ctx, sandbox.StageCreate); err != nil {
			return 0, err
		}
		err = s.create(ctx, *p)
		if err != nil && p.Sized && strings.Contains(err.Error(), "storage-opt") &&
			ctx.Err() == nil {
			s.b.engine.cache.refusedSize()
			p.Sized = false
			continue // its files are measured instead
		}
		if err == nil && p.GuestVolume != "" {
			err = s.b.volumes.provide(ctx, *p, s.ref)
		}
		if err != nil {
			return 0, err
		}
		pid, err = s.run(ctx, p.ID, runtime, k, d)
		if err == nil || p.Limits.NoFile == 0 || !limitRefused(err) {
			return pid, err
		}
		if len(p.Options.Ulimits) > 0 {
			return 0, sandbox.Hint(fmt.Errorf(
				"docker option ulimit: %w: the engine cannot raise the limit that far: %w",
				sandbox.ErrUnsupported, err), "omit it")
		}
		if fixed {
			return 0, sandbox.Hint(
				fmt.Errorf("%d open files: %w: the engine cannot raise the limit that far: %w",
					p.Limits.NoFile, sandbox.ErrUnsupported, err), "ask for less")
		}
		s.b.engine.cache.refusedNoFile()
		p.Limits.NoFile = 0
		if err := s.b.engine.remove(ctx, p.ID, s.ref); err != nil {
			return 0, err
		}
	}
}

// limitRefused reports whether the runtime failed to raise the descriptor limit. It matches the
// texts of runc and crun.
func limitRefused(err error) bool {
	return strings.Contains(err.Error(), "setting rlimit") ||
		strings.Contains(err.Error(), "setrlimit `RLIMIT_NOFILE`")
}

// create creates the container. It ignores the end of ctx: the engine could complete an abandoned
// request after undo has looked for the container.
func (s *booting) create(ctx context.Context, p plan) error {
	s.asked = true
	r := createRequest(p)
	return s.b.engine.call(context.WithoutCancel(ctx), s.b.engine.limits.create, "create container",
		func(ctx context.Context) error {
			got, err := s.b.engine.api.ContainerCreate(
				ctx, client.ContainerCreateOptions{Name: containerName(p.ID),
					Config: r.Config, HostConfig: r.HostConfig,
					NetworkingConfig: r.NetworkingConfig})
			s.ref = got.ID
			for _, warning := range got.Warnings {
				s.b.log(p.ID).Warn("engine warns", "warning", warning)
				if err == nil && len(p.Options.names) > 0 && strings.Contains(warning, "iscarded") {
					err = sandbox.Hint(fmt.Errorf("docker options: %w: %s", sandbox.ErrUnsupported,
						printable(warning)), "omit it")
				}
			}
			return err
		})
}

// undo removes what a failed Boot made, also after ctx has ended.
func (s *booting) undo(ctx context.Context, id string) error {
	if !s.madeDir {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.engine.limits.remove)
	defer cancel()
	s.b.sockets.Shut(id)
	if s.asked {
		if err := s.b.engine.remove(ctx, id, s.ref); err != nil {
			s.b.log(id).Error("undo boot", "err", err)
			return fmt.Errorf("a container is left behind: %w", err)
		}
	}
	return os.RemoveAll(s.b.state.Dir(id))
}

// notes returns facts that users should know about a sandbox.
func notes(p plan, f facts, img sandbox.Image) []string {
	var notes []string
	if p.Network == sandbox.NetworkBridge {
		notes = append(
			notes,
			"network bridge: the sandbox can reach services of the engine's machine, its local "+
				"network and metadata addresses")
	}
	if runtime := cmp.Or(p.Runtime, f.defaultRuntime); !passesDescriptors(runtime) {
		notes = append(notes, "isolation "+runtime+
			": the sandbox has its own kernel. Exceeding the limits of memory or processes, or "+
			"killing PID 1 as root, ends the whole sandbox; "+
			"start restarts it with its files")
	}
	if p.Sudo {
		notes = append(notes, "sudo: setuid programs work; no-new-privileges is off")
	}
	if len(p.Options.given) > 0 {
		notes = append(notes, "docker options: "+strings.Join(p.Options.given, " "))
	}
	if f.sharedGroups {
		notes = append(
			notes,
			"the engine has no control group namespace (cgroup version 1): programs see this "+
				"machine's names of the sandbox's groups")
	}
	if !f.swapLimit {
		notes = append(notes, "the engine's kernel does not limit swap")
	}
	if img.Arch != "" && img.Arch != f.arch {
		notes = append(notes, fmt.Sprintf(
			"the image is for %s, the engine runs %s: its programs may fail to start", img.Arch,
			f.arch))
	}
	return notes
}
