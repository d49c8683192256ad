package sandboxtest

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func (s Suite) testImager(t *testing.T) {
	if _, ok := s.Open(t).(sandbox.Imager); !ok {
		return // optional
	}
	t.Run("Fork", s.testFork)
	t.Run("Prepare", s.testPrepare)
	t.Run("Configure", s.testConfigure)
	t.Run("Layers", s.testLayers)
}

func (s Suite) testFork(t *testing.T) {
	b := s.Open(t)
	sn := b.(sandbox.Imager)
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	pwd, _ := run(t, client, "pwd")
	if out, code := run(
		t, client,
		"mkdir -p /kept && echo data >/kept/file && chmod 4750 /kept/file && ln -s file "+
			"/kept/link && (sleep 1000 >/dev/null 2>&1 & :)"); code != 0 {
		t.Fatalf("write files: %s", out)
	}
	spec := s.newSpec(t)
	image, err := sn.Fork(timeout(t), inst, spec.ID)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	spec.Image = image
	fork, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot of a fork: %v", err)
	}
	forked := s.dial(t, b, fork)
	if out, code := run(
		t, forked,
		"cat /kept/link; ls -ln /kept/file /kept/link | cut -c1-10; ps 2>/dev/null | grep -c "+
			"'[s]leep 1000'; pwd"); code != 0 ||
		out != "data\n-rwsr-x---\nlrwxrwxrwx\n0\n"+pwd {
		t.Errorf("fork: got %q, %d; want the files, no process, and the same directory %q", out,
			code, pwd)
	}
	run(t, forked, "echo other >/kept/file")
	if out, _ := run(t, client, "cat /kept/file"); out != "data\n" {
		t.Errorf("after a write in the fork the first one has %q", out)
	}
	first, err := b.Dial(timeout(t), inst)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	first.Conn.Close()
	second, err := b.Dial(timeout(t), fork)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	second.Conn.Close()
	if string(first.HostKeys[0].Marshal()) == string(second.HostKeys[0].Marshal()) {
		t.Error("a fork has the host key of the first one")
	}
	// The image belongs to that instance, and is removed with it.
	stranger := s.newSpec(t)
	stranger.Image = image
	if _, err := b.Boot(timeout(t), stranger); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of another's fork: got %v, want ErrNoImage", err)
	}
	if err := b.Destroy(timeout(t), fork); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	again := spec
	if _, err := b.Boot(timeout(t), again); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of a destroyed fork's image: got %v, want ErrNoImage", err)
	}
	nobody := s.nobody(t, inst)
	if _, err := sn.Fork(timeout(t), nobody, s.newSpec(t).ID); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Fork of one that never was: got %v, want ErrGone", err)
	}
}

// bootOf boots a sandbox of owner from an image and returns the output of a command.
func (s Suite) bootOf(t *testing.T, b sandbox.Backend, owner, image, command string) string {
	t.Helper()
	spec := s.newSpec(t)
	spec.Owner, spec.Image = owner, image
	inst, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot of %s: %v", image, err)
	}
	out, _ := run(t, s.dial(t, b, inst), command)
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	return out
}

// only returns what Forget keeps: one image.
func only(image string) func(string) bool { return func(ref string) bool { return ref == image } }

// ownedBy checks that only owner can boot an image, and that Forget removes it.
func (s Suite) ownedBy(t *testing.T, b sandbox.Backend, owner, image string) {
	t.Helper()
	im := b.(sandbox.Imager)
	stranger := s.newSpec(t)
	stranger.Owner, stranger.Image = "not-"+owner, image
	if _, err := b.Boot(timeout(t), stranger); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of another owner's image: got %v, want ErrNoImage", err)
	}
	if n, err := im.Kept(timeout(t), owner, nil); err != nil || n < 0 {
		t.Errorf("Kept: got %d, %v", n, err)
	}
	if n, err := im.Forget(timeout(t), owner, only(image)); err != nil || n != 0 {
		t.Errorf("Forget of all but the image: got %d, %v", n, err)
	}
	if n, err := im.Forget(timeout(t), owner, only("")); err != nil || n != 1 {
		t.Errorf("Forget: got %d, %v; want the one image", n, err)
	}
	own := stranger
	own.Owner = owner
	if _, err := b.Boot(timeout(t), own); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot after Forget: got %v, want ErrNoImage", err)
	}
}

func (s Suite) testPrepare(t *testing.T) {
	b := s.Open(t)
	im := b.(sandbox.Imager)
	spec := s.newSpec(t)
	spec.Owner = "alice"
	layer := sandbox.Layer{Key: "key"}
	if image, err := im.Prepared(timeout(t), spec, layer); err != nil || image != "" {
		t.Fatalf("Prepared before Prepare: got %q, %v", image, err)
	}
	inst := s.boot(t, b)
	if out, code := run(t, s.dial(t, b, inst), "echo setup >/prepared"); code != 0 {
		t.Fatalf("write a file: %s", out)
	}
	if n, err := im.Weight(timeout(t), inst); err != nil || n < 1 {
		t.Errorf("Weight: got %d, %v; want some bytes", n, err)
	}
	image, err := im.Prepare(timeout(t), inst, spec.Owner, layer)
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	if got, err := im.Prepared(timeout(t), spec, layer); err != nil || got != image {
		t.Errorf("Prepared: got %q, %v; want %q", got, err, image)
	}
	layer.Key = "other"
	if got, err := im.Prepared(timeout(t), spec, layer); err != nil || got != "" {
		t.Errorf("Prepared by another key: got %q, %v", got, err)
	}
	if got := s.bootOf(t, b, spec.Owner, image, "cat /prepared"); got != "setup\n" {
		t.Errorf("boot of a prepared image: got %q", got)
	}
	s.ownedBy(t, b, spec.Owner, image)
}

// testConfigure saves an image with a configuration of its own, as the last step of a Dockerfile
// does.
func (s Suite) testConfigure(t *testing.T) {
	b := s.Open(t)
	im := b.(sandbox.Imager)
	spec := s.newSpec(t)
	spec.Owner = "alice"
	below, err := im.Image(timeout(t), spec)
	if err != nil {
		t.Fatalf("Image: %v", err)
	}
	inst := s.boot(t, b)
	config := below.Config
	config.Env = append(slices.Clone(config.Env), "CONFIGURED=yes")
	config.WorkingDir = "/etc"
	layer := sandbox.Layer{Key: "key", Dockerfile: true, Config: &config}
	image, err := im.Prepare(timeout(t), inst, spec.Owner, layer)
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	if got, err := im.Prepared(timeout(t), spec, layer); err != nil || got != image {
		t.Errorf("Prepared: got %q, %v; want %q", got, err, image)
	}
	layer.Dockerfile = false
	if got, err := im.Prepared(timeout(t), spec, layer); err != nil || got != "" {
		t.Errorf("Prepared of a setup: got %q, %v", got, err)
	}
	if got := s.bootOf(t, b, spec.Owner, image, "echo $CONFIGURED; pwd"); got != "yes\n/etc\n" {
		t.Errorf("boot of an image with a configuration: got %q", got)
	}
	on := spec
	on.Image = image
	if got, err := im.Image(timeout(t), on); err != nil ||
		!slices.Contains(got.Config.Env, "CONFIGURED=yes") || got.Config.WorkingDir != "/etc" ||
		got.ID == below.ID {
		t.Errorf("Image: got %+v, %v", got, err)
	}
	s.ownedBy(t, b, spec.Owner, image)
}

// testLayers makes an image on an image, as the steps of a Dockerfile do. Each layer counts once,
// and the lower image may be removed first.
func (s Suite) testLayers(t *testing.T) {
	b := s.Open(t)
	im := b.(sandbox.Imager)
	owner := "layers-" + strings.ToLower(rand.Text()[:6])
	const megabyte = 1_000_000
	want := func(what string, megabytes int64) {
		t.Helper()
		got, err := im.Kept(timeout(t), owner, nil)
		// Some backends keep 200 kB more for each: certificate authorities of the sandbox.
		if err != nil || got < megabytes*megabyte || got >= (megabytes+1)*megabyte {
			t.Errorf("Kept, %s: got %d, %v; want about %d MB", what, got, err, megabytes)
		}
	}
	layer := func(on, command string) string {
		t.Helper()
		spec := s.newSpec(t)
		spec.Owner = owner
		if on != "" {
			spec.Image = on
		}
		inst, err := b.Boot(timeout(t), spec)
		if err != nil {
			t.Fatalf("Boot of %s: %v", spec.Image, err)
		}
		if out, code := run(t, s.dial(t, b, inst), command); code != 0 {
			t.Errorf("%s: %s", command, out)
		}
		image, err := im.Prepare(timeout(t), inst, owner, sandbox.Layer{Key: command,
			Dockerfile: true})
		if err != nil {
			t.Errorf("Prepare: %v", err)
		}
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Errorf("Destroy: %v", err)
		}
		return image
	}
	want("without images", 0)
	three := layer("", "head -c 3000000 /dev/urandom >/three")
	two := layer(three, "head -c 2000000 /dev/urandom >/two")
	want("an image on an image", 5)
	one := layer(three, "head -c 1000000 /dev/urandom >/one")
	want("another one on the same image", 6)
	if n, err := im.Forget(timeout(t), owner, only(two)); err != nil || n != 2 {
		t.Errorf("Forget: got %d, %v; want both others", n, err)
	}
	// Podman forgets what is below: then the whole image counts.
	if got, err := im.Kept(timeout(t), owner, nil); err != nil || got < 5*megabyte {
		t.Errorf("Kept, of what the last image needs: got %d, %v; want at least 5 MB", got, err)
	}
	if got := s.bootOf(t, b, owner, two, "ls /three /two"); got != "/three\n/two\n" {
		t.Errorf("boot of an image whose lower one was removed: got %q", got)
	}
	spec := s.newSpec(t)
	spec.Owner, spec.Image = owner, one
	if _, err := b.Boot(timeout(t), spec); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of a removed image: got %v, want ErrNoImage", err)
	}
	if n, err := im.Forget(timeout(t), owner, only("")); err != nil || n != 1 {
		t.Errorf("Forget: got %d, %v; want the last one", n, err)
	}
	want("after Forget", 0)
}
