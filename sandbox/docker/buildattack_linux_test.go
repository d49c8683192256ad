package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// steps returns the containers in which this backend's builds run.
func (b *Backend) steps(t *testing.T) []string {
	t.Helper()
	list, err := b.engine.api.ContainerList(context.Background(),
		client.ContainerListOptions{All: true,
			Filters: make(client.Filters).Add("label", labelMade+"="+b.opts.DaemonID)})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range list.Items {
		if c.Labels[labelID] == "" {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// nothingRuns waits until no step is left: an engine takes a moment to end an abandoned step.
func nothingRuns(t *testing.T, b *Backend) {
	t.Helper()
	eventually(t, "the step is gone", func() bool { return len(b.steps(t)) == 0 })
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not so after 30 s: %s", what)
		}
	}
}

// A step that forks without end reaches the sandbox's limit, and the machine keeps the rest.
func TestAttackBuildForkBomb(t *testing.T) {
	b := testBackend(t)
	// Its shell waits until the limit is in effect, which takes milliseconds, and counts the
	// processes that it can start.
	spec, lines := building(directory(t, nil), "FROM sandboxd/busybox\n"+
		"RUN until grep -qx 100 /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max "+
		"2>/dev/null; do usleep 1000; done; "+
		"i=0; while [ $i -lt 300 ]; do sleep 600 & i=$((i+1)); echo n=$i; done\n")
	spec.Limits.PIDs = 100
	ref, err := b.Build(t.Context(), spec)
	if err == nil {
		b.engine.removeImage(t.Context(), ref)
		t.Error("300 processes were had, and the limit is 100")
	}
	if said := strings.Join(*lines, "\n"); !strings.Contains(said, "n=9") ||
		strings.Contains(said, "n=100") {
		t.Errorf("%v\n%s", err, said)
	}
	nothingRuns(t, b)
}

// A step that fills the disk ends the build with the limit's name: by bytes, by files, by a removed
// open file, or together with an earlier step.
func TestAttackBuildDisk(t *testing.T) {
	b := testBackend(t)
	const write = "FROM sandboxd/busybox\nRUN dd if=/dev/zero of=/x bs=1M count="
	for name, tt := range map[string]struct {
		dockerfile string
		room       int64
	}{
		"bytes":              {dockerfile: write + "4000; sleep 600\n"},
		"files":              {dockerfile: "FROM sandboxd/busybox\nRUN mkdir /d; cd /d; i=0; while [ $i -lt 70000 ]; do : >$i; i=$((i+1)); done; sleep 600\n"},
		"without a name":     {dockerfile: "FROM sandboxd/busybox\nRUN exec 3>/x; rm /x; dd if=/dev/zero bs=1M count=120 >&3; sleep 600\n"},
		"by several steps":   {dockerfile: write + "60\nRUN dd if=/dev/zero of=/y bs=1M count=60\nRUN sleep 600\n"},
		"by copies":          {dockerfile: write + "60\nFROM sandboxd/busybox\nCOPY --from=0 /x /a\nCOPY --from=0 /x /b\nRUN sleep 600\n"},
		"too little is left": {dockerfile: "FROM sandboxd/busybox\nRUN sleep 600\n", room: 1 << 60},
	} {
		t.Run(name, func(t *testing.T) {
			spec, _ := building(directory(t, nil), tt.dockerfile)
			spec.Limits.Disk, spec.MinFree = 100<<20, tt.room
			ref, err := b.Build(t.Context(), spec)
			if err == nil {
				b.engine.removeImage(t.Context(), ref)
			}
			if !errors.Is(err, errDiskFull) || sandbox.HintOf(err) == "" {
				t.Errorf("got %v, want disk_full and what to do", err)
			}
			nothingRuns(t, b)
		})
	}
}

// An abandoned build ends its step in the engine, too.
func TestAttackBuildGivenUp(t *testing.T) {
	b := testBackend(t)
	spec, _ := building(directory(t, nil),
		"FROM sandboxd/busybox\nRUN trap '' TERM INT HUP; echo begun; while :; do sleep 1; done\n")
	ctx, cancel := context.WithCancel(t.Context())
	spec.Progress = func(line string) {
		if line == "  begun" {
			cancel()
		}
	}
	if _, err := b.Build(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	nothingRuns(t, b)
}

// A step cannot reach the engine, the daemon's sockets, devices, settings of the kernel or the
// machine's network.
func TestAttackBuildReach(t *testing.T) {
	b := testBackend(t)
	for name, command := range map[string]string{
		"the engine's socket":  "ls /var/run/docker.sock /run/docker.sock /run/containerd",
		"the daemon's sockets": "ls /.sandboxd /dev/.sandboxd",
		"the network":          "ls /sys/class/net | grep -v '^lo$' | grep .",
		"a disk":               "mknod /d b 254 0 && dd if=/d of=/dev/null count=1",
		"memory":               "mknod /m c 1 1 && dd if=/m of=/dev/null count=1",
		"a mount":              "mount -t tmpfs none /mnt",
		"a switch":             "echo c >/proc/sysrq-trigger",
		"core_pattern":         "echo x >/proc/sys/kernel/core_pattern",
		"a device of packets":  "mkdir -p /dev/net; mknod /dev/net/t c 10 200 && dd if=/dev/net/t of=/dev/null count=1",
		"processes outside":    "ls /proc | grep -E '^[0-9]+$' | while read p; do [ $p -gt 1000 ] && echo $p; done | grep .",
		"a label of ours":      "env | grep -i sandboxd",
	} {
		t.Run(name, func(t *testing.T) {
			spec, lines := building(directory(t, nil), "FROM sandboxd/busybox\nRUN "+command+"\n")
			if ref, err := b.Build(t.Context(), spec); err == nil {
				b.engine.removeImage(t.Context(), ref)
				t.Errorf("it reaches %s: %q", name, *lines)
			}
		})
	}
}

// Labels of sandboxes in a Dockerfile make no sandbox, and a Dockerfile cannot set the labels by
// which the daemon recognizes its own images.
func TestAttackBuildLabels(t *testing.T) {
	b := testBackend(t)
	for _, line := range []string{"LABEL sandboxd.made=", "LABEL a=b sandboxd.daemon=" +
		b.opts.DaemonID, `LABEL "sandboxd.id"=x`, `LABEL sand"box"d.id=x`, `LABEL s\andboxd.id=x`,
		"LABEL sandboxd.image x",
		"ARG K=sandboxd.id\nLABEL $K=x", "ONBUILD LABEL sandboxd.made=x",
		"label SANDBOXD.x=1\nLABEL sandboxd.x=1"} {
		spec, _ := building(directory(t, nil), "FROM sandboxd/busybox\n"+line+"\n")
		ref, err := b.Build(t.Context(), spec)
		if err == nil {
			b.engine.removeImage(t.Context(), ref)
		}
		if err == nil || !strings.Contains(err.Error(), "reserved for sandboxd") {
			t.Errorf("%q: got %v", line, err)
		}
	}
}

// Two builds of the same files get one image; one that is abandoned does not take it from the
// other.
func TestAttackBuildAtOnce(t *testing.T) {
	b := testBackend(t)
	root := directory(t, map[string]string{"file": newID()})
	const text = "FROM sandboxd/busybox\nCOPY file /\nRUN echo begun; usleep 300000\n"
	first, _ := building(root, text)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{})
	var once sync.Once
	first.Progress = func(line string) {
		if line == "  begun" {
			once.Do(func() { close(began) })
		}
	}
	var refs [3]string
	var errs [3]error
	var wg sync.WaitGroup
	wg.Go(func() { refs[0], errs[0] = b.Build(ctx, first) })
	<-began
	var found []*[]string
	for n := 1; n < 3; n++ {
		spec, lines := building(root, text)
		found = append(found, lines)
		wg.Go(func() { refs[n], errs[n] = b.Build(t.Context(), spec) })
	}
	cancel()
	wg.Wait()
	if !errors.Is(errs[0], context.Canceled) {
		t.Errorf("the first: %v", errs[0])
	}
	if err := errors.Join(errs[1:]...); err != nil || refs[1] != refs[2] {
		t.Fatalf("%v, %v", refs, err)
	}
	if _, err := b.engine.inspectImage(t.Context(), refs[1]); err != nil {
		t.Error(err)
	}
	built := 0
	for _, lines := range found {
		if !slices.Contains(*lines, "found the image of Dockerfile") {
			built++
		}
	}
	if built != 1 {
		t.Errorf("%d of two built it", built)
	}
	b.engine.removeImage(t.Context(), refs[1])
}

// packed packs a directory while do changes it, and returns the names in the archive.
func packed(t *testing.T, root *os.Root, do func()) ([]string, error) {
	t.Helper()
	c, err := openContext(root)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	var names []string
	var wg sync.WaitGroup
	wg.Go(func() {
		archive := tar.NewReader(r)
		for {
			h, err := archive.Next()
			if err != nil {
				_, _ = io.Copy(io.Discard, r)
				return
			}
			names = append(names, h.Name)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stop := make(chan struct{})
	if do != nil {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	for range 300 {
		if _, err = c.pack(ctx, w); do == nil {
			break
		}
	}
	close(stop)
	w.Close()
	wg.Wait()
	return names, err
}

// If a sandbox swaps files while the context is read, pack neither waits for them nor follows them
// out of the directory.
func TestAttackContextSwapped(t *testing.T) {
	root := directory(t, map[string]string{"file": "mine", "dir/x": "mine"})
	at := func(name string) string { return filepath.Join(root.Name(), name) }
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("swordfish"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, swap := range map[string]func(){
		"a FIFO": func() {
			_ = os.Remove(at("file"))
			_ = syscall.Mkfifo(at("file"), 0o600)
			_ = os.Remove(at("file"))
			_ = os.WriteFile(at("file"), []byte("mine"), 0o600)
		},
		"a link": func() {
			_ = os.Remove(at("file"))
			_ = os.Symlink(secret, at("file"))
			_ = os.Remove(at("file"))
			_ = os.WriteFile(at("file"), []byte("mine"), 0o600)
		},
		"a directory by a link": func() {
			_ = os.Rename(at("dir"), at("aside"))
			_ = os.Symlink(filepath.Dir(secret), at("dir"))
			_ = os.Remove(at("dir"))
			_ = os.Rename(at("aside"), at("dir"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			var names []string
			go func() { defer close(done); names, _ = packed(t, root, swap) }()
			select {
			case <-done:
			case <-time.After(60 * time.Second):
				buf := make([]byte, 1<<20)
				t.Fatalf("it waits:\n%s", regexp.MustCompile(
					`(?s)goroutine \d+ \[syscall.*?\n\n`).Find(buf[:runtime.Stack(buf, true)]))
			}
			if slices.Contains(names, "dir/secret") {
				t.Error("a file of another directory is in it")
			}
		})
	}
}

// A .dockerignore cannot cost the daemon much time or memory, and a context of other types than
// files and links is empty.
func TestAttackContext(t *testing.T) {
	root := directory(t, map[string]string{".dockerignore": strings.Repeat("*a*b*c*d\n", 5000)})
	if _, err := openContext(root); err == nil ||
		!strings.Contains(err.Error(), "more than 1000 lines") {
		t.Errorf("5000 patterns: %v", err)
	}
	root = directory(t, map[string]string{".dockerignore": strings.Repeat("a", 200<<10)})
	if _, err := openContext(root); err == nil {
		t.Error("200 KiB of patterns were taken")
	}
	root = directory(t, nil)
	for name, err := range map[string]error{
		"sparse": errors.Join(root.WriteFile("sparse", nil, 0o600), os.Truncate(filepath.Join(root.Name(), "sparse"), 1<<40)),
		"fifo":   syscall.Mkfifo(filepath.Join(root.Name(), "fifo"), 0o600),
		"socket": syscall.Mknod(filepath.Join(root.Name(), "socket"), syscall.S_IFSOCK|0o600, 0),
		"link":   root.Symlink("/etc/shadow", "link"),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	if _, err := packed(t, root, nil); err == nil ||
		!strings.Contains(err.Error(), "more than 1g") {
		t.Errorf("a sparse file of 1 TiB: %v", err)
	}
	if err := root.Remove("sparse"); err != nil {
		t.Fatal(err)
	}
	if names, err := packed(t, root, nil); err != nil || fmt.Sprint(names) != "[link]" {
		t.Errorf("got %q, %v", names, err)
	}
	for name, text := range map[string]string{"out": "../x\n/etc\n..\n!../../etc/shadow\n",
		"everything": "**\n!link\n",
		"itself":     ".dockerignore\nDockerfile\n.sandboxd.Dockerfile\n"} {
		if err := root.WriteFile(".dockerignore", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if names, err := packed(t, root, nil); err != nil ||
			slices.ContainsFunc(names, func(n string) bool {
				return strings.Contains(n, "..") || strings.HasPrefix(n, "/")
			}) {
			t.Errorf("%s: got %q, %v", name, names, err)
		}
	}
}
