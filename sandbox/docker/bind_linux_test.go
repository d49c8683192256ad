package docker

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A directory appears at its own path. Sessions run as its owner, who gets an account if the image
// has none. A read-only one is read-only for root, too.
func TestMount(t *testing.T) {
	b, root := binding(t)
	project, data := owned(t, root+"/a, b/project", 12345), owned(t, root+"/data", 0)
	if factsFor(t, b).compatible { // such a path is rejected there, and others are mounted
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox,
			Mounts: []sandbox.Mount{{Path: project}}})
		if !errors.Is(err, sandbox.ErrUnsupported) ||
			!strings.Contains(err.Error(), "splits paths at commas") {
			t.Errorf("a path with a comma: got error %v", err)
		}
		project = owned(t, root+"/a b/project", 12345)
	}
	if err := os.WriteFile(data+"/fact", []byte("42"), 0o644); err != nil {
		t.Fatal(err)
	}
	inst := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: project},
		{Path: data, ReadOnly: true}}})
	c := login(t, b, inst)
	for command, want := range map[string]string{
		"pwd": project, "id -u": "12345", "id -g": "12345", "readlink /work": project, "cat " + data + "/fact": "42",
		"awk -F: '$3==12345{print $6}' /etc/passwd": "/home/user12345", "stat -c %u $HOME": "12345",
	} {
		if got := mustSh(t, c, command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	mustSh(t, c, "echo made >made")
	info, err := os.Stat(project + "/made")
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 12345 {
		t.Errorf("a file made inside belongs to %d:%d, want 12345:12345", st.Uid, st.Gid)
	}
	notes := strings.Join(inst.Notes, "\n")
	for _, want := range []string{"sudo: setuid programs work",
		"sessions run as uid 12345, the owner of " + project, "also setuid programs"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q lack %q", notes, want)
		}
	}

	root0 := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: data, ReadOnly: true}}})
	c = login(t, b, root0)
	if got := mustSh(t, c, "id -u; pwd"); got != "0\n"+data {
		t.Errorf("with a read-only directory alone: %q, want root in %s", got, data)
	}
	if out, err := sh(t, c, "touch "+data+"/x"); err == nil ||
		!strings.Contains(out, "Read-only file system") {
		t.Errorf("writing to a read-only directory: %q, error %v", out, err)
	}
	if plain := boot(t, b, sandbox.Spec{}); !slices.Equal(root0.Notes, plain.Notes) {
		t.Errorf("notes of a sandbox that can write nothing: %q, without a directory %q",
			root0.Notes, plain.Notes)
	}
	if got := mustSh(t, login(t, b, boot(
		t, b, sandbox.Spec{User: "7:7", Mounts: []sandbox.Mount{{Path: project}}})),
		"id -u"); got != "7" {
		t.Errorf("a user that was asked for: got uid %s, want 7", got)
	}
}
