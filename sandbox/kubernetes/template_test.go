package kubernetes

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

const template = `apiVersion: v1
kind: Pod
metadata:
  labels: {team: agents}
  annotations: {example.com/cost: "7"}
spec:
  nodeSelector: {kubernetes.io/arch: amd64}
  tolerations: [{key: agents, operator: Exists}]
  affinity: {podAntiAffinity: {}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
  priorityClassName: low
  schedulerName: other
  containers: [{name: sandbox, resources: {requests: {cpu: 1, memory: 1Gi}}}]
`

// What could change the rights of a sandbox, or has no effect, is an error that names it.
func TestTemplateErrors(t *testing.T) {
	for text, want := range map[string]string{
		"spec: {hostNetwork: true}": "line 1: field hostNetwork is not allowed",
		"spec:\n  volumes: []":      "line 2: field volumes is not allowed",
		"status: {}":                "field status is not allowed",
		"spec: {containers: [{name: sandbox, image: x}]}":           "field image is not allowed",
		"spec: {containers: [{name: other}]}":                       "only one is allowed, of the name sandbox",
		"spec: {containers: [{name: sandbox}, {name: b}]}":          "only one is allowed",
		"spec: {containers: [{name: sandbox, resources: {limits}}]": "did not find expected",
		"metadata: {labels: {sandboxd.io/network: open}}":           "the daemon sets its own",
		"metadata: {name: x}":                                       "field name is not allowed",
		"kind: Deployment":                                          "write Pod",
		"spec: {}\n---\nspec: {}":                                   "more than one document",
		"spec: [1]":                                                 "cannot unmarshal",
	} {
		if _, err := ParseTemplate([]byte(text)); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v; want %s", text, err, want)
		}
	}
	for _, text := range []string{"", "# nothing", "{}", template} {
		if _, err := ParseTemplate([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// All pods have it: of sandboxes, also after a stop, and of the test of the network.
func TestTemplateOfAll(t *testing.T) {
	f := newFake(t)
	f.enforces = true
	parsed, err := ParseTemplate([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	b := f.backend(func(o *Options) { o.Template = parsed })
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1", Network: sandbox.NetworkNone,
		Volume: sandbox.Volume{Size: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), inst, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	made := 0
	for _, e := range f.events {
		if e.Type != "ADDED" {
			continue
		}
		made++
		s := e.Object.Spec
		if e.Object.Metadata.Labels["team"] != "agents" ||
			s.NodeSelector["kubernetes.io/arch"] != "amd64" || s.Tolerations == nil || s.Affinity == nil {
			t.Errorf("%s: %+v", e.Object.Metadata.Name, s)
		}
	}
	if made != 4 {
		t.Errorf("%d pods, want the sandbox twice, and two of a test", made)
	}
}
