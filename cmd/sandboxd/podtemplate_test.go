package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What one machine can carry does not bound the sandboxes of a cluster.
func TestClusterBounds(t *testing.T) {
	c := new(config.Loaded)
	c.Backend, c.Total.Sandboxes = "kubernetes", 5000
	if o := hubOptions(c); o.Total.Running != 5000 || o.Boots != clusterBoots {
		t.Errorf("%+v, %d starts at a time", o.Total, o.Boots)
	}
	c.Total.Running = 7
	if o := hubOptions(c); o.Total.Running != 7 {
		t.Errorf("%+v", o.Total)
	}
	c.Backend, c.Total.Running = "docker", 0
	if o := hubOptions(c); o.Total.Running != 0 || o.Boots != 0 {
		t.Errorf("on one machine: %+v, %d starts at a time", o.Total, o.Boots)
	}
}

// A template that cannot be used is an error that names the file and the field.
func TestPodTemplateErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	c := new(config.Loaded)
	c.Kubernetes.GuestImage, c.Kubernetes.PodTemplate = "guest:1", config.Path(path)
	wants := func(want string) {
		t.Helper()
		_, err := openCluster(c, "d1", nil)
		if !errors.Is(err, &wire.Error{Code: wire.CodeUsage}) || !strings.Contains(err.Error(),
			"kubernetes.pod_template: "+path+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want %s", err, want)
		}
	}
	wants("no such file or directory")
	if err := os.WriteFile(path, []byte("spec: {hostNetwork: true}"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants("field hostNetwork is not allowed")
}
