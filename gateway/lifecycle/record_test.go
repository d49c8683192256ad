package lifecycle

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
)

// asked is what the store and the notes of sandboxes have had from the first version on.
const asked = `{"ID":"id","Name":"demo","Owner":"alice","Image":"debian","Network":"filtered","Via":"","Allow":["example.org:443"],
	"Limits":{"memory":1073741824},"User":"","Sudo":true,"Env":["A=1"],"Mounts":[{"Path":"/srv"}],"Workdir":"","Dir":"/srv","Recipe":"sum",
	"Made":"Dockerfile","About":"notes","Host":{}`

func asOf() Asked {
	a := Asked{Spec: sandbox.Spec{ID: "id", Name: "demo", Owner: "alice", Image: "debian",
		Network: sandbox.NetworkFiltered,
		Limits:  sandbox.Limits{Memory: 1 << 30}, Sudo: true, Env: []string{"A=1"},
		Mounts: []sandbox.Mount{{Path: "/srv"}}},
		Allow: []string{"example.org:443"}, Dir: "/srv", Recipe: "sum", ImageSource: "Dockerfile",
		About:  "notes",
		Labels: map[string]string{"k": "v"}, Life: Life{TTL: time.Minute}}
	a.End.Pause = true
	return a
}

// Rows of the first version are read, and written in the same form.
func TestRecordReadsRowsOfFormerVersions(t *testing.T) {
	row := store.Sandbox{ID: "id", Name: "demo", Owner: "alice", State: "stopped", Error: "idle",
		Spec:     []byte(asked + `,"ttl":60000000000,"end":{"pause":true},"labels":{"k":"v"}}`),
		Instance: []byte(`{"ID":"id","Backend":"docker"}`)}
	want := Record{Name: "demo", Owner: "alice", State: Stopped, Reason: "idle", Asked: asOf()}
	want.Instance = sandbox.Instance{ID: "id", Backend: "docker"}
	got, err := recordOf(row)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	again, err := got.row("id")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := recordOf(again); err != nil || !cmp.Equal(got, want) {
		t.Errorf("written and read: %+v, %v", got, err)
	}
}

// The note of a sandbox, by which a lost store is made again, had its lifetime beside its spec
// once.
func TestNoteReadsFormerVersions(t *testing.T) {
	dir := t.TempDir()
	n := manifests{dir: func(id string) string { return filepath.Join(dir, id) }}
	if err := os.Mkdir(filepath.Join(dir, "id"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"name":"demo","owner":"alice","created":"2026-01-02T03:04:05Z","spec":` + asked +
		`},"life":{"ttl":60000000000},"end":{"pause":true},"labels":{"k":"v"}}`
	if err := os.WriteFile(filepath.Join(dir, "id", manifestFile), []byte(text),
		0o600); err != nil {
		t.Fatal(err)
	}
	got, ok := n.read("id")
	if diff := cmp.Diff(asOf(), got.Spec); !ok || got.Name != "demo" || got.Owner != "alice" ||
		diff != "" {
		t.Errorf("read %v: %+v (-want +got):\n%s", ok, got, diff)
	}
	f := Record{Name: got.Name, Owner: got.Owner, Created: got.Created, Asked: got.Spec}
	if err := n.write("id", f); err != nil {
		t.Fatal(err)
	}
	if again, ok := n.read("id"); !ok || !cmp.Equal(again, got) {
		t.Errorf("written and read: %v, %+v", ok, again)
	}
}
