package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// Finding is the result of one check of Examine.
type Finding struct {
	Check string // what was checked
	OK    bool
	Found string
	Fix   string // what to do if it is not OK, or could be better
}

// right is what an account must be allowed to do in the namespace.
type right struct {
	group, resource, part string
	verbs                 []string
}

// rights returns what the backend needs. docs/how-to/kubernetes.md has a Role with all of them.
func rights(relayed bool) []right {
	connection := right{"", "pods", "portforward", []string{"create", "get"}}
	if relayed {
		connection.part = "exec"
	}
	return append(alwaysNeeded[:len(alwaysNeeded):len(alwaysNeeded)], connection)
}

var alwaysNeeded = []right{
	{"", "pods", "", []string{"create", "get", "list", "watch", "delete"}},
	{"", "pods", "attach", []string{"create", "get"}},
	{"", claims, "", []string{"create", "get", "list", "delete"}},
	{"networking.k8s.io", "networkpolicies", "", []string{"create"}},
}

// minorOfImageVolumes is the first 1.x version that mounts images as volumes without a feature gate.
const minorOfImageVolumes = 35

const rightsFix = "give the account of the daemon the Role in docs/how-to/kubernetes.md"

// Examine checks what sandboxes need of the cluster: that it answers, the account's rights, that
// nodes can run the guest, and that network policies are enforced. It makes pods for the last two,
// and removes them.
func (b *Backend) Examine(ctx context.Context) []Finding {
	version, minor, err := b.version(ctx)
	if err != nil {
		return []Finding{{Check: "cluster", Found: err.Error(),
			Fix: "see kubectl get pods; the keys kubernetes.kubeconfig and context choose the cluster"}}
	}
	all := []Finding{{Check: "cluster", OK: true, Found: "Kubernetes " + version + ", namespace " +
		b.api.Namespace}}
	missing, err := b.missingRights(ctx)
	switch {
	case err != nil:
		return append(all, Finding{Check: "rights", Found: err.Error(), Fix: rightsFix})
	case len(missing) > 0:
		return append(all, Finding{Check: "rights", Found: "the account may not " +
			strings.Join(missing, ", "), Fix: rightsFix})
	}
	all = append(all, Finding{Check: "rights", OK: true, Found: "the account may do all that it must"})
	guest := Finding{Check: "guest", OK: true, Found: b.opts.GuestImage}
	switch {
	case b.opts.ImageVolumes && minor < minorOfImageVolumes:
		return append(all, Finding{Check: "guest", Found: "this version mounts no images as volumes",
			Fix: "omit kubernetes.guest"})
	case !b.opts.ImageVolumes && minor >= minorOfImageVolumes:
		guest.Fix = "set kubernetes.guest to volume: sandboxes start a second earlier"
	}
	began := time.Now()
	closed, err := b.newProbe(ctx, probe{closed: true})
	if err != nil {
		return append(all, Finding{Check: "guest", Found: err.Error(), Fix: sandbox.HintOf(err)})
	}
	defer closed.remove(ctx)
	guest.Found += fmt.Sprintf(", answers after %.1f s", time.Since(began).Seconds())
	network := Finding{Check: "network", OK: true, Found: "node " +
		cluster.Printable(closed.node) + " enforces network policies"}
	if err = b.walls.raise(ctx); err == nil {
		err = b.walls.test(ctx, closed.node, closed.client)
	}
	switch {
	case errors.Is(err, sandbox.ErrUnsupported):
		network.Found, network.Fix = "network policies are not enforced: only --network bridge works",
			sandbox.HintOf(errOpen)
	case err != nil:
		network.OK, network.Found = false, err.Error()
	}
	return append(all, guest, network)
}

// version returns the version of the API server, and its second number; -1 if it has none.
func (b *Backend) version(ctx context.Context) (name string, minor int, err error) {
	var v struct{ GitVersion, Minor string }
	if err := b.api.Do(ctx, cluster.Request{Path: "/version"}, &v); err != nil {
		return "", 0, engine(err)
	}
	minor, err = strconv.Atoi(strings.TrimRight(v.Minor, "+")) // such as 35+
	if err != nil {
		minor = -1
	}
	return cluster.Printable(v.GitVersion), minor, nil
}

// missingRights returns what the account may not do in the namespace.
func (b *Backend) missingRights(ctx context.Context) (missing []string, err error) {
	for _, r := range rights(b.opts.Relayed) {
		for _, verb := range r.verbs {
			var review struct {
				Status struct {
					Allowed bool `json:"allowed"`
				} `json:"status"`
			}
			err := b.api.Do(ctx, cluster.Request{Method: http.MethodPost,
				Path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Body: map[string]any{
					"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
					"spec": map[string]any{"resourceAttributes": map[string]string{
						"namespace": b.api.Namespace, "verb": verb, "group": r.group,
						"resource": r.resource, "subresource": r.part}}}}, &review)
			if err != nil {
				return nil, engine(err)
			}
			if !review.Status.Allowed {
				what := r.resource
				if r.part != "" {
					what += "/" + r.part
				}
				missing = append(missing, verb+" "+what)
			}
		}
	}
	return missing, nil
}

// Version returns the version of the cluster, such as v1.36.3.
func (b *Backend) Version(ctx context.Context) (string, error) {
	name, _, err := b.version(ctx)
	return name, err
}
