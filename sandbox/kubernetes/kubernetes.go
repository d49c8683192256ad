// Package kubernetes is the Backend that makes sandboxes from pods: one sandbox is one pod. The
// cluster schedules, limits and isolates it. Any image works: the guest comes from an image of its
// own, and is the first process of the pod's only container.
//
// Keys reach the guest by an attachment to its standard input, and nothing else in the cluster. The
// daemon connects to the guest through the API server. One pure function, podOf, decides what a pod
// may do; golden files record its results.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// Name is the Instance.Backend of instances of this package.
const Name = "kubernetes"

// Options configure a Backend.
type Options struct {
	// Dir holds one directory per sandbox: its keys, its name. Required, absolute, not writable by
	// others.
	Dir string
	// Cluster is the API server, and the namespace of the pods. Required.
	Cluster *cluster.Client
	// DaemonID marks the pods of this daemon. Required; a DNS label.
	DaemonID string
	// GuestImage is an image with the guest program at /guest. Required.
	GuestImage string
	// CABundle has the certificate authorities of this machine, PEM; empty searches the usual
	// places.
	CABundle string
	// ImageVolumes: the nodes mount images as volumes. Otherwise a container copies the guest before
	// each start, which takes longer.
	ImageVolumes bool
	// Relayed connects to a guest by a program in the container instead of a forwarded port, which
	// some runtimes do not have. It is slower.
	Relayed bool
	// PullSecrets are Secrets of the namespace for the registries of all images.
	PullSecrets []string
	// Template is added to all pods.
	Template Template
	// StorageClass is that of volumes; empty means the cluster's default.
	StorageClass string
	Log          *slog.Logger // nil discards
}

// Backend makes sandboxes from pods. Its methods may be called concurrently.
type Backend struct {
	opts  Options
	api   *cluster.Client
	state guestconfig.State
	walls *walls
	locks guestconfig.Locks

	volumes volumes
}

var (
	_ sandbox.Backend   = (*Backend)(nil)
	_ sandbox.Finder    = (*Backend)(nil)
	_ sandbox.Lifecycle = (*Backend)(nil)
	_ sandbox.Truster   = (*Backend)(nil)
)

// New returns a Backend. It does not talk to the cluster.
func New(o Options) (*Backend, error) {
	switch {
	case o.Cluster == nil:
		return nil, errors.New("kubernetes: no cluster")
	case !guestconfig.ValidID.MatchString(o.DaemonID):
		return nil, fmt.Errorf("kubernetes: daemon ID %q is not a DNS label", o.DaemonID)
	case o.GuestImage == "":
		return nil, errors.New("kubernetes: no image of the guest")
	case !filepath.IsAbs(o.Dir):
		return nil, fmt.Errorf("kubernetes: directory %q is not absolute", o.Dir)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{opts: o, api: o.Cluster, state: guestconfig.State(o.Dir)}
	b.volumes = volumes{b}
	b.walls = &walls{b: b, reach: reachWithin, connects: connects, tested: make(map[string]time.Time)}
	return b, nil
}

// Close ends idle connections. Pods keep running.
func (b *Backend) Close() error {
	b.api.Close()
	return nil
}

func (b *Backend) log(id string) *slog.Logger { return b.opts.Log.With("sandbox", id) }

// podName is the name of the pod of an instance.
func podName(id string) string { return "sandboxd-" + id }

// pod returns the pod of an instance. Without one, or if another one has its name, the error is
// ErrGone, or ErrStopped for an instance with a volume.
func (b *Backend) pod(ctx context.Context, inst sandbox.Instance) (cluster.Pod, error) {
	var p cluster.Pod
	err := b.api.Do(ctx, cluster.Request{Path: b.api.Path("pods", podName(inst.ID))}, &p)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return p, b.withoutPod(ctx, inst)
	case err != nil:
		return p, engine(err)
	case !b.owns(p, inst.ID), inst.Ref != "" && refOf(p) != inst.Ref:
		return p, b.withoutPod(ctx, inst)
	}
	return p, nil
}

// refOf returns the Instance.Ref of the instance that a pod belongs to.
func refOf(p cluster.Pod) string {
	return cmp.Or(p.Metadata.Labels[labelClaim], p.Metadata.UID)
}

// owns reports whether this daemon made a pod for the instance, or the probe, with an ID.
func (b *Backend) owns(p cluster.Pod, id string) bool {
	labels := p.Metadata.Labels
	return labels[labelDaemon] == b.opts.DaemonID &&
		(labels[labelID] == id || labels[labelProbe] == id)
}

// engine adds sandbox.ErrEngine or ErrRefused to an error of the API server.
func engine(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, cluster.ErrUnreachable) {
		return fmt.Errorf("%w: %w", sandbox.ErrEngine, err)
	}
	if errors.As(err, new(*cluster.Status)) {
		return fmt.Errorf("%w: %w", sandbox.ErrRefused, err)
	}
	return err
}

// refused is engine, with what to do about an error by which the server forbids a request, if that
// is known.
func (b *Backend) refused(err error) error {
	var hint string
	switch text := err.Error(); {
	case !errors.Is(err, cluster.ErrForbidden):
		return engine(err)
	case strings.Contains(text, "violates PodSecurity"):
		hint = "the namespace must allow the profile baseline: kubectl label --overwrite namespace " +
			b.api.Namespace + " pod-security.kubernetes.io/enforce=baseline"
	case strings.Contains(text, "exceeded quota"):
		hint = "remove a sandbox, or raise the quota of namespace " + b.api.Namespace
	case strings.Contains(text, " usage per "):
		hint = "use other limits, such as --memory, other requests in kubernetes.pod_template, or " +
			"change the LimitRange of namespace " + b.api.Namespace
	case strings.Contains(text, "is being terminated"):
		hint = "name another namespace: kubernetes.namespace"
	case strings.Contains(text, " cannot "): // User "x" cannot create resource "pods"
		hint = "sandboxd doctor shows which rights the daemon lacks"
	}
	return sandbox.Hint(engine(err), hint)
}

// await follows the pod of an instance until done, which gets nil if there is none, returns true or
// an error.
func (b *Backend) await(ctx context.Context, id string,
	done func(*cluster.Pod) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reached bool
	see := func(p *cluster.Pod) {
		if reached || ctx.Err() != nil {
			return
		}
		ok, err := done(p)
		if err != nil || ok {
			reached = err == nil
			cancel(err)
		}
	}
	err := cluster.Follow(ctx, b.api, b.api.Path("pods"),
		url.Values{"fieldSelector": {"metadata.name=" + podName(id)}}, cluster.Changes[cluster.Pod]{
			Replace: func(all []cluster.Pod) {
				if len(all) == 0 {
					see(nil)
					return
				}
				see(&all[0])
			},
			Put:    func(p cluster.Pod) { see(&p) },
			Delete: func(cluster.Pod) { see(nil) },
			Lost:   func(err error) { b.log(id).Warn("watch of a pod", "err", err) },
		})
	if reached {
		return nil
	}
	return engine(err)
}

// running reports whether the container of a pod runs. It returns an error if it has ended.
func running(p *cluster.Pod) (bool, error) {
	if p == nil {
		return false, sandbox.ErrGone
	}
	if !p.Metadata.Deleted.IsZero() {
		return false, sandbox.ErrGone
	}
	for _, c := range p.Status.Containers {
		if c.State.Running != nil {
			return true, nil
		}
	}
	if p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded" {
		return false, sandbox.ErrStopped
	}
	return false, nil
}

// ended returns ErrGone or ErrStopped if the pod of an instance does not run, nil if it does or is
// about to.
func (b *Backend) ended(ctx context.Context, inst sandbox.Instance) error {
	p, err := b.pod(ctx, inst)
	if err != nil {
		return err
	}
	if _, err = running(&p); errors.Is(err, sandbox.ErrGone) {
		return b.withoutPod(ctx, inst)
	}
	return err
}

// deleteGrace is how long the processes of a pod may run after a request to delete it. The guest
// does not obey signals.
const deleteGrace = 1

// removeWithin bounds how long a deleted pod may take to go. One on a node that does not answer never
// goes by itself.
const removeWithin = time.Minute

// remove deletes the pod of an instance, if this daemon made it, and waits until it is gone. The
// Ref may be empty.
func (b *Backend) remove(ctx context.Context, inst sandbox.Instance) error {
	p, err := b.pod(ctx, inst)
	if errors.Is(err, sandbox.ErrGone) || errors.Is(err, sandbox.ErrStopped) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.delete(ctx, inst.ID, p.Metadata.UID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removeWithin, sandbox.Hint(fmt.Errorf(
		"pod %s on node %s is not gone after %v: %w", p.Metadata.Name,
		cluster.Printable(p.Spec.Node), removeWithin, sandbox.ErrRefused),
		"if the node is off for good: kubectl delete pod --force "+p.Metadata.Name))
	defer cancel()
	return b.await(ctx, inst.ID, func(now *cluster.Pod) (bool, error) {
		return now == nil || now.Metadata.UID != p.Metadata.UID, nil
	})
}

// delete asks the cluster to delete a pod. One that is gone is no error.
func (b *Backend) delete(ctx context.Context, id, ref string) error {
	err := b.api.Do(ctx, cluster.Request{Method: http.MethodDelete,
		Path: b.api.Path("pods", podName(id)), Body: deletion(ref, deleteGrace)}, nil)
	if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrConflict) {
		return nil // another pod has its name
	}
	return engine(err)
}

// deletion returns the options to delete the object with a UID, and no other one of its name.
func deletion(uid string, grace int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace,
		"preconditions": map[string]string{"uid": uid}}
}

// Destroy deletes the pod, its volume and its directory. See sandbox.Backend.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("destroy: id %q is not a DNS label", inst.ID)
	}
	unlock, err := b.locks.Lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	defer unlock()
	if err := b.remove(ctx, inst); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	// A record of a creation that was interrupted does not say whether it has a volume.
	if err := b.volumes.delete(ctx, inst.ID, inst.Ref); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	// Last: the keys must exist as long as the pod may.
	if err := os.RemoveAll(b.state.Dir(inst.ID)); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	return nil
}

// List returns the instances of this daemon. It removes pods that an earlier daemon was making when
// it died: nobody can log in to them. See sandbox.Finder.
func (b *Backend) List(ctx context.Context) ([]sandbox.Instance, error) {
	pods, err := b.labeled(ctx, labelID)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var list []sandbox.Instance
	known := make(map[string]bool)
	for _, p := range pods {
		id := p.Metadata.Labels[labelID]
		if b.locks.Changing(id) {
			continue
		}
		n, err := b.state.ReadNote(id)
		if err == nil && n.Instance.ID == id && n.Instance.Ref == refOf(p) {
			known[id] = true
			list = append(list, n.Instance)
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err := b.removeOrphan(ctx, p); err != nil {
				b.log(id).Warn("a pod that nobody can log in to is left behind", "err", err)
			}
		}
	}
	stopped, err := b.volumes.stopped(ctx, known)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return append(list, stopped...), nil
}

// removeOrphan deletes a pod that nobody can log in to, and leaves its volume.
func (b *Backend) removeOrphan(ctx context.Context, p cluster.Pod) error {
	id := p.Metadata.Labels[labelID]
	unlock, err := b.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.remove(ctx, sandbox.Instance{ID: id, Ref: refOf(p)}); err != nil {
		return err
	}
	return os.RemoveAll(b.state.Dir(id))
}

// probeAge is the age from which on a probe belongs to no test of another program either, such as
// sandboxd doctor.
const probeAge = 10 * time.Minute

// Sweep removes the probes of an earlier daemon. See sandbox.Finder.
func (b *Backend) Sweep(ctx context.Context) error {
	probes, err := b.labeled(ctx, labelProbe)
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	for _, p := range probes {
		id := p.Metadata.Labels[labelProbe]
		if !b.locks.Changing(id) && time.Since(p.Metadata.Created) > probeAge {
			err = errors.Join(err, b.delete(ctx, id, p.Metadata.UID))
		}
	}
	return err
}

// labeled returns the pods of this daemon that have the ID in a label, and are not being deleted.
func (b *Backend) labeled(ctx context.Context, label string) ([]cluster.Pod, error) {
	all, _, err := cluster.List[cluster.Pod](ctx, b.api, b.api.Path("pods"),
		url.Values{"labelSelector": {labelDaemon + "=" + b.opts.DaemonID}})
	return slices.DeleteFunc(all, func(p cluster.Pod) bool {
		id := p.Metadata.Labels[label]
		return !guestconfig.ValidID.MatchString(id) || p.Metadata.Name != podName(id) ||
			!p.Metadata.Deleted.IsZero()
	}), engine(err)
}

// Inspect reports the state of a pod. See sandbox.Finder.
func (b *Backend) Inspect(ctx context.Context, inst sandbox.Instance) (sandbox.Status, error) {
	p, err := b.pod(ctx, inst)
	if err == nil && !p.Metadata.Deleted.IsZero() {
		err = b.withoutPod(ctx, inst)
	}
	if errors.Is(err, sandbox.ErrStopped) {
		return sandbox.Status{}, nil
	}
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("inspect %s: %w", inst.ID, err)
	}
	var s sandbox.Status
	s.Running, _ = running(&p)
	for _, c := range p.Status.Containers {
		if end := c.State.Terminated; end != nil {
			s.ExitCode, s.OOMKilled = end.ExitCode, end.Reason == "OOMKilled"
		}
	}
	if p.Status.Reason != "" {
		s.Notes = slices.Concat(s.Notes, []string{cluster.Printable(p.Status.Reason + ": " +
			p.Status.Message)})
	}
	return s, nil
}
