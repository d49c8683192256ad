package oci

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/usage"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// undoTime bounds the removal of what a failed Boot made.
const undoTime = 60 * time.Second

// booting is one run of Boot, or of the part of it that Start shares.
type booting struct {
	machine.Stages
	b *Backend

	made bool // its directory exists
}

// Boot starts a container and returns when its guest has connected. See sandbox.Backend.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	s := &booting{b: b, Stages: machine.Stages{Stage: sandbox.StageValidate}}
	unlock, err := b.Lock(ctx, spec.ID)
	if err != nil {
		return sandbox.Instance{}, s.Error(err)
	}
	defer unlock()
	inst, err := s.boot(ctx, spec)
	if err == nil {
		return inst, nil
	}
	if s.made {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if left := b.remove(undo, spec.ID); left != nil {
			b.log(spec.ID).Error("undo boot", "err", left)
			err = fmt.Errorf("%w; a container is left behind: %w", err, left)
		}
	}
	return sandbox.Instance{}, s.Error(err)
}

func (s *booting) boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	var none sandbox.Instance
	spec, err := validate(spec)
	if err != nil {
		return none, err
	}
	if err := s.b.Names.MayBoot(spec); err != nil {
		return none, err
	}
	bound, err := machine.Bind(s.b.opts.Dirs, &spec)
	if err != nil {
		return none, err
	}
	if err := s.Enter(ctx, sandbox.StageEngine); err != nil {
		return none, err
	}
	p, bundle, err := s.plan(&spec)
	if err != nil {
		return none, err
	}

	if err := s.Enter(ctx, sandbox.StageImage); err != nil {
		return none, err
	}
	if _, err := s.b.Ensure(ctx, spec); err != nil {
		return none, err
	}
	if err := spec.Await(ctx); err != nil {
		return none, err
	}
	img, err := s.b.images.Image(spec.Image)
	if err != nil {
		return none, missing(spec.Image, err)
	}

	if err := s.Enter(ctx, sandbox.StageKeys); err != nil {
		return none, err
	}
	config := machine.GuestConfig(spec, img.Config.ImageConfig, p.ca())
	bound.Configure(&config)
	k, err := guestconfig.NewKeys(config)
	if err != nil {
		return none, err
	}
	if err := s.prepare(p, spec, k, bundle, img); err != nil {
		return none, err
	}
	inst := sandbox.Instance{Backend: Name, ID: spec.ID, Ref: p.Ref, Image: spec.Image,
		Digest: img.ID, Revision: machine.Revision(p.GuestFile, p.Runtime),
		Created: time.Now().UTC().Truncate(time.Second),
		User:    k.User(), Runtime: p.Runtime, Network: spec.Network, Via: spec.Via,
		Limits: p.Limits, Mounts: spec.Mounts, Notes: append(notes(p, img), bound.Notes...)}
	if err := s.run(ctx, inst, img.Layers, k); err != nil {
		return none, err
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

// validate checks spec as far as that needs no files, and returns it with defaults.
func validate(spec sandbox.Spec) (sandbox.Spec, error) {
	if len(spec.Options) > 0 {
		return spec, sandbox.Hint(fmt.Errorf("options of docker run: %w", sandbox.ErrUnsupported),
			"omit them, or install Docker")
	}
	if spec.Volume != (sandbox.Volume{}) {
		return spec, sandbox.Hint(fmt.Errorf("volume: %w: files outlive a stop in any case",
			sandbox.ErrUnsupported), "omit the size; --volume SRC:DST mounts a directory")
	}
	spec, err := guestconfig.Check(spec)
	if err != nil {
		return spec, err
	}
	if spec.Network == sandbox.NetworkBridge {
		return spec, sandbox.Hint(fmt.Errorf("network bridge: %w: without an engine there is none",
			sandbox.ErrUnsupported),
			"use --network filtered, which reaches all public addresses; or install Docker")
	}
	if spec.Image, err = machine.ParseImage(spec.Image); err != nil {
		return spec, err
	}
	spec.Via, err = via(spec)
	return spec, err
}

// via returns how the daemon carries a sandbox's network; empty if it does not. If the device
// cannot work it is the proxy, unless spec asks for the device.
func via(spec sandbox.Spec) (sandbox.Via, error) {
	if !spec.Network.Carried() || spec.Via == sandbox.ViaProxy {
		return spec.Via, nil
	}
	if unix.Access(machine.TunDevice, unix.R_OK|unix.W_OK) == nil {
		return sandbox.ViaTUN, nil
	}
	if spec.Via == sandbox.ViaTUN {
		return "", sandbox.Hint(fmt.Errorf("network %s=tun: %w: the daemon may not use %s",
			spec.Network, sandbox.ErrUnsupported, machine.TunDevice),
			"load it: modprobe tun; an ordinary user needs mode 0666; or use --network "+string(spec.Network)+
				", which is a proxy here")
	}
	return sandbox.ViaProxy, nil
}

// fit returns the limits of spec with defaults for this machine, or an error if the machine has
// less than they ask for.
func fit(l sandbox.Limits) (sandbox.Limits, error) {
	cpus, memory, noFile, err := capacity()
	if err != nil {
		return l, err
	}
	switch {
	case l.CPUs > cpus:
		return l, sandbox.Hint(fmt.Errorf("%g cpus: %w: this machine has %g", l.CPUs,
			sandbox.ErrUnsupported, cpus), "ask for less")
	case l.Memory > memory:
		return l, sandbox.Hint(fmt.Errorf("%s of memory: %w: this machine has %s",
			sandbox.FormatSize(l.Memory), sandbox.ErrUnsupported,
			sandbox.FormatSize(memory>>20<<20)), "ask for less")
	case l.NoFile > noFile:
		return l, sandbox.Hint(fmt.Errorf("%d open files: %w: the daemon may have %d", l.NoFile,
			sandbox.ErrUnsupported, noFile), "ask for less")
	}
	preset := sandbox.DefaultLimits
	preset.CPUs, preset.Memory = min(preset.CPUs, cpus), min(preset.Memory, memory)
	preset.NoFile = min(preset.NoFile, noFile)
	if l.Memory > 0 {
		preset.Shm = min(preset.Shm, l.Memory)
	}
	return l.Or(preset), nil
}

// plan checks whether this machine can make spec, and returns what the container may do and the
// runtime's input for it.
func (s *booting) plan(spec *sandbox.Spec) (p plan, bundle []byte, err error) {
	name, err := s.b.runtime.find(spec.Isolation)
	if err != nil {
		return p, nil, err
	}
	p = plan{ID: spec.ID, Ref: newRef(), Runtime: name, Network: spec.Network, Via: spec.Via,
		Sudo: spec.Sudo, Swap: limitsSwap(), ByUser: s.b.runtime.byUser,
		Mounts: spec.Mounts, Root: s.b.in(spec.ID, rootName),
		RunDir: s.b.state.RunDir(spec.ID), NamesDir: s.b.in(spec.ID, namesDir),
		Throttles: throttles()}
	if p.Host, err = wire.ParseLabel("sandbox name", spec.Name); err != nil {
		p.Host = "" // a pooled sandbox has no name yet
	}
	if s.b.runtime.byUser {
		if err := checkManager(groupsRoot, os.Getenv("XDG_RUNTIME_DIR")); err != nil {
			return p, nil, err
		}
	}
	if p.Profile, err = s.b.runtime.confine(); err != nil {
		return p, nil, err
	}
	if p.Limits, err = fit(spec.Limits); err != nil {
		return p, nil, err
	}
	spec.Limits = p.Limits
	var ca string
	if p.GuestFile, ca, err = s.b.files.Place(runtime.GOARCH, spec.Trust); err != nil {
		return p, nil, err
	}
	if err := machine.MayTrust(ca, spec.Authorities); err != nil {
		return p, nil, err
	}
	if ca != "" {
		p.TrustDir = s.b.state.TrustDir(spec.ID)
	}
	if p.ByUser {
		if p.Locked, err = lockedOptions(p); err != nil {
			return p, nil, err
		}
	}
	bundle, err = p.encode()
	return p, bundle, err
}

// encode returns the runtime's input.
func (p plan) encode() ([]byte, error) {
	spec := bundle(p)
	if err := filterCalls(spec, p.Runtime); err != nil {
		return nil, err
	}
	return json.Marshal(spec)
}

// filterCalls gives a container the filter of system calls of Docker's engine.
func filterCalls(s *specs.Spec, runtime string) error {
	filter, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return fmt.Errorf("seccomp profile: %w", err)
	}
	if runtime == "crun" {
		// Any flag keeps it from SECCOMP_FILTER_FLAG_SPEC_ALLOW, with which kernels before 5.16
		// take fewer measures against speculation. This one has no effect on a process of one
		// thread.
		filter.Flags = append(filter.Flags, "SECCOMP_FILTER_FLAG_TSYNC")
	}
	s.Linux.Seccomp = filter
	return nil
}

// ca returns the file with certificate authorities in the container; empty if there is none.
func (p plan) ca() string {
	if p.TrustDir == "" {
		return ""
	}
	return machine.GuestCA
}

// newRef returns a new ID of a container.
func newRef() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// prepare makes everything that must exist before the container: its directory, keys and files.
func (s *booting) prepare(p plan, spec sandbox.Spec, k guestconfig.Keys, bundle []byte,
	img store.Image) error {
	b, id := s.b, spec.ID
	if err := os.Mkdir(b.state.Dir(id), 0o700); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("sandbox %s: %w", id, fs.ErrExist)
	} else if err != nil {
		return err
	}
	s.made = true
	if err := b.images.Hold(b.holder(id), img); err != nil {
		return err
	}
	if err := os.Mkdir(b.state.RunDir(id), 0o700); err != nil {
		return err
	}
	if err := b.makeFiles(id); err != nil {
		return err
	}
	if err := b.writeNames(id, cmp.Or(p.Host, p.ID), spec); err != nil {
		return err
	}
	if p.TrustDir != "" {
		if err := b.files.MakeTrust(p.TrustDir, spec.Authorities); err != nil {
			return fmt.Errorf("certificate authorities: %w", err)
		}
	}
	if err := b.writeBundle(id, bundle); err != nil {
		return err
	}
	return b.state.WriteKeys(id, k)
}

// holder names an instance in the image store, which other daemons use as well.
func (l *instances) holder(id string) string { return l.daemon + "/" + id }

// run starts a container that does not run, gives its guest the keys and waits for its call. After
// an error the caller ends the container.
func (s *booting) run(ctx context.Context, inst sandbox.Instance, layers []string,
	k guestconfig.Keys) error {
	b := s.b
	d, err := b.sockets.OpenGuest(inst.ID, k.Guest.TunSocket != "")
	if err != nil {
		return err
	}
	if err := s.Enter(ctx, sandbox.StageCreate); err != nil {
		return err
	}
	made, err := b.bundle(inst.ID)
	if err != nil {
		return err
	}
	unmount, err := b.mount(inst.ID, layers)
	if err != nil {
		return err
	}
	defer unmount()
	program := made.Process.Args[0]
	if err := b.prepareFiles(inst, program); err != nil {
		return err
	}
	first, stdin, err := s.create(ctx, inst)
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := s.Enter(ctx, sandbox.StageStart); err != nil {
		return err
	}
	// Nothing of the sandbox runs yet.
	if err := usage.Enforced(first.pid, inst.Ref, inst.Limits); err != nil {
		return err
	}
	if err := machine.CheckProgram(first.pid, program); err != nil {
		return err
	}
	if !b.runtime.byUser {
		// The kernel would count the processes of all sandboxes whose users have the same number.
		// The control group limits those of each.
		if err := unix.Prlimit(first.pid, unix.RLIMIT_NPROC, &unix.Rlimit{
			Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil); err != nil {
			b.log(inst.ID).Debug("sandboxes share a limit of processes", "err", err)
		}
	}
	d.Admit(first.pid)
	if err := b.runtime.call(context.WithoutCancel(ctx), inst.Runtime, nil, nil, "start",
		inst.Ref); err != nil {
		return err
	}
	if err := s.Enter(ctx, sandbox.StageGuest); err != nil {
		return err
	}
	if err := s.greet(ctx, d, first, inst.ID, k, stdin); err != nil {
		return err
	}
	if err := checkFiltered(first.pid, made.Process.NoNewPrivileges); err != nil {
		return err
	}
	return b.runtime.checkConfined(first.pid)
}

// create creates the container, and returns its first process and what writes to its input. The
// process is the runtime's, which has mounted everything and waits to become the guest: nothing of
// the sandbox runs before it is checked.
func (s *booting) create(ctx context.Context, inst sandbox.Instance) (first process, stdin *os.File,
	err error) {
	out, err := os.OpenFile(s.b.in(inst.ID, logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return first, nil, err
	}
	defer out.Close()
	in, w, err := os.Pipe()
	if err != nil {
		return first, nil, err
	}
	defer in.Close()
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	number := s.b.in(inst.ID, pidFile) + ".new"
	// A runtime that is killed leaves half a container.
	if err := s.b.runtime.call(context.WithoutCancel(ctx), inst.Runtime, in, out, "create",
		"--bundle", s.b.in(inst.ID, bundleDir), "--pid-file", number, inst.Ref); err != nil {
		return first, nil, err
	}
	written, err := os.ReadFile(number)
	if err != nil {
		return first, nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(written)))
	if err != nil {
		return first, nil, err
	}
	if first, err = processOf(pid); err != nil {
		return first, nil, s.ended(inst.ID)
	}
	return first, w, first.store(s.b.in(inst.ID, pidFile))
}

// greet gives the guest of a container that runs its keys, and waits for its call.
func (s *booting) greet(ctx context.Context, d *guestsock.Server, first process, id string,
	k guestconfig.Keys, stdin io.WriteCloser) error {
	line, err := k.Line()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stdin.Close() // ends the write below
	wg.Go(func() {
		_, _ = stdin.Write(line) // a guest that does not read it does not call
		stdin.Close()
	})
	err = d.WaitGuest(ctx, first.wait)
	if errors.Is(err, guestsock.ErrGuestEnded) {
		return s.ended(id)
	}
	if err == nil {
		if err := machine.CapTerminals(first.pid); err != nil {
			s.b.log(id).Debug("no limit of terminals for a sandbox", "err", err)
		}
	}
	return err
}

// maxOutput bounds what is shown of a guest's output, in characters.
const maxOutput = 500

// ended is the error of a guest that ended, with the last it printed.
func (s *booting) ended(id string) error {
	if words := lastWords(s.b.in(id, logFile)); words != "" {
		return fmt.Errorf("%w: %s", guestsock.ErrGuestEnded, words)
	}
	return guestsock.ErrGuestEnded
}

// lastWords returns the end of a guest's output, safe to display.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-4*maxOutput), io.SeekStart) // at worst, its beginning
	}
	said, _ := io.ReadAll(io.LimitReader(f, 4*maxOutput))
	return text.End(strings.TrimSpace(string(said)), maxOutput)
}

// notes returns facts that users should know about a sandbox.
func notes(p plan, img store.Image) []string {
	var notes []string
	if p.Sudo {
		notes = append(notes, "sudo: setuid programs work; no-new-privileges is off")
	}
	if !p.Swap {
		notes = append(notes, "this machine's kernel does not limit swap")
	}
	if img.Arch != "" && img.Arch != runtime.GOARCH {
		notes = append(notes, fmt.Sprintf("the image is for %s, this machine is %s: its programs "+
			"may fail to start", img.Arch, runtime.GOARCH))
	}
	return notes
}
