//go:build cluster

package kubernetes

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// A daemon finds thousands of pods. They are objects of the API server that no node runs;
// SANDBOXD_TEST_OBJECTS is how many.
func TestClusterFinds(t *testing.T) {
	most, _ := strconv.Atoi(os.Getenv("SANDBOXD_TEST_OBJECTS")) // 0 without
	if most == 0 {
		most = 1000
	}
	b := onCluster(t)
	ctx := t.Context()
	ours := url.Values{"labelSelector": {labelDaemon + "=" + b.opts.DaemonID}}
	defer func() { // at once: one by one takes minutes
		if err := b.api.Do(ctx, cluster.Request{Method: http.MethodDelete, Path: b.api.Path("pods"),
			Query: ours}, nil); err != nil {
			t.Error(err)
		}
	}()
	make := func(i int) error {
		p := podOf(plan{Daemon: b.opts.DaemonID, ID: fmt.Sprintf("many-%d", i), Image: baseImage,
			GuestImage: b.opts.GuestImage, ImageVolumes: true, Limits: sandbox.DefaultLimits})
		p.Spec.Scheduler = "nobody"
		var got cluster.Pod
		if err := b.api.Do(ctx, cluster.Request{Method: http.MethodPost, Path: b.api.Path("pods"),
			Body: p}, &got); err != nil {
			return err
		}
		id := p.Metadata.Labels[labelID]
		if err := os.Mkdir(b.state.Dir(id), 0o700); err != nil {
			return err
		}
		return b.state.WriteNote(id, guestconfig.Note{Name: id,
			Instance: sandbox.Instance{ID: id, Ref: got.Metadata.UID}})
	}
	var all errgroup.Group
	all.SetLimit(8)
	began := time.Now()
	for i := range most {
		all.Go(func() error { return make(i) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pods made in %.1f s", most, time.Since(began).Seconds())

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began = time.Now()
	list, err := b.List(ctx)
	took := time.Since(began)
	if err != nil || len(list) != most {
		t.Fatalf("%d instances, %v, want %d", len(list), err, most)
	}
	runtime.ReadMemStats(&after)
	t.Logf("listed in %.2f s, memory of the process %d MiB, before %d MiB", took.Seconds(),
		after.Sys>>20, before.Sys>>20)

	began = time.Now()
	for _, inst := range list {
		if _, err := b.Inspect(ctx, inst); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("inspected one by one in %.2f s", time.Since(began).Seconds())
}
