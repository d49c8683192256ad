package kubernetes

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// Each thing that is missing is found, with what to do about it, and nothing is left behind.
func TestExamine(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*fake)
		options func(*Options)
		check   string
		ok      bool
		found   string
		fix     string
	}{
		"fine": {func(*fake) {}, func(*Options) {}, "network", true, "enforces network policies", ""},
		"rights": {func(f *fake) {
			f.denied = map[string]bool{"watch pods": true, "create pods/attach": true}
		}, func(*Options) {}, "rights", false, "may not watch pods, create pods/attach", "Role"},
		"old": {func(f *fake) { f.minor = "34+" }, func(*Options) {}, "guest", false, "no images as volumes",
			"omit kubernetes.guest"},
		"slow": {func(*fake) {}, func(o *Options) { o.ImageVolumes = false }, "guest", true,
			"answers after", "set kubernetes.guest"},
		"open": {func(f *fake) { f.enforces = false }, func(*Options) {}, "network", true,
			"not enforced", "install a network plugin"},
		"away": {func(f *fake) { f.http.Close() }, func(*Options) {}, "cluster", false,
			"does not answer", "kubernetes.kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.enforces = true
			b := f.backend(tt.options)
			tt.change(f)
			all := b.Examine(t.Context())
			last := all[len(all)-1]
			for _, found := range all {
				if found.Check == tt.check {
					last = found
				} else if !found.OK {
					t.Errorf("%+v", found)
				}
			}
			if last.Check != tt.check || last.OK != tt.ok || !strings.Contains(last.Found, tt.found) ||
				!strings.Contains(last.Fix, tt.fix) || (tt.fix == "") != (last.Fix == "") {
				t.Errorf("%+v", all)
			}
			if len(f.pods) != 0 {
				t.Errorf("left: %v", f.pods)
			}
		})
	}
}

// The Role in the documentation and that of the chart are what Examine asks for.
func TestRoles(t *testing.T) {
	want := make(map[string]bool)
	for _, r := range append(rights(false), rights(true)...) {
		for _, verb := range r.verbs {
			want[strings.TrimSuffix(verb+" "+r.group+" "+r.resource+"/"+r.part, "/")] = true
		}
	}
	for _, file := range []string{"../../docs/how-to/kubernetes.md",
		"../../scripts/packaging/chart/templates/role.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]bool)
		for line := range strings.Lines(string(text)) {
			rule, ok := strings.CutPrefix(strings.TrimSpace(line), "- {apiGroups:")
			if !ok {
				continue
			}
			var r struct {
				APIGroups, Resources, Verbs []string
			}
			if err := yaml.Unmarshal([]byte("{apigroups:"+rule), &r); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					got[verb+" "+r.APIGroups[0]+" "+resource] = true
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}
