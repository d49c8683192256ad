package docker

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A snapshot belongs to its owner, is not made twice, and none of its files contains the sandbox's
// keys.
func TestSnapshot(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Owner: "alice", Env: []string{"TOKEN=swordfish"}})
	mustSh(t, login(t, b, inst), "echo kept >/file")
	ref, err := b.Snapshot(t.Context(), inst, "alice", "demo", "before")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, b, ref) })
	if _, err := b.Snapshot(t.Context(), inst, "alice", "demo", "before"); !errors.Is(
		err, fs.ErrExist) {
		t.Errorf("the same tag again: %v, want fs.ErrExist", err)
	}
	if _, err := b.Snapshot(t.Context(), inst, "alice", "../x", "before"); err == nil {
		t.Error("a name that is none: no error")
	}
	got := boot(t, b, sandbox.Spec{Owner: "alice", Image: ref})
	if out := mustSh(t, login(t, b, got), "cat /file; echo ${TOKEN-none}"); out != "kept\nnone" {
		t.Errorf("of the snapshot: got %q", out)
	}
	of, err := b.engine.inspectImage(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []sandbox.Spec{{Owner: "bob", Image: ref}, {Owner: "bob", Image: of.ID},
		{Image: ref}} {
		spec.ID = newID()
		if inst, err := b.Boot(t.Context(), spec); err == nil {
			t.Errorf("%q got a sandbox of alice's files as %s", spec.Owner, spec.Image)
			_ = b.Destroy(t.Context(), inst)
		}
	}

	saved, err := b.engine.api.ImageSave(t.Context(), []string{ref})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	all, err := io.ReadAll(saved)
	if err != nil {
		t.Fatal(err)
	}
	k, err := b.state.ReadKeys(inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Split(k.Guest.HostKey, "\n")[2] // one line of it: files break lines differently
	for what, secret := range map[string]string{"host key": body,
		"client key": strings.Fields(k.Guest.ClientKey)[1], "variable of new": "swordfish"} {
		if bytes.Contains(all, []byte(secret)) {
			t.Errorf("the image holds the %s of the sandbox", what)
		}
	}
	if !bytes.Contains(all, []byte("kept\n")) {
		t.Error("the image was not looked through: it has not even the file")
	}
}

// If a snapshot cannot contain some files it is an error, not an incomplete image.
func TestSnapshotOfVolumes(t *testing.T) {
	b := testBackend(t)
	ref := "sandboxd-test/" + newID()
	made, err := b.engine.api.ContainerCreate(
		t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: busybox}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.engine.api.ContainerCommit(t.Context(), made.ID,
		client.ContainerCommitOptions{Reference: ref, Changes: []string{`VOLUME /data`}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, b, ref) })
	if _, err := b.engine.api.ContainerRemove(t.Context(), made.ID,
		client.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	inst := boot(t, b, sandbox.Spec{Image: ref})
	mustSh(t, login(t, b, inst), "echo kept >/data/file")
	if _, err := b.Snapshot(t.Context(), inst, "alice", "demo", "one"); !errors.Is(
		err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "/data") {
		t.Errorf("snapshot: error %v, want ErrUnsupported that names /data", err)
	}
	id := newID()
	if image, err := b.Fork(t.Context(), inst, id); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("fork: error %v, want ErrUnsupported", err)
		removeImage(t, b, image)
	}
}

// Weight returns the size of a copy, with holes filled; Kept counts the images that were made for
// an owner, and not those below.
func TestSnapshotWeight(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	mustSh(t, login(t, b, inst), "truncate -s 1G /hole; head -c 1000000 /dev/urandom >/file")
	if got, err := b.Weight(t.Context(), inst); err != nil || got < 1<<30 || got > 1<<30+2<<20 {
		t.Errorf("weight: got %d, %v; want a gibibyte and a megabyte", got, err)
	}
	mustSh(t, login(t, b, inst), "rm /hole")
	ref, err := b.Snapshot(t.Context(), inst, "alice", "demo", "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, b, ref) })
	id := newID()
	fork, err := b.Fork(t.Context(), inst, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImage(t, b, fork) })
	for _, tt := range []struct {
		owner string
		ids   []string
		want  int64 // megabytes
	}{{"alice", nil, 1}, {"alice", []string{id}, 2}, {"bob", []string{id}, 1},
		{"bob", []string{inst.ID}, 0}} {
		got, err := b.Kept(t.Context(), tt.owner, tt.ids)
		if err != nil || got < tt.want*1_000_000 || got > tt.want*1_000_000+100_000 {
			t.Errorf("kept of %s and %v: got %d, %v; want about %d MB", tt.owner, tt.ids, got, err,
				tt.want)
		}
	}
	nobody := inst
	nobody.ID, nobody.Ref = newID(), "0123456789ab"
	if _, err := b.Weight(t.Context(), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("weight of an instance that never existed: %v, want ErrGone", err)
	}
}
