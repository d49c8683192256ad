package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// A sandbox with a volume has a PersistentVolumeClaim of the name of its pod. Stop deletes the pod,
// and Start makes another one with the same keys. The claim stays until Destroy: its UID is the
// Instance.Ref.

const (
	claims = "persistentvolumeclaims"
	// volumePath is where a volume is if its Spec does not say.
	volumePath = "/root"
	// planName and authoritiesName are files in the directory of a sandbox with a volume: how to
	// make its pod again, and what programs trust besides the machine's authorities.
	planName        = "plan.json"
	authoritiesName = "authorities.pem"
)

// volumes are the claims of a backend, and what is stored of sandboxes that have one.
type volumes struct{ b *Backend }

const (
	defaultGrace = 10 * time.Second
	stopOrder    = 5 * time.Second // of the guest, over SSH
	stopMargin   = 3 * time.Second // beyond the grace
)

// CanStop reports whether the sandbox has a volume. See sandbox.Lifecycle.
func (b *Backend) CanStop(spec sandbox.Spec) bool { return spec.Volume.Size > 0 }

// createClaim creates the claim of a sandbox. Like create, it ignores the end of ctx.
func (s *booting) createClaim(ctx context.Context, p plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	s.claiming = true // the answer may be lost
	var got cluster.Claim
	err := s.b.api.Do(ctx, cluster.Request{Method: http.MethodPost, Path: s.b.api.Path(claims),
		Body: claimOf(p, s.b.opts.StorageClass)}, &got)
	if errors.Is(err, cluster.ErrAlreadyExists) {
		s.claiming = false
		return fmt.Errorf("volume claim %s: %w", podName(p.ID), fs.ErrExist)
	}
	if err != nil {
		return s.b.refused(err)
	}
	s.claim = got.Metadata.UID
	return nil
}

// claimOf returns the claim of a plan.
func claimOf(p plan, class string) cluster.Claim {
	c := cluster.Claim{APIVersion: "v1", Kind: "PersistentVolumeClaim",
		Metadata: cluster.Meta{Name: podName(p.ID),
			Labels: map[string]string{labelDaemon: p.Daemon, labelID: p.ID}},
		Spec: cluster.ClaimSpec{AccessModes: []string{"ReadWriteOnce"},
			Resources: cluster.Resources{Requests: map[string]string{
				"storage": strconv.FormatInt(p.Volume.Size, 10)}}}}
	if class != "" {
		c.Spec.StorageClass = &class
	}
	return c
}

// claim returns the claim of an instance with a volume: ErrGone if there is none, or another one
// with its name.
func (v volumes) claim(ctx context.Context, inst sandbox.Instance) (cluster.Claim, error) {
	var c cluster.Claim
	err := v.b.api.Do(ctx, cluster.Request{Path: v.b.api.Path(claims, podName(inst.ID))}, &c)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return c, sandbox.ErrGone
	case err != nil:
		return c, engine(err)
	case c.Metadata.Labels[labelDaemon] != v.b.opts.DaemonID,
		inst.Ref != "" && c.Metadata.UID != inst.Ref, !c.Metadata.Deleted.IsZero():
		return c, sandbox.ErrGone
	}
	return c, nil
}

// withoutPod returns what an instance is whose pod does not exist: ErrStopped if it has a volume,
// else ErrGone.
func (b *Backend) withoutPod(ctx context.Context, inst sandbox.Instance) error {
	if inst.Volume.Size == 0 {
		return sandbox.ErrGone
	}
	if _, err := b.volumes.claim(ctx, inst); err != nil {
		return err
	}
	return sandbox.ErrStopped
}

// claimWithin bounds how long delete waits for a deleted claim to go. The cluster keeps it until it
// has noticed that no pod uses it.
const claimWithin = 10 * time.Second

// delete deletes the claim of an instance, if this daemon made it, and waits until its name is free
// again, but not for long. One that is gone is no error.
func (v volumes) delete(ctx context.Context, id, ref string) error {
	c, err := v.claim(ctx, sandbox.Instance{ID: id, Ref: ref})
	if errors.Is(err, sandbox.ErrGone) || errors.Is(err, cluster.ErrForbidden) && !v.any() {
		return nil
	}
	if err != nil {
		return err
	}
	err = v.b.api.Do(ctx, cluster.Request{Method: http.MethodDelete, Path: v.b.api.Path(claims,
		podName(id)), Body: deletion(c.Metadata.UID, 0)}, nil)
	if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrConflict) {
		return nil // another claim has its name
	}
	if err != nil {
		return engine(err)
	}
	ctx, cancel := context.WithTimeout(ctx, claimWithin)
	defer cancel()
	for wait := redialFirst; v.exists(ctx, id, c.Metadata.UID); wait = min(2*wait, redialMost) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// exists reports whether the claim of an instance is known to be there, also while it is deleted.
func (v volumes) exists(ctx context.Context, id, uid string) bool {
	var c cluster.Claim
	err := v.b.api.Do(ctx, cluster.Request{Path: v.b.api.Path(claims, podName(id))}, &c)
	return err == nil && c.Metadata.UID == uid
}

// stopped returns the instances that have a claim and none of the pods in running, by ID. It leaves
// claims that it does not know: their files may be the only copy.
func (v volumes) stopped(ctx context.Context, running map[string]bool) ([]sandbox.Instance,
	error) {
	all, _, err := cluster.List[cluster.Claim](ctx, v.b.api, v.b.api.Path(claims),
		url.Values{"labelSelector": {labelDaemon + "=" + v.b.opts.DaemonID}})
	if errors.Is(err, cluster.ErrForbidden) && !v.any() {
		return nil, nil
	}
	if err != nil {
		return nil, engine(err)
	}
	var list []sandbox.Instance
	for _, c := range all {
		id := c.Metadata.Labels[labelID]
		if !guestconfig.ValidID.MatchString(id) || c.Metadata.Name != podName(id) || running[id] ||
			!c.Metadata.Deleted.IsZero() || v.b.locks.Changing(id) {
			continue
		}
		n, err := v.b.state.ReadNote(id)
		switch {
		case err == nil && n.Instance.ID == id && n.Instance.Ref == c.Metadata.UID:
			list = append(list, n.Instance)
		case errors.Is(err, fs.ErrNotExist):
			v.b.log(id).Warn("a volume without a sandbox is left alone; to delete it: kubectl delete "+
				"persistentvolumeclaim", "name", c.Metadata.Name, "namespace", c.Metadata.Namespace)
		}
	}
	return list, nil
}

// any reports whether there are sandboxes with a volume.
func (v volumes) any() bool {
	plans, err := filepath.Glob(v.file("*", planName))
	return err != nil || len(plans) > 0
}

// keep stores what Start needs.
func (v volumes) keep(id string, p plan, authorities []byte) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(v.file(id, planName), text, 0o600); err != nil {
		return err
	}
	return v.trust(id, authorities)
}

// trust replaces the authorities that Start applies.
func (v volumes) trust(id string, authorities []byte) error {
	path := v.file(id, authoritiesName)
	if err := os.WriteFile(path+".new", authorities, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// file returns the path of a file in the directory of an instance.
func (v volumes) file(id, name string) string { return filepath.Join(v.b.state.Dir(id), name) }

// read reads what keep has stored.
func (v volumes) read(id string) (p plan, authorities []byte, err error) {
	text, err := os.ReadFile(v.file(id, planName))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil {
		authorities, err = os.ReadFile(v.file(id, authoritiesName))
	}
	return p, authorities, err
}

// stoppable returns an error for an instance that Stop and Start cannot have.
func (b *Backend) stoppable(ctx context.Context, inst sandbox.Instance) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	if inst.Volume.Size > 0 {
		_, err := b.volumes.claim(ctx, inst)
		return err
	}
	if _, err := b.pod(ctx, inst); err != nil {
		return err
	}
	return fmt.Errorf("its files would be lost, because it was created without --volume SIZE: %w",
		sandbox.ErrUnsupported)
}

// Stop orders the guest to end all processes, and deletes the pod. See sandbox.Lifecycle.
func (b *Backend) Stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	if err := b.stop(ctx, inst, cmp.Or(grace, defaultGrace)); err != nil {
		return fmt.Errorf("stop %s: %w", inst.ID, err)
	}
	return nil
}

func (b *Backend) stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	unlock, err := b.locks.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.stoppable(ctx, inst); err != nil {
		return err
	}
	if err := b.orderStop(ctx, inst, grace); err == nil {
		within, cancel := context.WithTimeout(ctx, grace+stopMargin)
		_ = b.await(within, inst.ID, func(p *cluster.Pod) (bool, error) {
			_, err := running(p)
			return err != nil, nil
		})
		cancel()
	} else if !errors.Is(err, sandbox.ErrStopped) {
		b.log(inst.ID).Warn("guest does not take the order to stop", "err", err)
	}
	return b.remove(ctx, inst)
}

// orderStop orders the guest to stop, over SSH. It does not obey signals, because root in the
// sandbox could send them.
func (b *Backend) orderStop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, stopOrder)
	defer cancel()
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return err
	}
	err = connect.OrderStop(ctx, peer, grace)
	if b.opts.Relayed && err != nil {
		// The order may have ended the program that carries the answer.
		b.log(inst.ID).Debug("order to stop", "err", err)
		return nil
	}
	return err
}

// Start makes a pod for the volume, whose guest has the same keys again. See sandbox.Lifecycle.
func (b *Backend) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	s := &booting{b: b, stage: sandbox.StageValidate}
	started, err := s.startAgain(ctx, inst)
	if err != nil {
		return sandbox.Instance{}, sandbox.AtStage(s.stage, err)
	}
	return started, nil
}

// adopt takes over a running pod whose guest has the keys already. It gives them to none: the pod
// may be half made, or somebody else's who wants them.
func (s *booting) adopt(ctx context.Context, p plan, node string, k guestconfig.Keys,
	authorities []byte) error {
	within, cancel := context.WithTimeout(ctx, stopOrder)
	defer cancel()
	conn, err := s.b.login(within, p.ID, k)
	if err != nil {
		return err
	}
	// The daemon that made it may have died before its tests.
	return s.equip(ctx, p, node, conn, authorities)
}

func (s *booting) startAgain(ctx context.Context, inst sandbox.Instance) (none sandbox.Instance,
	err error) {
	b := s.b
	unlock, err := b.locks.Lock(ctx, inst.ID)
	if err != nil {
		return none, err
	}
	defer unlock()
	if err := b.stoppable(ctx, inst); err != nil {
		return none, err
	}
	s.stage, s.claim = sandbox.StageKeys, inst.Ref
	k, err := b.state.ReadKeys(inst.ID)
	if err != nil {
		return none, err
	}
	n, err := b.state.ReadNote(inst.ID)
	if err != nil {
		return none, err
	}
	p, authorities, err := b.volumes.read(inst.ID)
	if err != nil {
		return none, err
	}
	if pod, err := b.pod(ctx, inst); err == nil {
		if ok, _ := running(&pod); ok && s.adopt(ctx, p, pod.Spec.Node, k, authorities) == nil {
			return inst, nil
		}
	}
	p.GuestImage, p.ImageVolumes = b.opts.GuestImage, b.opts.ImageVolumes
	s.stage = sandbox.StageCreate
	// Two pods must never write to a volume: wait until an earlier one is gone.
	if err := b.remove(ctx, inst); err != nil {
		return none, err
	}
	pod, err := s.run(ctx, p, k, authorities, nil)
	if err == nil {
		inst.Digest = cmp.Or(pod.Status.Containers[0].ImageID, inst.Digest)
		n.Instance = inst
		err = b.state.WriteNote(inst.ID, n)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
		defer cancel()
		if left := b.remove(undo, inst); left != nil {
			err = fmt.Errorf("%w; a pod is left behind: %w", err, left)
		}
		return none, err
	}
	return inst, nil
}
