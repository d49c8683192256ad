package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// openCluster returns the backend of pods for a daemon with an ID. It does not contact the cluster.
func openCluster(c *config.Loaded, id string, log *slog.Logger) (*kubernetes.Backend, error) {
	k := c.Kubernetes
	if k.GuestImage == "" {
		return nil, &wire.Error{Code: wire.CodeUsage,
			Message: "configuration: kubernetes.guest_image is required with backend kubernetes",
			Hint:    "see docs/how-to/kubernetes.md"}
	}
	template, err := podTemplate(string(k.PodTemplate))
	if err != nil {
		return nil, err
	}
	where, err := clusterConfig(k)
	if err != nil {
		return nil, err
	}
	where.Namespace = cmp.Or(k.Namespace, where.Namespace)
	client, err := cluster.New(where)
	if err != nil {
		return nil, err
	}
	return kubernetes.New(kubernetes.Options{
		Dir:     filepath.Join(string(c.State), "pods"),
		Cluster: client, DaemonID: id, GuestImage: k.GuestImage, ImageVolumes: k.Guest == "volume",
		Template: template, StorageClass: k.StorageClass, Relayed: k.Connection == "exec",
		PullSecrets: k.PullSecrets, CABundle: string(c.CABundle), Log: log,
	})
}

// podTemplate reads the file of kubernetes.pod_template; an empty path is an empty template.
func podTemplate(path string) (t kubernetes.Template, err error) {
	if path == "" {
		return t, nil
	}
	text, err := os.ReadFile(path)
	if err == nil {
		t, err = kubernetes.ParseTemplate(text)
	}
	if err != nil {
		return t, &wire.Error{Code: wire.CodeUsage,
			Message: fmt.Sprintf("configuration: kubernetes.pod_template: %s: %v", path,
				strings.TrimPrefix(err.Error(), "open "+path+": ")),
			Hint: "see docs/how-to/kubernetes.md"}
	}
	return t, nil
}

// inPod reports whether this program runs in a pod.
func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// clusterConfig finds the API server, and how to log in to it.
func clusterConfig(k config.Kubernetes) (cluster.Config, error) {
	switch {
	case k.Kubeconfig != "":
		return cluster.Kubeconfig([]string{string(k.Kubeconfig)}, k.Context)
	case inPod():
		return cluster.InCluster()
	}
	return cluster.Kubeconfig(cluster.DefaultKubeconfig(), k.Context)
}

// examiner returns the backend of pods for a check outside of the daemon, whose state directory
// need not exist yet.
func examiner(c *config.Loaded) (*kubernetes.Backend, error) {
	id := "doctor"
	if text, err := os.ReadFile(filepath.Join(string(c.State), daemonIDFile)); err == nil {
		id = strings.TrimSpace(string(text)) // the daemon removes what a killed doctor leaves
	}
	return openCluster(c, id, nil)
}

// checkCluster checks the cluster that sandboxes run on.
func (d doctor) checkCluster(ctx context.Context) []finding {
	b, err := examiner(d.cli.config)
	if err != nil {
		e := public(err)
		return []finding{{Check: "cluster", Found: e.Message, Fix: e.Hint}}
	}
	defer b.Close()
	var all []finding
	for _, f := range b.Examine(ctx) {
		all = append(all, finding(f))
	}
	return all
}

// clusterFacts describes the cluster, as engineFacts does for an engine.
func clusterFacts(ctx context.Context, c *config.Loaded) (facts, note string) {
	b, err := examiner(c)
	if err == nil {
		defer b.Close()
		var version string
		if version, err = b.Version(ctx); err == nil {
			return "kubernetes " + version + "; no account", ""
		}
	}
	return "no account", "cluster: no answer, sandboxes cannot start; see: sandboxd doctor"
}
