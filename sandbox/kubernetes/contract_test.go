//go:build cluster

package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// baseImage is an image that the nodes have.
const baseImage = "sandboxd.test/base:1"

func newID() string { return "t" + strings.ToLower(rand.Text()[:12]) }

// onCluster returns a backend on the cluster that make -C scripts kubernetes has started. Its pods
// are removed when t ends.
func onCluster(t *testing.T, change ...func(*Options)) *Backend {
	t.Helper()
	config, err := cluster.Kubeconfig([]string{os.Getenv("SANDBOXD_TEST_KUBECONFIG")}, "")
	if err != nil {
		t.Fatal(err)
	}
	client, err := cluster.New(config)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: t.TempDir(), Cluster: client, DaemonID: newID(),
		GuestImage: "sandboxd.test/guest:1", ImageVolumes: true}
	for _, f := range change {
		f(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		left, err := b.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, inst := range left {
			if err := b.Destroy(ctx, inst); err != nil {
				t.Error(err)
			}
		}
		b.Close()
	})
	return b
}

// More authorities follow those of the daemon's machine, from the start and later, for every user.
func TestClusterAuthorities(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := onCluster(t, func(o *Options) { o.CABundle = bundle })
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: baseImage, User: "1234:1234",
		Network: sandbox.NetworkBridge, Authorities: []byte("first\n")})
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"first\n", "second\n", ""} {
		if more != "first\n" {
			if err := b.Trust(t.Context(), inst, []byte(more)); err != nil {
				t.Fatal(err)
			}
		}
		if got := output(t, b, inst, "cat $SSL_CERT_FILE"); got != "of the host\n"+more {
			t.Errorf("got %q, want more: %q", got, more)
		}
	}
}

// output runs a command in an instance.
func output(t *testing.T, b *Backend, inst sandbox.Instance, command string) string {
	t.Helper()
	peer, err := b.Dial(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect.SSH(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	client := conn.Client()
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.CombinedOutput(command)
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return onCluster(t) },
		Spec:    sandbox.Spec{Image: baseImage, Network: sandbox.NetworkBridge},
		NoImage: "registry.invalid/none:latest",
		Refused: []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkFiltered,
			sandbox.NetworkAllowlist},
	})
}

// storageClass is that of the volumes that offerVolumes makes.
const storageClass = "sandboxd-test"

// offerVolumes makes n directories of the node available for claims. They are removed when t ends.
func offerVolumes(t *testing.T, n int) {
	t.Helper()
	b := onCluster(t)
	dir := t.TempDir()
	for range n {
		id := newID()
		err := b.api.Do(t.Context(), cluster.Request{Method: http.MethodPost,
			Path: "/api/v1/persistentvolumes", Body: map[string]any{
				"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]string{"name": id},
				"spec": map[string]any{"storageClassName": storageClass,
					"capacity":    map[string]string{"storage": "1Gi"},
					"accessModes": []string{"ReadWriteOnce"},
					"hostPath": map[string]string{"path": filepath.Join(dir, id),
						"type": "DirectoryOrCreate"}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.api.Do(context.Background(), cluster.Request{Method: http.MethodDelete,
				Path: "/api/v1/persistentvolumes/" + id}, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClusterContractWithVolume(t *testing.T) {
	offerVolumes(t, 24)
	sandboxtest.Run(t, sandboxtest.Suite{
		Open: func(t *testing.T) sandbox.Backend {
			return onCluster(t, func(o *Options) { o.StorageClass = storageClass })
		},
		Spec: sandbox.Spec{Image: baseImage, Network: sandbox.NetworkBridge,
			Volume: sandbox.Volume{Size: 1 << 20}},
		NoImage: "registry.invalid/none:latest",
	})
}

// The directory of a new volume belongs to the user of the sessions, also after a stop. One that has
// files keeps its owner.
func TestClusterVolumeOfUser(t *testing.T) {
	offerVolumes(t, 2)
	b := onCluster(t, func(o *Options) { o.StorageClass = storageClass })
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: baseImage, User: "1234:1235",
		Network: sandbox.NetworkBridge, Volume: sandbox.Volume{Size: 1 << 20, Path: "/work/files"}})
	if err != nil {
		t.Fatal(err)
	}
	const look = "cd /work/files && echo x >>file && stat -c %u:%g . && cat file"
	if got := output(t, b, inst, look); got != "1234:1235\nx\n" {
		t.Errorf("%q", got)
	}
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if inst, err = b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := output(t, b, inst, look); got != "1234:1235\nx\nx\n" {
		t.Errorf("after a stop: %q", got)
	}
}

// The daemon may also connect by a program in the container, which a rescue spares.
func TestClusterRelayed(t *testing.T) {
	b := onCluster(t, func(o *Options) { o.Relayed = true })
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: baseImage,
		Network: sandbox.NetworkBridge})
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, b, inst, "head -c 3000000 /dev/zero | wc -c; head -c 1000000 /dev/zero"); got !=
		"3000000\n"+strings.Repeat("\x00", 1000000) {
		t.Errorf("got %d bytes: %.100q", len(got), got)
	}
	if _, err := b.Dial(t.Context(), sandbox.Instance{ID: newID()}); !errors.Is(err,
		sandbox.ErrGone) {
		t.Errorf("no pod: %v", err)
	}
	peer, err := b.Dial(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	orders, err := connect.OpenControl(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	output(t, b, inst, "(setsid sleep 1000 >/dev/null 2>&1 &)")
	if reply, err := orders.Do(t.Context(), wire.Control{Do: "rescue"}); err != nil ||
		reply.Killed == 0 {
		t.Errorf("rescue: %+v, %v", reply, err)
	}
	if got := output(t, b, inst, "ps -e -o comm= | grep -c sleep || true"); got != "0\n" {
		t.Errorf("%s programs are left", got)
	}
}

// doctor's checks, with an account that may do all, on a node that enforces nothing.
func TestClusterExamine(t *testing.T) {
	for _, f := range onCluster(t).Examine(t.Context()) {
		t.Logf("%+v", f)
		if !f.OK || (f.Fix != "") != (f.Check == "network") {
			t.Errorf("%+v", f)
		}
	}
}
