package kubernetes

import (
	"strings"
	"testing"
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
  hostUsers: false
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
