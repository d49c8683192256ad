package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// undoWithin bounds the removal of what a failed Boot made.
	undoWithin = time.Minute
	// startWithin is how long a pod may wait for a node, its images and its volume.
	startWithin = 10 * time.Minute
	// deniedWithin is how long a right may be missing: servers and nodes learn of a new one later.
	deniedWithin = 3 * time.Second
	// guestWithin is how long a guest may take to answer after its container runs.
	guestWithin = 30 * time.Second
	// A guest listens milliseconds after it has read its configuration.
	redialFirst = 5 * time.Millisecond
	redialMost  = 500 * time.Millisecond
)

// booting is one call of Boot.
type booting struct {
	b     *Backend
	stage sandbox.Stage
	made  bool   // the directory, and perhaps a claim and a pod
	ref   string // of the pod, once known
	claim string // UID of the claim, once known
	// claiming: there may be a claim
	claiming bool
}

// Boot makes a pod and waits until its guest answers. See sandbox.Backend.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	s := &booting{b: b}
	s.stage = sandbox.StageValidate
	unlock, err := b.locks.Lock(ctx, spec.ID)
	if err != nil {
		return sandbox.Instance{}, sandbox.AtStage(s.stage, err)
	}
	defer unlock()
	inst, err := s.boot(ctx, spec)
	if err == nil {
		return inst, nil
	}
	if left := s.undo(ctx, spec.ID); left != nil {
		err = fmt.Errorf("%w; a pod is left behind: %w", err, left)
		s.stage = sandbox.StageStart // whatever the stage was, something exists
	}
	return sandbox.Instance{}, sandbox.AtStage(s.stage, err)
}

// instance returns what is known of the instance.
func (s *booting) instance(id string) sandbox.Instance {
	return sandbox.Instance{ID: id, Ref: cmp.Or(s.claim, s.ref)}
}

// undo removes what a failed Boot made, also after ctx has ended.
func (s *booting) undo(ctx context.Context, id string) error {
	if !s.made {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	if err := s.b.remove(ctx, s.instance(id)); err != nil {
		return err
	}
	if s.claiming {
		if err := s.b.volumes.delete(ctx, id, s.claim); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.b.state.Dir(id))
}

func (s *booting) boot(ctx context.Context, spec sandbox.Spec) (none sandbox.Instance, err error) {
	if spec, err = s.b.validate(spec); err != nil {
		return none, err
	}
	if err := spec.Await(ctx); err != nil { // the cluster gets the image
		return none, err
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	s.stage = sandbox.StageKeys
	config, err := s.b.guestConfig(spec)
	if err != nil {
		return none, err
	}
	k, err := guestconfig.NewKeys(config)
	if err != nil {
		return none, err
	}
	if err := os.MkdirAll(s.b.opts.Dir, 0o700); err != nil {
		return none, err
	}
	if err := os.Mkdir(s.b.state.Dir(spec.ID), 0o700); errors.Is(err, fs.ErrExist) {
		return none, fmt.Errorf("sandbox %s: %w", spec.ID, fs.ErrExist)
	} else if err != nil {
		return none, err
	}
	s.made = true
	if err := s.b.state.WriteKeys(spec.ID, k); err != nil {
		return none, err
	}

	s.stage = sandbox.StageCreate
	p := plan{Daemon: s.b.opts.DaemonID, ID: spec.ID, Image: spec.Image,
		GuestImage: s.b.opts.GuestImage, ImageVolumes: s.b.opts.ImageVolumes,
		Runtime: spec.Isolation, Sudo: spec.Sudo, Limits: spec.Limits,
		PullSecrets: s.b.opts.PullSecrets,
		Closed:      spec.Network != sandbox.NetworkBridge, Volume: spec.Volume}
	if label, err := wire.ParseLabel("sandbox name", spec.Name); err == nil {
		p.Host = label
	}
	created := time.Now().UTC().Truncate(time.Second)
	if p.Volume.Size > 0 {
		if err := s.createClaim(ctx, p); err != nil {
			return none, err
		}
		p.Claim = s.claim
		if err := s.b.volumes.keep(spec.ID, p, spec.Authorities); err != nil {
			return none, err
		}
	}
	pod, err := s.run(ctx, p, k, spec.Authorities, spec.Progress)
	if err != nil {
		return none, err
	}
	inst := sandbox.Instance{Backend: Name, ID: spec.ID, Ref: cmp.Or(s.claim, s.ref), Image: spec.Image,
		Digest: cmp.Or(pod.Status.Containers[0].ImageID, spec.Image), Created: created, User: k.User(),
		Runtime: cmp.Or(spec.Isolation, "default"), Network: spec.Network, Via: spec.Via,
		Limits: spec.Limits, Revision: s.b.revision(spec), Volume: spec.Volume,
		Notes: []string{"Kubernetes: the limit of processes is that of the node; the image's " +
			"ENTRYPOINT does not run"}}
	if err := s.b.state.WriteNote(spec.ID,
		guestconfig.Note{Name: spec.Name, Instance: inst}); err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	return inst, nil
}

// run makes the pod of a plan, and returns when its guest has answered.
func (s *booting) run(ctx context.Context, p plan, k guestconfig.Keys, authorities []byte,
	progress func(string)) (*cluster.Pod, error) {
	if p.Closed {
		if err := s.b.walls.raise(ctx); err != nil {
			return nil, err
		}
	}
	p.Template = s.b.opts.Template
	if err := s.create(ctx, podOf(p)); err != nil {
		return nil, err
	}
	s.stage = sandbox.StageStart
	pod, err := s.start(ctx, p.ID, p.Image, progress)
	if err != nil {
		return nil, err
	}
	s.stage = sandbox.StageGuest
	conn, err := s.configure(ctx, p.ID, k)
	if err != nil {
		return nil, err
	}
	return pod, s.equip(ctx, p, pod.Spec.Node, conn, authorities)
}

// equip gives a guest all that it needs besides its keys, and tests the network policy. It closes
// conn.
func (s *booting) equip(ctx context.Context, p plan, node string, conn *connect.Conn,
	authorities []byte) error {
	client := conn.Client()
	defer client.Close()
	if len(authorities) > 0 {
		if err := conn.SetAuthorities(ctx, authorities); err != nil {
			return err
		}
	}
	if p.Closed {
		return s.b.walls.test(ctx, node, client)
	}
	return nil
}

// revision identifies the inputs of a pod besides its image and spec.
func (b *Backend) revision(spec sandbox.Spec) string {
	return b.opts.GuestImage + " " + cmp.Or(spec.Isolation, "default")
}

// create creates the pod. It ignores the end of ctx: the server could complete an abandoned request
// after undo has looked for the pod.
func (s *booting) create(ctx context.Context, want cluster.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	var got cluster.Pod
	err := s.b.api.Do(ctx, cluster.Request{Method: http.MethodPost, Path: s.b.api.Path("pods"),
		Body: want}, &got)
	if errors.Is(err, cluster.ErrAlreadyExists) {
		return fmt.Errorf("pod %s: %w", want.Metadata.Name, fs.ErrExist)
	}
	if err != nil {
		return s.b.refused(err)
	}
	s.ref = got.Metadata.UID
	if what := changedBy(want, got); what != "" {
		return sandbox.Hint(fmt.Errorf("the cluster changed the pod: %s", what),
			"exclude the namespace from the admission webhook that does it")
	}
	return nil
}

// start waits until the container runs.
func (s *booting) start(ctx context.Context, id, image string, progress func(string)) (
	pod *cluster.Pod, err error) {
	told := ""
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin,
		fmt.Errorf("the pod does not run within %v", startWithin))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil && told != "" {
			err = fmt.Errorf("%w: %s", err, told)
		}
	}()
	err = s.b.await(ctx, id, func(p *cluster.Pod) (bool, error) {
		ok, err := running(p)
		if errors.Is(err, sandbox.ErrStopped) {
			return false, fmt.Errorf("the pod ended: %s", endOf(p))
		}
		if err != nil || ok {
			pod = p
			return ok, err
		}
		if err := s.noImage(p, image); err != nil {
			return false, err
		}
		if why := waitsFor(p); why != told {
			if told = why; progress != nil {
				progress(why)
			}
		}
		return false, nil
	})
	return pod, err
}

// noImage returns an error if the image of a container cannot be had.
func (s *booting) noImage(p *cluster.Pod, image string) error {
	for _, c := range slices.Concat(p.Status.Init, p.Status.Containers) {
		w := c.State.Waiting
		if w == nil || !slices.Contains([]string{"ErrImagePull", "ImagePullBackOff",
			"ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}, w.Reason) ||
			strings.Contains(w.Message, "QPS exceeded") { // the kubelet's own bound; it tries again
			continue
		}
		s.stage = sandbox.StageImage
		// The kubelet blames the container that mounts an image, too.
		if c.Name != container || strings.Contains(w.Message, strconv.Quote(s.b.opts.GuestImage)) {
			image = s.b.opts.GuestImage
		}
		return sandbox.Hint(fmt.Errorf("image %s: %w: %s: %s", image, sandbox.ErrNoImage,
			cluster.Printable(w.Reason), cluster.Printable(w.Message)),
			"push it to a registry that the cluster can pull from, with kubernetes.pull_secrets for "+
				"a login (imagePullSecrets of the chart), or load it into the nodes")
	}
	return nil
}

// waitsFor returns what a pod that does not run waits for, as one line.
func waitsFor(p *cluster.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			return "waiting for a node: " + cluster.Printable(c.Message)
		}
	}
	for _, c := range slices.Concat(p.Status.Init, p.Status.Containers) {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" &&
			w.Reason != "PodInitializing" && w.Reason != "" {
			return "starting the pod: " + cluster.Printable(w.Reason+": "+w.Message)
		}
	}
	return "starting the pod"
}

// endOf returns why a pod ended, as one line. The sandbox may have written part of it.
func endOf(p *cluster.Pod) string {
	text := p.Status.Reason
	for _, c := range slices.Concat(p.Status.Init, p.Status.Containers) {
		if t := c.State.Terminated; t != nil && (t.ExitCode != 0 || c.Name == container) {
			text += " " + t.Reason + ", exit code " + strconv.Itoa(t.ExitCode) + " " + t.Message
		}
	}
	return cluster.Printable(text + " " + p.Status.Message)
}

// configure sends the configuration until the guest answers with its key: only that proves that it
// has arrived.
func (s *booting) configure(ctx context.Context, id string, k guestconfig.Keys) (*connect.Conn,
	error) {
	ctx, cancel := context.WithTimeoutCause(ctx, guestWithin,
		fmt.Errorf("the guest does not answer within %v", guestWithin))
	defer cancel()
	line, err := k.Line()
	if err != nil {
		return nil, err
	}
	for began, wait := time.Now(), redialFirst; ; {
		given := s.b.give(ctx, id, line)
		if errors.Is(given, cluster.ErrForbidden) && time.Since(began) > deniedWithin {
			return nil, s.b.refused(given)
		}
		for range 5 { // it reads the line at once
			conn, err := s.b.login(ctx, id, k)
			if err == nil {
				return conn, nil
			}
			if errors.Is(err, cluster.ErrForbidden) && time.Since(began) > deniedWithin {
				return nil, s.b.refused(err)
			}
			p, gone := s.b.pod(ctx, s.instance(id))
			if gone == nil {
				_, gone = running(&p)
			}
			if errors.Is(gone, sandbox.ErrStopped) {
				return nil, fmt.Errorf("the guest ended: %s", endOf(&p))
			}
			if gone != nil {
				return nil, gone
			}
			select {
			case <-time.After(wait):
				wait = min(2*wait, redialMost)
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), errors.Join(given, err))
			}
		}
	}
}

// give attaches to the guest's standard input and writes its configuration.
func (b *Backend) give(ctx context.Context, id string, line []byte) error {
	stream, err := b.api.Attach(ctx, podName(id), container)
	if err != nil {
		return fmt.Errorf("attach: %w", engine(err))
	}
	defer stream.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = stream.SetDeadline(d)
	}
	// It ends the line of a daemon that ended while it wrote one.
	if _, err := stream.Write(append([]byte("\n"), line...)); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if err := stream.CloseWrite(); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	// The server ends the attachment when it has passed all on, which proves nothing.
	_ = stream.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, stream)
	return nil
}

// login logs in to the guest, once.
func (b *Backend) login(ctx context.Context, id string, k guestconfig.Keys) (*connect.Conn, error) {
	peer, err := k.Peer()
	if err != nil {
		return nil, err
	}
	if peer.Conn, err = b.reach(ctx, id); err != nil {
		return nil, err
	}
	return connect.SSH(ctx, peer)
}

// reach connects to the guest of a pod.
func (b *Backend) reach(ctx context.Context, id string) (conn net.Conn, err error) {
	if b.opts.Relayed {
		conn, err = b.api.Exec(ctx, podName(id), container, guestFile, "relay",
			"unix:"+guestAddress)
	} else {
		conn, err = b.api.Forward(ctx, podName(id), guestPort)
	}
	if err != nil {
		return nil, engine(err)
	}
	return conn, nil
}

// Dial connects to the guest through the API server. See sandbox.Backend.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("dial %s: %w", inst.ID, err)
	}
	return peer, nil
}

func (b *Backend) dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return sandbox.Peer{}, fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	k, err := b.state.ReadKeys(inst.ID)
	if err != nil {
		if ended := b.ended(ctx, inst); ended != nil {
			return sandbox.Peer{}, ended
		}
		return sandbox.Peer{}, fmt.Errorf("keys are missing: %w", err)
	}
	peer, err := k.Peer()
	if err != nil {
		return sandbox.Peer{}, err
	}
	peer.Conn, err = b.reach(ctx, inst.ID)
	if err == nil {
		return peer, nil
	}
	if ended := b.ended(ctx, inst); ended != nil {
		err = ended
	}
	return sandbox.Peer{}, err
}

// Trust replaces the authorities besides those of this machine. See sandbox.Truster.
func (b *Backend) Trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	if err := b.trust(ctx, inst, authorities); err != nil {
		return fmt.Errorf("certificate authorities of %s: %w", inst.ID, err)
	}
	return nil
}

func (b *Backend) trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	if inst.Volume.Size > 0 {
		if err := b.trustLater(ctx, inst, authorities); err != nil {
			return err
		}
	}
	peer, err := b.dial(ctx, inst)
	if errors.Is(err, sandbox.ErrStopped) && inst.Volume.Size > 0 {
		return nil // Start applies them
	}
	if err != nil {
		return err
	}
	conn, err := connect.SSH(ctx, peer)
	if err != nil {
		return err
	}
	defer conn.Client().Close()
	err = conn.SetAuthorities(ctx, authorities)
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeDenied {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
	}
	return err
}

// trustLater stores the authorities of an instance with a volume for its next start.
func (b *Backend) trustLater(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	unlock, err := b.locks.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if k, err := b.state.ReadKeys(inst.ID); err == nil && k.Guest.Authorities == "" {
		return fmt.Errorf("it trusts those of its image: %w", sandbox.ErrUnsupported)
	}
	return b.volumes.trust(inst.ID, authorities)
}

// validate checks a spec, and rejects what pods do not have.
func (b *Backend) validate(spec sandbox.Spec) (sandbox.Spec, error) {
	spec, err := guestconfig.Check(spec)
	if err != nil {
		return spec, err
	}
	spec.Image = cmp.Or(spec.Image, sandbox.DefaultImage)
	lacks := func(what, hint string) error {
		return sandbox.Hint(fmt.Errorf("%s: %w on Kubernetes", what, sandbox.ErrUnsupported), hint)
	}
	preset := sandbox.DefaultLimits
	switch l := spec.Limits; {
	case len(spec.Mounts) > 0:
		return spec, lacks("mounted directories", "copy the files: sandboxd cp")
	case len(spec.Options) > 0:
		return spec, lacks("docker options", "omit them")
	case spec.Via == sandbox.ViaTUN:
		return spec, lacks("network "+string(spec.Network)+"="+string(spec.Via),
			"use --network "+string(spec.Network))
	case l.PIDs != 0 && l.PIDs != preset.PIDs:
		return spec, lacks("limit pids", "set podPidsLimit of the kubelet")
	case l.NoFile != 0 && l.NoFile != preset.NoFile:
		return spec, lacks("limit nofile", "omit it")
	case l.Swap != 0:
		return spec, lacks("swap", "omit it")
	case spec.Trust == sandbox.TrustImage && len(spec.Authorities) > 0:
		return spec, lacks("more certificate authorities with trust image", "use --trust host")
	}
	if spec.Volume.Size > 0 {
		spec.Volume.Path = cmp.Or(spec.Volume.Path, volumePath)
	}
	if spec.Network.Carried() {
		spec.Via = sandbox.ViaProxy
	}
	spec.Limits = spec.Limits.Or(preset)
	return spec, nil
}

// guestConfig returns the guest's configuration for a spec, without keys. The guest adds the
// image's variables and directory.
func (b *Backend) guestConfig(spec sandbox.Spec) (wire.GuestConfig, error) {
	g := wire.GuestConfig{Version: wire.Version, Name: spec.Name, Listen: guestListen(),
		User: spec.User, Workdir: spec.Workdir, Sudo: spec.Sudo, Volume: spec.Volume.Path,
		Sessions: int(spec.Limits.Sessions)}
	if spec.Via == sandbox.ViaProxy {
		g.Env = wire.ProxyEnv()
	}
	if spec.Trust != sandbox.TrustImage {
		bundle, err := guestconfig.FindBundle(b.opts.CABundle)
		switch {
		case err != nil:
			return g, err
		case bundle != "":
			if g.Authorities, err = guestconfig.ReadBundle(bundle); err != nil {
				return g, err
			}
			for _, name := range guestconfig.TrustVariables {
				g.Env = append(g.Env, name+"="+wire.AuthoritiesFile)
			}
		case spec.Trust == sandbox.TrustHost || len(spec.Authorities) > 0:
			return g, sandbox.Hint(fmt.Errorf("trust host: %w: this machine has no bundle of "+
				"certificate authorities", sandbox.ErrUnsupported),
				"install ca-certificates, or use --trust image")
		}
	}
	g.Env = guestconfig.MergeEnv(g.Env, spec.Env)
	return g, nil
}

// guestListen returns where a guest waits for the daemon: on a port for port-forward, and on a
// socket for its relay.
func guestListen() []string {
	return []string{"tcp:127.0.0.1:" + strconv.Itoa(guestPort), "unix:" + guestAddress}
}
