package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// walls makes sure that the packets of a sandbox without a network of its own stay in its pod. A
// cluster accepts network policies that nothing enforces, so that is tested and never assumed.
type walls struct {
	b     *Backend
	reach time.Duration // how long a closed pod tries to connect
	// connects is the function of that name, but in tests.
	connects func(ctx context.Context, client *ssh.Client, to string, within time.Duration) bool

	testing guestconfig.Locks // by node

	mu     sync.Mutex
	tested map[string]time.Time // guarded by mu; nodes that enforce it, and when that was tested
}

const (
	// testedFor is how long a test of a node counts.
	testedFor = time.Hour
	// canaryPort is the port of a canary that everyone in the cluster can connect to.
	canaryPort = 42023
	// A connection that nothing stops is open within milliseconds. One that a policy drops never is.
	reachWithin = 2 * time.Second
	// testWithin bounds a test, whose pods may have to wait for their image.
	testWithin = 2 * time.Minute
	// controlWithin is how long a new canary may take to be reachable.
	controlWithin = 10 * time.Second
)

// policyPath is that of network policies in a namespace.
const policyPath = "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies"

// policies are those of closed pods and of probes. A cluster may have others: they add up, so that
// probes can connect also where nothing may by default.
var policies = map[string]map[string]any{
	"sandboxd-closed": {
		"podSelector": map[string]any{"matchLabels": map[string]string{labelNetwork: closed}},
		"policyTypes": []string{"Ingress", "Egress"}},
	"sandboxd-probe": {
		"podSelector": map[string]any{"matchExpressions": []map[string]string{
			{"key": labelProbe, "operator": "Exists"},
			{"key": labelNetwork, "operator": "DoesNotExist"}}},
		"policyTypes": []string{"Ingress", "Egress"},
		"ingress":     []map[string]any{{}}, "egress": []map[string]any{{}}},
}

// raise creates the network policies, unless they exist.
func (w *walls) raise(ctx context.Context) error {
	for name, spec := range policies {
		err := w.b.api.Do(ctx, cluster.Request{Method: http.MethodPost,
			Path: fmt.Sprintf(policyPath, w.b.api.Namespace), Body: map[string]any{
				"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
				"metadata": map[string]string{"name": name}, "spec": spec}}, nil)
		if err != nil && !errors.Is(err, cluster.ErrAlreadyExists) {
			return fmt.Errorf("network policy: %w", w.b.refused(err))
		}
	}
	return nil
}

// isTested reports whether an earlier test of the node counts.
func (w *walls) isTested(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.tested[node]) < testedFor
}

// errOpen is the error of a cluster whose network does not enforce policies.
var errOpen = sandbox.Hint(fmt.Errorf("network policies: %w: nothing in the cluster enforces them: the "+
	"sandbox could connect to another pod", sandbox.ErrUnsupported),
	"install a network plugin that enforces them, such as Cilium or Calico, or use --network bridge")

// test tests that a closed pod on a node cannot connect to another pod. client is a connection to
// the pod's guest. An earlier test of the node counts for testedFor.
func (w *walls) test(ctx context.Context, node string, client *ssh.Client) error {
	unlock, err := w.testing.Lock(ctx, node)
	if err != nil {
		return err
	}
	defer unlock()
	if w.isTested(node) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, testWithin, fmt.Errorf(
		"test of network policies: no result within %v", testWithin))
	defer cancel()
	defer context.AfterFunc(ctx, func() { client.Close() })() // x/crypto knows no ctx
	var canary, control *probe
	var canaryErr, controlErr error
	var made sync.WaitGroup
	made.Go(func() {
		canary, canaryErr = w.b.newProbe(ctx, probe{address: ":" + strconv.Itoa(canaryPort)})
	})
	made.Go(func() { control, controlErr = w.b.newProbe(ctx, probe{node: node}) })
	made.Wait()
	defer canary.remove(ctx)
	defer control.remove(ctx)
	if err := errors.Join(canaryErr, controlErr); err != nil {
		return fmt.Errorf("test of network policies: %w", err)
	}
	address := net.JoinHostPort(canary.ip, strconv.Itoa(canaryPort))
	// That the pod cannot connect counts only if another one can, before and after, and if the pod
	// has tried.
	fails := fmt.Errorf("test of network policies: pods without one cannot connect to each other: %w",
		sandbox.ErrRefused)
	if !w.connects(ctx, control.client, address, controlWithin) {
		return fails
	}
	if w.connects(ctx, client, address, w.reach) {
		return errOpen
	}
	if _, _, err := client.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		return fmt.Errorf("test of network policies: the guest: %w", err)
	}
	if !w.connects(ctx, control.client, address, controlWithin) {
		return fails
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tested[node] = time.Now()
	return nil
}

// connects reports whether a guest can connect to address. It tries again until the time is over.
func connects(ctx context.Context, client *ssh.Client, address string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		conn, err := client.DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
			return true
		}
		select {
		case <-time.After(redialMost):
		case <-ctx.Done():
		}
	}
	return false
}

// probe is a pod that runs only the guest.
type probe struct {
	address string // TCP address on which it listens for others; may be empty
	closed  bool   // the network policy applies to it, and it is made like a sandbox
	node    string // where it runs; empty means anywhere until it does

	b      *Backend
	id     string
	ref    string
	ip     string
	client *ssh.Client
	unlock func() // ends the time in which Sweep leaves it alone
}

// newProbe makes a probe like p, whose other fields are empty.
func (b *Backend) newProbe(ctx context.Context, like probe) (*probe, error) {
	id := "probe-" + strings.ToLower(rand.Text()[:12])
	config := wire.GuestConfig{Version: wire.Version, Name: id, Listen: guestListen()}
	if like.address != "" {
		config.Listen = append(config.Listen, "tcp:"+like.address)
	}
	k, err := guestconfig.NewKeys(config)
	if err != nil {
		return nil, err
	}
	p, s := &like, &booting{b: b}
	p.b, p.id = b, id
	if p.unlock, err = b.locks.Lock(ctx, id); err != nil {
		return nil, err
	}
	want := podOf(plan{Daemon: b.opts.DaemonID, ID: id, Probe: true, Image: b.opts.GuestImage,
		ImageVolumes: b.opts.ImageVolumes, GuestImage: b.opts.GuestImage, PullSecrets: b.opts.PullSecrets,
		Closed: p.closed, Node: p.node, Template: b.opts.Template,
		Limits: sandbox.Limits{Memory: 64 << 20, CPUs: 0.5, Disk: 64 << 20, Shm: 1 << 20}})
	err = s.create(ctx, want)
	if p.ref = s.ref; err == nil {
		var pod *cluster.Pod
		if pod, err = s.start(ctx, id, b.opts.GuestImage, nil); err == nil {
			p.ip, p.node = pod.Status.IP, pod.Spec.Node
			var conn *connect.Conn
			if conn, err = s.configure(ctx, id, k); err == nil {
				p.client = conn.Client()
			}
		}
	}
	if err != nil {
		p.remove(ctx)
		return nil, err
	}
	return p, nil
}

// remove deletes the pod, also after ctx has ended.
func (p *probe) remove(ctx context.Context) {
	if p == nil {
		return
	}
	defer p.unlock()
	if p.ref == "" {
		return
	}
	if p.client != nil {
		p.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	if err := p.b.delete(ctx, p.id, p.ref); err != nil {
		p.b.log(p.id).Warn("a pod of a test is left behind", "err", err)
	}
}
