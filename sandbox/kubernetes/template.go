package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// Template is what all pods have in addition to what podOf decides: where they may run, how much is
// reserved for them, and how other programs find them. It cannot change what a sandbox may do. The
// zero value adds nothing.
type Template struct {
	APIVersion string       `yaml:"apiVersion"`
	Kind       string       `yaml:"kind"`
	Metadata   templateMeta `yaml:"metadata"`
	Spec       templateSpec `yaml:"spec"`
}

type templateMeta struct {
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

type templateSpec struct {
	NodeSelector map[string]string `yaml:"nodeSelector"`
	Tolerations  []any             `yaml:"tolerations"`
	Affinity     map[string]any    `yaml:"affinity"`
	Spread       []any             `yaml:"topologySpreadConstraints"`
	Priority     string            `yaml:"priorityClassName"`
	Scheduler    string            `yaml:"schedulerName"`
	HostUsers    *bool             `yaml:"hostUsers"` // false is a user namespace
	Containers   []templateContainer
}

type templateContainer struct {
	Name      string
	Resources templateResources
}

type templateResources struct {
	Requests map[string]string
}

// ParseTemplate parses a Pod in YAML of which only the fields of a Template are set. Its container,
// if there is one, is named sandbox and has requests of resources. An empty text is the zero
// Template.
func ParseTemplate(text []byte) (Template, error) {
	var t Template
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&t); errors.Is(err, io.EOF) {
		return t, nil
	} else if err != nil {
		said := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  ")
		said, _, _ = strings.Cut(said, "\n")
		if before, _, ok := strings.Cut(said, " not found in type "); ok {
			said = before + " is not allowed"
		}
		return t, errors.New(said)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return t, errors.New("more than one document")
	}
	return t, t.check()
}

func (t Template) check() error {
	if t.Kind != "" && t.Kind != "Pod" {
		return fmt.Errorf("kind is %.50q; write Pod, or omit it", t.Kind)
	}
	for name := range t.Metadata.Labels {
		if strings.HasPrefix(name, "sandboxd.io/") {
			return fmt.Errorf("label %.100q: the daemon sets its own", name)
		}
	}
	if n := len(t.Spec.Containers); n > 1 || n == 1 && t.Spec.Containers[0].Name != container {
		return fmt.Errorf("containers: only one is allowed, of the name %s", container)
	}
	return nil
}

// addTo adds the template to a pod. A probe reserves nothing.
func (t Template) addTo(pod *cluster.Pod, probe bool) {
	maps.Copy(pod.Metadata.Labels, t.Metadata.Labels)
	pod.Metadata.Annotations = t.Metadata.Annotations
	s := &pod.Spec
	s.NodeSelector, s.Priority, s.Scheduler = t.Spec.NodeSelector, t.Spec.Priority, t.Spec.Scheduler
	s.HostUsers = t.Spec.HostUsers
	if len(t.Spec.Tolerations) > 0 {
		s.Tolerations = t.Spec.Tolerations
	}
	if len(t.Spec.Affinity) > 0 {
		s.Affinity = t.Spec.Affinity
	}
	if len(t.Spec.Spread) > 0 {
		s.Spread = t.Spec.Spread
	}
	if len(t.Spec.Containers) > 0 && !probe {
		maps.Copy(s.Containers[0].Resources.Requests, t.Spec.Containers[0].Resources.Requests)
	}
}
