package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/jsonstream"

	"github.com/sandboxd/sandboxd/sandbox"
)

// directory makes and opens a directory with files. Names that end in a slash are directories.
func directory(t *testing.T, files map[string]string) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestContext(t *testing.T) {
	root := directory(t, map[string]string{"a": "1", "sub/b": "2", "sub/keep/c": "3",
		"secret.pem": "4", ".dockerignore": "*.pem\nsub\n!sub/keep\n"})
	if err := os.Symlink("/etc/passwd", filepath.Join(root.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	c, err := openContext(root)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	sum, err := c.pack(t.Context(), io.Discard)
	if err == nil {
		err = c.send(t.Context(), &archive, []byte("FROM x"), sum)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d %q", h.Name, h.Uid, h.Uname)
		}
		got[h.Name] = h.Linkname + string(text)
	}
	want := map[string]string{"a": "1", "sub/keep/": "", "sub/keep/c": "3", "link": "/etc/passwd",
		sentDockerfile:  "FROM x",
		".dockerignore": "*.pem\nsub\n!sub/keep\n\n" + sentDockerfile + "\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	sums := map[string]string{sum: "the first"}
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"content", func() error { return root.WriteFile("a", []byte("9"), 0o644) }},
		{"mode", func() error { return root.Chmod("a", 0o755) }},
		{"name", func() error { return root.Rename("a", "z") }},
		{"link", func() error { return errors.Join(root.Remove("link"), root.Symlink("a", "link")) }},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		if err := c.send(t.Context(), io.Discard, nil, sum); err == nil ||
			!strings.Contains(err.Error(), "changed during the build") {
			t.Errorf("another %s was sent: %v", change.what, err)
		}
		sum, err = c.pack(t.Context(), io.Discard)
		if err != nil || sums[sum] != "" {
			t.Errorf("another %s: %v, and the sum of %s", change.what, err, sums[sum])
		}
		sums[sum] = change.what
	}
	if err := root.WriteFile("secret.pem", []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if again, err := c.pack(t.Context(), io.Discard); err != nil || again != sum {
		t.Errorf("an ignored file changed the checksum: %v", err)
	}
}

// building returns a BuildSpec of alice's, and the lines of its progress.
func building(root *os.Root, dockerfile string) (sandbox.BuildSpec, *[]string) {
	lines := new([]string)
	return sandbox.BuildSpec{Owner: "alice", Dockerfile: []byte(dockerfile), Name: "Dockerfile",
		Context: root, Network: sandbox.NetworkNone,
		Progress: func(line string) { *lines = append(*lines, line) }}, lines
}

// hereDocuments is a Dockerfile that runs here-documents with the SHELL of an earlier stage.
const hereDocuments = `FROM sandboxd/busybox AS below
SHELL ["/bin/sh", "-euc"]
FROM below
ARG WHO
RUN <<EOF
for i in 1 2; do
	echo "line $i of $WHO"
done
cat <<'END' >/file
a "b" \\
$WHO
END
EOF
RUN cat /file - <<-EOF
	from $WHO
	EOF
RUN <<EOF
false
echo not reached
EOF
`

// Steps run here-documents as BuildKit does: in the shell of the stage, with the build's arguments.
func TestBuildHereDocuments(t *testing.T) {
	b := testBackend(t)
	if factsFor(t, b).compatible {
		t.Skip("this engine's builder does not build for sandboxd")
	}
	spec, lines := building(directory(t, nil), hereDocuments)
	spec.Args = []string{"WHO=" + newID()}
	who := strings.TrimPrefix(spec.Args[0], "WHO=")
	_, err := b.Build(t.Context(), spec)
	failed, ok := errors.AsType[*sandbox.StepError](err)
	if !ok || failed.Code != 1 || failed.Step != "Dockerfile:17: RUN <<EOF" {
		t.Errorf("got error %v, want that of the last step", err)
	}
	var got []string
	for _, line := range *lines {
		if strings.HasPrefix(line, "  ") {
			got = append(got, line)
		}
	}
	want := []string{"  line 1 of " + who, "  line 2 of " + who, `  a "b" \\`, "  $WHO",
		"  from " + who}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output (-want +got):\n%s\n%s", diff, strings.Join(*lines, "\n"))
	}
}

// Build makes an image from a directory, reuses it while the directory is unchanged, and keeps it
// for its owner.
func TestBuild(t *testing.T) {
	b := testBackend(t)
	root := directory(t, map[string]string{"file": newID(), "secret": "swordfish",
		".dockerignore": "secret"})
	spec,
		lines := building(
		root,
		"ARG BASE=none\nFROM $BASE\nARG WHO\nCOPY . /c\nRUN echo hello $WHO >/said; echo out; ls "+
			"/sys/class/net\nENV A=1\nWORKDIR /c\n")
	spec.Args = []string{"BASE=sandboxd/busybox", "WHO=alice"}
	ref, err := b.Build(t.Context(), spec)
	if factsFor(t, b).compatible { // this engine cannot enforce limits on its steps
		if !errors.Is(err, sandbox.ErrUnsupported) || sandbox.HintOf(err) == "" {
			t.Errorf("got %q, error %v; want %v and what to do", ref, err, sandbox.ErrUnsupported)
		}
		return
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(*lines, "\n"))
	}
	t.Cleanup(func() { b.engine.removeImage(context.Background(), ref) })
	for _, want := range []string{"[5/7] Dockerfile:5: RUN echo hello $WHO >/said; echo out; ls /sys/class/net", "  out", "  lo"} {
		if !slices.Contains(*lines, want) {
			t.Errorf("progress does not say %q", want)
		}
	}
	if slices.ContainsFunc(*lines, func(l string) bool {
		return strings.Contains(l, "eth0") || strings.Contains(l, "label")
	}) {
		t.Errorf("progress: %q", *lines)
	}
	inst := boot(t, b, sandbox.Spec{Owner: "alice", Image: ref})
	if got := mustSh(t, login(t, b, inst),
		"cat /said; pwd; echo $A; ls -A /c; echo ${WHO-none}"); got != "hello alice\n/c\n1\n.dockerignore\nfile\nnone" {
		t.Errorf("inside: %q", got)
	}
	*lines = nil
	if again, err := b.Build(t.Context(), spec); err != nil || again != ref {
		t.Errorf("again: %s, %v", again, err)
	}
	if want := []string{"found the image of Dockerfile"}; !slices.Equal(*lines, want) {
		t.Errorf("again: progress %q, want %q", *lines, want)
	}
	of, err := b.engine.inspectImage(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	stranger := sandbox.Spec{ID: newID(), Owner: "bob", Image: ref}
	if _, err := b.Boot(t.Context(), stranger); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("bob boots it: %v", err)
	}
	for _, base := range []string{ref, of.id, strings.TrimPrefix(of.id, "sha256:")[:12]} {
		theirs, _ := building(root, "FROM "+base)
		theirs.Owner = "bob"
		if got, err := b.Build(t.Context(), theirs); err == nil {
			t.Errorf("bob builds from %s: %s", base, got)
		}
	}
	if err := root.WriteFile("file", []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := b.Build(t.Context(), spec)
	if err != nil || other == ref {
		t.Errorf("another file: %s, %v", other, err)
	}
	b.engine.removeImage(t.Context(), other)
}

// Images of builds and setups count as their owner's disk, with all their steps and without the
// base image; a layer that two of them share counts once. Forget removes those without a sandbox.
func TestMadeImagesCount(t *testing.T) {
	b := testBackend(t)
	const megabyte = 1_000_000
	want := func(what string, owner string, megabytes int64) {
		t.Helper()
		got, err := b.Kept(t.Context(), owner, nil)
		if err != nil || got < megabytes*megabyte || got > megabytes*megabyte+megabyte/2 {
			t.Errorf("%s: kept of %s: got %d, %v; want about %d MB", what, owner, got, err,
				megabytes)
		}
	}
	build := func(last string) string {
		t.Helper()
		spec, lines := building(directory(t, nil),
			"FROM sandboxd/busybox\nRUN head -c 3000000 /dev/urandom >/three\nRUN head -c "+
				"2000000 /dev/urandom >/two\nENV A=1\n"+last)
		ref, err := b.Build(t.Context(), spec)
		if err != nil {
			t.Fatalf("%v\n%s", err, strings.Join(*lines, "\n"))
		}
		t.Cleanup(func() { b.engine.removeImage(context.Background(), ref) })
		return ref
	}
	first := build("")
	want("one image of several steps", "alice", 5)
	want("another's", "bob", 0)
	inst := boot(t, b, sandbox.Spec{Owner: "alice", Image: first})
	mustSh(t, login(t, b, inst), "head -c 4000000 /dev/urandom >/four")
	set, err := b.Prepare(t.Context(), inst, "alice", "key")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.engine.removeImage(context.Background(), set) })
	want("a setup on top of it", "alice", 9)
	build("RUN head -c 1000000 /dev/urandom >/one")
	want("another image, the first steps of which are the same", "alice", 10)
	if n, err := b.Forget(t.Context(), "bob", ""); n != 0 || err != nil {
		t.Errorf("forget bob's: %d, %v", n, err)
	}
	if n, err := b.Forget(t.Context(), "alice", set); n != 1 || err != nil {
		t.Errorf("forget alice's images but the setup: %d, %v; want the image that no sandbox uses",
			n, err)
	}
	want("without the other image", "alice", 9)
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Forget(t.Context(), "alice", ""); n != 2 || err != nil {
		t.Errorf("forget all: %d, %v; want two", n, err)
	}
	want("without any", "alice", 0)
}

// An image that is built from a snapshot has the programs, user and working directory of the image
// below, like the snapshot itself, and nothing of the guest.
func TestBuildOfSnapshot(t *testing.T) {
	b := testBackend(t)
	below, _ := building(directory(t, nil),
		"FROM sandboxd/busybox\nRUN mkdir /home; echo 'dev:x:1000:1000::/home:/bin/sh' "+
			">>/etc/passwd\nENTRYPOINT [\"sleep\", \"100\"]\nCMD [\"200\"]\nUSER dev\nWORKDIR "+
			"/home\n")
	base, err := b.Build(t.Context(), below)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.engine.removeImage(context.Background(), base) })
	inst := boot(t, b, sandbox.Spec{Owner: "alice", Image: base})
	snapshot, err := b.Snapshot(t.Context(), inst, "alice", "demo", "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.engine.removeImage(context.Background(), snapshot) })
	spec, lines := building(directory(t, nil), "FROM "+snapshot+"\nRUN id -un; pwd\n")
	ref, err := b.Build(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.engine.removeImage(context.Background(), ref) })
	if want := []string{"building the image of Dockerfile", "[1/2] Dockerfile:1: FROM " + snapshot,
		"[2/2] Dockerfile:2: RUN id -un; pwd", "  dev", "  /home"}; !slices.Equal(*lines, want) {
		t.Errorf("progress %q, want %q", *lines, want)
	}
	got, err := b.engine.inspectImage(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if c := got.config; !slices.Equal(c.Entrypoint, []string{"sleep", "100"}) ||
		!slices.Equal(c.Cmd, []string{"200"}) || c.User != "dev" || c.WorkingDir != "/home" ||
		c.Labels[labelImage] != "" {
		t.Errorf("configuration %+v", c)
	}
}

// The builder's lines around the output of a step are not output; a line that looks like a step
// with another number is.
func TestBuildStep(t *testing.T) {
	var lines []string
	s := buildStep{steps: []string{"D:1: FROM x", "D: label", "D:2: RUN y"},
		progress: func(line string) { lines = append(lines, line) }}
	for _, text := range []string{"Step 1/3 : FR", "OM x\n ---> 0123\nStep 2/3 : LABEL a=b\n",
		"Step 3/3 : RUN y\n ---> Running in 1\n", "\x1b[91ma\tb\r\n\x1b[0mStep 3/3 : fake\n",
		"1%\r100%\r\n",
		"endRemoving intermediate container 306722f9073a\n", strings.Repeat("z", 5000)} {
		s.read(text)
	}
	want := []string{"[1/2] D:1: FROM x", "[2/2] D:2: RUN y", "  a  b", "  Step 3/3 : fake",
		"  100%", "  end", "  " + strings.Repeat("z", 5000)}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if got, want := s.failed(&jsonstream.Error{Code: 2}).Error(),
		"D:2: RUN y: exit code 2: a  b; Step 3/3 : fake; 100%; end; z"; !strings.HasPrefix(
		got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The error of a failed step has its line, its exit code and its last output, and the build leaves
// no image.
func TestBuildFails(t *testing.T) {
	b := testBackend(t)
	root := directory(t, map[string]string{"file": ""})
	for _, tt := range []struct {
		dockerfile string
		want       sandbox.StepError
	}{
		{"FROM sandboxd/busybox\n\nRUN printf 'one\\033[2J\\n'; printf three; exit 7\n",
			sandbox.StepError{
				Step: "Dockerfile:3: RUN printf 'one\\033[2J\\n'; printf three; exit 7", Code: 7,
				Output: "one?[2J; three"}},
		{"FROM sandboxd/busybox\nCOPY nosuch /x\n", sandbox.StepError{Step: "Dockerfile:2: COPY nosuch /x"}},
	} {
		spec, lines := building(root, tt.dockerfile)
		_, err := b.Build(t.Context(), spec)
		got, ok := errors.AsType[*sandbox.StepError](err)
		if !ok {
			t.Errorf("%q: %v", tt.dockerfile, err)
			continue
		}
		if tt.want.Code == 0 {
			if !strings.Contains(got.Output, "nosuch") {
				t.Errorf("%q: output %q", tt.dockerfile, got.Output)
			}
			tt.want.Output = got.Output
		}
		if diff := cmp.Diff(tt.want, *got); diff != "" {
			t.Errorf("(-want +got):\n%s\n%q", diff, *lines)
		}
	}
}

// A step never runs with a weaker runtime than the sandbox; steps that only copy files work with
// any.
func TestBuildIsolation(t *testing.T) {
	b := testBackend(t)
	root := directory(t, map[string]string{"file": newID()})
	for dockerfile, refused := range map[string]bool{"FROM sandboxd/busybox\nRUN true\n": true,
		"FROM sandboxd/busybox\nCOPY file /\n": false} {
		spec, _ := building(root, dockerfile)
		spec.Isolation = "another"
		if _, err := b.Build(t.Context(), spec); errors.Is(
			err, sandbox.ErrUnsupported) != refused || !refused && err != nil {
			t.Errorf("%q: got %v, want a refusal: %v", dockerfile, err, refused)
		}
	}
}

// An abandoned build ends together with its running step.
func TestBuildCancelled(t *testing.T) {
	b := testBackend(t)
	spec, _ := building(directory(t, nil), "FROM sandboxd/busybox\nRUN echo begun; sleep 1000\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("given up")
	spec.Progress = func(line string) {
		if line == "  begun" {
			cancel(gone)
		}
	}
	if _, err := b.Build(ctx, spec); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}
