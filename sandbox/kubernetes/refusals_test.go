//go:build cluster

package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// space is a namespace of a test, and a backend that uses it as an account with the rights of the
// documentation.
type space struct {
	t     *testing.T
	name  string
	admin *cluster.Client
	token string // file with the account's token
	b     *Backend
}

// role returns the rules of the documented Role, without one resource; empty leaves out none.
func role(without string) (rules []map[string]any) {
	for _, r := range append(rights(false), rights(true)...) {
		resource := strings.TrimSuffix(r.resource+"/"+r.part, "/")
		if resource != without {
			rules = append(rules, map[string]any{"apiGroups": []string{r.group},
				"resources": []string{resource}, "verbs": r.verbs})
		}
	}
	return rules
}

// newSpace returns a namespace with these labels. It is deleted when t ends. As an administrator, the
// backend does not use the account.
func newSpace(t *testing.T, administrator bool, labels map[string]string) *space {
	t.Helper()
	admin := onCluster(t).api
	s := &space{t: t, name: newID(), admin: admin, token: filepath.Join(t.TempDir(), "token")}
	s.create("/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": s.name, "labels": labels}})
	t.Cleanup(func() { s.delete("/api/v1/namespaces/" + s.name) })
	s.create("/apis/rbac.authorization.k8s.io/v1/namespaces/"+s.name+"/roles", map[string]any{
		"metadata": map[string]string{"name": "sandboxd"}, "rules": role("")})
	s.account("first")
	config, err := cluster.Kubeconfig([]string{os.Getenv("SANDBOXD_TEST_KUBECONFIG")}, "")
	if err != nil {
		t.Fatal(err)
	}
	if config.Namespace = s.name; !administrator {
		config.Certificate, config.Key, config.TokenFile = nil, nil, s.token
	}
	client, err := cluster.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s.b = onCluster(t, func(o *Options) { o.Cluster = client })
	return s
}

// create makes an object.
func (s *space) create(path string, object any) {
	s.t.Helper()
	if err := s.admin.Do(s.t.Context(), cluster.Request{Method: http.MethodPost, Path: path,
		Body: object}, nil); err != nil {
		s.t.Fatal(err)
	}
}

// delete deletes an object. One that is gone is no error.
func (s *space) delete(path string) {
	s.t.Helper()
	ctx := context.WithoutCancel(s.t.Context()) // also after the end of the test
	err := s.admin.Do(ctx, cluster.Request{Method: http.MethodDelete, Path: path}, nil)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		s.t.Error(err)
	}
}

// account makes a service account with the role, and writes its token.
func (s *space) account(name string) {
	s.t.Helper()
	accounts := "/api/v1/namespaces/" + s.name + "/serviceaccounts"
	s.create(accounts, map[string]any{"metadata": map[string]string{"name": name}})
	s.create("/apis/rbac.authorization.k8s.io/v1/namespaces/"+s.name+"/rolebindings", map[string]any{
		"metadata": map[string]string{"name": name},
		"roleRef": map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
			"name": "sandboxd"},
		"subjects": []map[string]string{{"kind": "ServiceAccount", "name": name, "namespace": s.name}}})
	var got struct{ Status struct{ Token string } }
	if err := s.admin.Do(s.t.Context(), cluster.Request{Method: http.MethodPost,
		Path: accounts + "/" + name + "/token", Body: map[string]any{"kind": "TokenRequest",
			"apiVersion": "authentication.k8s.io/v1"}}, &got); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.token, []byte(got.Status.Token), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// boot makes a sandbox, and returns the error.
func (s *space) boot() (sandbox.Instance, error) {
	return s.b.Boot(s.t.Context(), sandbox.Spec{ID: newID(), Image: baseImage,
		Network: sandbox.NetworkBridge})
}

// refused makes sure that a boot fails with these words, and leaves nothing.
func (s *space) refused(words ...string) {
	s.t.Helper()
	inst, err := s.boot()
	if err == nil {
		s.t.Fatalf("booted %+v", inst)
	}
	if boot, ok := errors.AsType[*sandbox.BootError](err); ok {
		s.t.Logf("%v; %s", err, boot.Hint)
	}
	if !errors.Is(err, sandbox.ErrRefused) {
		s.t.Errorf("%v is not %v", err, sandbox.ErrRefused)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			s.t.Errorf("%v: lacks %q", err, word)
		}
	}
	left, err := os.ReadDir(s.b.opts.Dir)
	if err != nil || len(left) > 0 {
		s.t.Errorf("%v, %v is left", left, err)
	}
}

// eventually waits until it holds: the server learns of some changes later.
func (s *space) eventually(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			s.t.Fatalf("%s: not within a minute", what)
		}
		<-time.After(100 * time.Millisecond)
	}
}

func TestClusterQuota(t *testing.T) {
	s := newSpace(t, false, nil)
	quotas := "/api/v1/namespaces/" + s.name + "/resourcequotas"
	s.create(quotas, map[string]any{"metadata": map[string]string{"name": "few"},
		"spec": map[string]any{"hard": map[string]string{"pods": "1"}}})
	s.eventually("the quota is in force", func() bool {
		var q struct {
			Status struct{ Hard map[string]string }
		}
		err := s.admin.Do(t.Context(), cluster.Request{Path: quotas + "/few"}, &q)
		return err == nil && q.Status.Hard["pods"] == "1"
	})
	inst, err := s.boot()
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, s.b, inst, "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
	if _, err := s.boot(); !errors.Is(err, sandbox.ErrRefused) ||
		!strings.Contains(err.Error(), "exceeded quota: few") {
		t.Errorf("%v", err)
	}
	if err := s.b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	// The quota counts the pod until the server has noticed its end.
	s.eventually("there is room again", func() bool {
		inst, err = s.boot()
		return err == nil
	})
}

// A cluster that allows only pods of the profile restricted refuses all sandboxes, and says why.
func TestClusterRestricted(t *testing.T) {
	newSpace(t, false, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}).refused(
		"violates PodSecurity", "restricted", "capabilities")
	s := newSpace(t, false, map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	if _, err := s.boot(); err != nil {
		t.Errorf("baseline: %v", err)
	}
}

// A namespace is deleted with all sandboxes. They are gone, and no new one is made.
func TestClusterNamespaceDeleted(t *testing.T) {
	s := newSpace(t, true, nil)
	inst, err := s.boot()
	if err != nil {
		t.Fatal(err)
	}
	s.delete("/api/v1/namespaces/" + s.name)
	s.eventually("the sandbox is gone", func() bool {
		_, err := s.b.Inspect(t.Context(), inst)
		return errors.Is(err, sandbox.ErrGone)
	})
	s.eventually("nobody answers", func() bool { // a pod that is being deleted does for a second
		peer, err := s.b.Dial(t.Context(), inst)
		if err == nil {
			peer.Conn.Close()
		}
		return errors.Is(err, sandbox.ErrGone)
	})
	if err := s.b.Destroy(t.Context(), inst); err != nil {
		t.Errorf("destroy: %v", err)
	}
	// First because the namespace is being deleted, then because there is none.
	s.refused(s.name)
}

// The account of a daemon may go, or lose a right. Sandboxes go on, and a new token in the same file
// is used at once.
func TestClusterAccount(t *testing.T) {
	s := newSpace(t, false, nil)
	inst, err := s.boot()
	if err != nil {
		t.Fatal(err)
	}
	s.delete("/api/v1/namespaces/" + s.name + "/serviceaccounts/first")
	s.eventually("the token is no longer valid", func() bool {
		_, err := s.b.Inspect(t.Context(), inst)
		if err != nil && (!errors.Is(err, sandbox.ErrRefused) || errors.Is(err, sandbox.ErrGone)) {
			t.Fatalf("%v: as if there were no sandbox", err)
		}
		return errors.Is(err, cluster.ErrUnauthorized)
	})
	if _, err := s.b.List(t.Context()); !errors.Is(err, cluster.ErrUnauthorized) {
		t.Errorf("list: %v", err)
	}
	if err := s.b.Destroy(t.Context(), inst); err == nil {
		t.Error("destroyed without a right")
	}
	s.account("second")
	s.eventually("the new token is used", func() bool {
		_, err := s.b.Inspect(t.Context(), inst)
		return err == nil
	})
	if got := output(t, s.b, inst, "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}

	// Without a right, a boot fails soon, and says which one it is.
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + s.name + "/roles/sandboxd"
	for _, missing := range []string{"pods/attach", "pods/portforward"} {
		if err := s.admin.Do(t.Context(), cluster.Request{Method: http.MethodPut, Path: path,
			Body: map[string]any{"metadata": map[string]string{"name": "sandboxd"},
				"rules": role(missing)}}, nil); err != nil {
			t.Fatal(err)
		}
		var err error
		s.eventually("the server knows the role", func() bool {
			_, err = s.boot()
			return err != nil && strings.Contains(err.Error(), strconv.Quote(missing))
		})
		boot, ok := errors.AsType[*sandbox.BootError](err)
		if !ok || !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(boot.Hint, "doctor") ||
			strings.Contains(err.Error(), "does not answer within") {
			t.Errorf("without the right to %s: %v; %s", missing, err, boot.Hint)
		}
	}
}
