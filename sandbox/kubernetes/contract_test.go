//go:build cluster

package kubernetes

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

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
	o := Options{Dir: t.TempDir(), Cluster: client, DaemonID: "t" + strings.ToLower(rand.Text()[:12]),
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

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return onCluster(t) },
		Spec:    sandbox.Spec{Image: "sandboxd.test/base:1", Network: sandbox.NetworkBridge},
		NoImage: "registry.invalid/none:latest",
		Refused: []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkFiltered,
			sandbox.NetworkAllowlist},
	})
}
