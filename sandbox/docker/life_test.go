package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// control opens the daemon's own connection to a sandbox.
func control(t *testing.T, b *Backend, inst sandbox.Instance) *connect.Control {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	peer, err := b.Dial(ctx, inst)
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect.OpenControl(ctx, peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func health(t *testing.T, c *connect.Control) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reply, err := c.Do(ctx, wire.Control{Do: "health"})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Health
}

// Any image works: with a complete Debian, with only a shell, without a single file.
func TestImages(t *testing.T) {
	for _, image := range []string{sandbox.DefaultImage, busybox, empty} {
		t.Run(image, func(t *testing.T) {
			b := testBackend(t)
			needImage(t, b, image)
			inst := boot(t, b, sandbox.Spec{Image: image})
			if got := health(t, control(t, b, inst)); got != "ok" {
				t.Errorf("got health %q, want ok", got)
			}
			c := login(t, b, inst)
			files, err := sftp.NewClient(c)
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			w, err := files.Create("/hello")
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(w, "world")
			w.Close()
			r, err := files.Open("/hello")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got, err := io.ReadAll(r); err != nil || string(got) != "world" {
				t.Errorf("got %q, %v; want the written text", got, err)
			}
			if image == empty {
				if out, err := sh(t, c, "true"); err == nil {
					t.Errorf("a command in an image without any: got %q and no error", out)
				}
				return
			}
			if got := mustSh(t, c, "cat /hello; id -u; pwd"); got != "world0\n/root" {
				t.Errorf("got %q, want root at home", got)
			}
		})
	}
}

var posture = map[string]string{
	"hostname; cat /etc/hostname; grep -w box /etc/hosts": "box\nbox\n127.0.1.1\tbox",
	"grep CapBnd /proc/self/status":                       "CapBnd:\t00000000a00404fb",
	"grep CapEff /proc/self/status":                       "CapEff:\t00000000a00404fb",
	"grep CapPrm /proc/self/status":                       "CapPrm:\t00000000a00404fb",
	// Only PID 1 has SYS_PTRACE, and passes it to no process.
	"grep CapBnd /proc/1/status":        "CapBnd:\t00000000a00404fb",
	"grep CapEff /proc/1/status":        "CapEff:\t00000000a00c04fb",
	"grep NoNewPrivs /proc/self/status": "NoNewPrivs:\t1",
	"grep Seccomp: /proc/self/status":   "Seccomp:\t2",
	"ulimit -c":                         "0",
	// The guest, by its file's name.
	"cat /proc/1/comm":                                                                 "",
	"df -k /dev/shm | awk 'END{print $2}'":                                             "65536",
	"grep -c '/.sandboxd/.* ro[ ,]' /proc/mounts":                                      "3",
	"cat /sys/fs/cgroup/pids/pids.max || cat /sys/fs/cgroup/pids.max":                  "512",
	"cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max": "2147483648",
	"cat /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes || echo 2147483648":         "2147483648",
	// Its own cgroup namespace.
	"cat /proc/self/cgroup | cut -d: -f3 | sort -u":           "/",
	"head -c 1 /proc/kcore | wc -c; ls /sys/firmware | wc -l": "0\n0",
}

// The golden files describe what a sandbox may do; this test checks it from inside, also after a
// stop and a start. A network that the daemon carries adds the device and no other right.
func TestPosture(t *testing.T) {
	for network, devices := range map[sandbox.Network]string{sandbox.NetworkNone: "lo",
		sandbox.NetworkFiltered: "lo\ntun0"} {
		t.Run(string(network), func(t *testing.T) { testPosture(t, network, devices) })
	}
}

func testPosture(t *testing.T, network sandbox.Network, devices string) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Name: "box", Network: network})
	want := sandbox.Limits{Memory: 2 << 30, CPUs: 2, PIDs: 512, Shm: 64 << 20, Disk: 10 << 30,
		Sessions: 32, Connections: 1024}
	if diff := cmp.Diff(want, inst.Limits,
		cmpopts.IgnoreFields(sandbox.Limits{}, "NoFile")); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if inst.Network != network || inst.Runtime != factsFor(t, b).defaultRuntime ||
		inst.User != "root" || inst.Image != busybox || !strings.HasPrefix(inst.Digest, "sha256:") {
		t.Errorf("got instance %+v", inst)
	}
	look := func(when string) {
		c := login(t, b, inst)
		for command, want := range posture {
			if strings.HasPrefix(command, "cat /proc/self/cgroup") && factsFor(t, b).sharedGroups {
				if !strings.Contains(strings.Join(inst.Notes, "\n"), "no control group namespace") {
					t.Errorf("%s: got notes %q, want that it has none of its own", when, inst.Notes)
				}
				continue
			}
			got, _ := sh(t, c, "("+command+") 2>/dev/null")
			switch command {
			case "cat /proc/1/comm":
				if !strings.HasPrefix(got, "guest-") {
					t.Errorf("%s: PID 1 is %q, want the guest", when, got)
				}
				continue
			}
			if got != want {
				t.Errorf("%s: %s: got %q, want %q", when, command, got, want)
			}
		}
		if got := mustSh(t, c, "ls /sys/class/net"); got != devices {
			t.Errorf("%s: got network devices %q, want %q", when, got, devices)
		}
		if got := mustSh(t, c, "ulimit -n"); got != fmt.Sprint(inst.Limits.NoFile) {
			t.Errorf("%s: got descriptor limit %s, the instance says %d", when, got,
				inst.Limits.NoFile)
		}
	}
	look("after boot")
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	var err error
	if inst, err = b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	look("after stop and start")
}

func TestSpecReachesTheSandbox(t *testing.T) {
	b := testBackend(t)
	t.Run("sudo", func(t *testing.T) {
		inst := boot(t, b, sandbox.Spec{Sudo: true})
		if got := mustSh(t, login(t, b, inst),
			"grep NoNewPrivs /proc/self/status"); got != "NoNewPrivs:\t0" {
			t.Errorf("got %q, want setuid programs to work", got)
		}
		if !slices.ContainsFunc(inst.Notes,
			func(s string) bool { return strings.HasPrefix(s, "sudo:") }) {
			t.Errorf("got notes %q, want sudo named", inst.Notes)
		}
	})
	t.Run("bridge", func(t *testing.T) {
		inst := boot(t, b, sandbox.Spec{Network: sandbox.NetworkBridge})
		if got := mustSh(t, login(t, b, inst), "ls /sys/class/net"); got != "eth0\nlo" {
			t.Errorf("got interfaces %q, want eth0 and lo", got)
		}
		if !slices.ContainsFunc(inst.Notes,
			func(s string) bool { return strings.HasPrefix(s, "network bridge:") }) {
			t.Errorf("got notes %q, want the network named loudly", inst.Notes)
		}
	})
	t.Run("limits", func(t *testing.T) {
		l := sandbox.Limits{Memory: 128 << 20, CPUs: 0.5, PIDs: 100, Shm: 8 << 20, NoFile: 1000,
			Disk: 1 << 30, Sessions: 8, Connections: 20}
		inst := boot(t, b, sandbox.Spec{Limits: l})
		if diff := cmp.Diff(l, inst.Limits); diff != "" {
			t.Errorf("limits (-want +got):\n%s", diff)
		}
		got := mustSh(t, login(t, b, inst),
			`(cat /sys/fs/cgroup/pids/pids.max || cat /sys/fs/cgroup/pids.max) 2>/dev/null; ulimit -n; df -k /dev/shm | awk 'END{print $2}'`)
		if got != "100\n1000\n8192" {
			t.Errorf("got pids, files and shm %q", got)
		}
	})
	t.Run("user and variables", func(t *testing.T) {
		inst := boot(t, b, sandbox.Spec{User: "1234:1234",
			Env: []string{"GREETING=hello there", "TERM=odd"}})
		if got := mustSh(t, login(t, b, inst),
			`echo "$(id -u):$(id -g) $GREETING"`); got != "1234:1234 hello there" {
			t.Errorf("got %q", got)
		}
		if inst.User != "1234:1234" {
			t.Errorf("got user %q", inst.User)
		}
	})
	t.Run("name is the host name alone", func(t *testing.T) {
		inst := boot(t, b, sandbox.Spec{Name: "demo"})
		c, err := b.engine.container(t.Context(), inst.Ref)
		if err != nil {
			t.Fatal(err)
		}
		if c.Config.Hostname != "demo" {
			t.Errorf("host name %q", c.Config.Hostname)
		}
		c.Config.Hostname, c.HostConfig.ExtraHosts = "", nil // the note has it, too
		text, err := json.Marshal(c)
		if err != nil || strings.Contains(string(text), "demo") ||
			strings.Contains(string(text), "PRIVATE KEY") {
			t.Errorf("the engine knows more than it needs: %s", text)
		}
		wantLabels := map[string]string{"sandboxd.daemon": b.opts.DaemonID, "sandboxd.id": inst.ID,
			"sandboxd.created": inst.Created.Format(time.RFC3339)}
		for k, v := range wantLabels {
			if c.Config.Labels[k] != v {
				t.Errorf("label %s: got %q, want %q", k, c.Config.Labels[k], v)
			}
		}
		n, err := b.state.ReadNote(inst.ID)
		if err != nil || n.Name != "demo" {
			t.Errorf("note: got %+v, %v; want the name", n, err)
		}
	})
}

func TestTrust(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, []byte("our own authority\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := testBackend(t, func(o *Options) { o.CABundle = bundle })
	const look = `cat "$SSL_CERT_FILE" "$PIP_CERT" "$NODE_EXTRA_CA_CERTS"`
	c := login(t, b, boot(t, b, sandbox.Spec{}))
	if got, err := sh(t, c, look); err != nil ||
		got != strings.TrimSpace(strings.Repeat("our own authority\n", 3)) {
		t.Errorf("host: got %q, %v", got, err)
	}
	if out, err := sh(t, c, "echo x >> $SSL_CERT_FILE"); err == nil {
		t.Errorf("the bundle is writable: %s", out)
	}
	image := boot(t, b, sandbox.Spec{Trust: sandbox.TrustImage})
	c = login(t, b, image)
	if got := mustSh(t, c, "echo $SSL_CERT_FILE$PIP_CERT; ls /.sandboxd"); got != "\nrun" {
		t.Errorf("image: got %q, want nothing of the host's", got)
	}
	if err := b.Trust(t.Context(), image, []byte("x")); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("more authorities in a sandbox that trusts those of its image: %v", err)
	}
}

// More authorities follow those of the host, from the start and later, for every user.
func TestAuthorities(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := testBackend(t, func(o *Options) { o.CABundle = bundle })
	inst := boot(t, b, sandbox.Spec{User: "1234:1234", Authorities: []byte("first\n")})
	c := login(t, b, inst)
	const look = "cat $SSL_CERT_FILE"
	if got := mustSh(t, c, look); got != "of the host\nfirst" {
		t.Errorf("got %q", got)
	}
	for _, more := range []string{"second\n", "", "", "third\n"} {
		if err := b.Trust(t.Context(), inst, []byte(more)); err != nil {
			t.Fatal(err)
		}
		want := strings.TrimSpace("of the host\n" + more)
		if got := mustSh(t, c, look); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if text, err := os.ReadFile(bundle); err != nil || string(text) != "of the host" {
		t.Errorf("the host's bundle: %q, %v", text, err)
	}
	if _, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox,
		Trust: sandbox.TrustImage, Authorities: []byte("x")}); !errors.Is(err,
		sandbox.ErrUnsupported) {
		t.Errorf("authorities with trust image: %v", err)
	}
}

// A sandbox uses ENV, WORKDIR, USER, ENTRYPOINT and VOLUME of its image, but not HEALTHCHECK, which
// would be a docker exec.
func TestImageConfig(t *testing.T) {
	b := testBackend(t)
	ref := "sandboxd-test/" + newID()
	ctx := t.Context()
	made, err := b.engine.api.ContainerCreate(
		ctx, client.ContainerCreateOptions{Config: &container.Config{Image: busybox,
			Cmd: []string{"mkdir", "-p", "/srv/app"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.engine.api.ContainerStart(
		ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.engine.waitEnded(ctx, made.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	_, err = b.engine.api.ContainerCommit(
		ctx, made.ID, client.ContainerCommitOptions{Reference: ref, Changes: []string{
			`ENV GREETING=hello PATH=/bin:/opt GODEBUG=madvdontneed=1`, `WORKDIR /srv/app`,
			`USER 12:34`, `VOLUME /data`,
			`ENTRYPOINT ["/bin/sh", "-c"]`,
			`CMD ["echo $GREETING >/tmp/ran; id -u >>/tmp/ran; pwd >>/tmp/ran; exec sleep 1000"]`,
			`HEALTHCHECK --interval=1s CMD touch /tmp/checked`}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.engine.api.ContainerRemove(
		ctx, made.ID, client.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.engine.api.ImageRemove(context.Background(), ref, client.ImageRemoveOptions{Force: true})
	})

	inst := boot(t, b, sandbox.Spec{Image: ref})
	c := login(t, b, inst)
	if got := mustSh(
		t, c,
		`mkdir -p /tmp/x; echo $GREETING $PATH $(pwd) $(id -u):$(id -g)`); got != "hello /bin:/opt /srv/app 12:34" {
		t.Errorf("got %q", got)
	}
	if got := mustSh(
		t, c,
		`until [ "$(wc -l </tmp/ran)" = 3 ]; do sleep 0.02; done 2>/dev/null; cat /tmp/ran`); got != "hello\n12\n/srv/app" {
		t.Errorf("entrypoint: got %q", got)
	}
	if inst.User != "12:34" {
		t.Errorf("got user %q", inst.User)
	}
	full, err := b.engine.container(ctx, inst.Ref)
	if err != nil {
		t.Fatal(err)
	}
	var volume string
	for _, m := range full.Mounts {
		if m.Destination == "/data" {
			volume = m.Name
		}
	}
	if volume == "" {
		t.Fatal("the image's volume is not there")
	}
	if h := full.State.Health; h != nil && h.Status != container.NoHealthcheck && h.Status != "" {
		t.Errorf("the image's health check runs: %+v", full.State.Health)
	}
	if err := b.Destroy(ctx, inst); err != nil {
		t.Fatal(err)
	}
	if _, err := b.engine.api.VolumeInspect(
		ctx, volume, client.VolumeInspectOptions{}); err == nil {
		t.Error("the volume outlives its sandbox")
	}
}

// A new daemon finds the sandboxes of the old one, replaces their sockets, and the guests call
// again.
func TestDaemonRestart(t *testing.T) {
	first := testBackend(t)
	inst := boot(t, first, sandbox.Spec{Name: "demo"})
	c := login(t, first, inst)
	mustSh(t, c, "echo kept >/kept; (sleep 1000 >/dev/null 2>&1 & echo $! >/pid)")
	first.Close()

	second, err := New(first.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("list: got %v, error %v", list, err)
	}
	if diff := cmp.Diff(inst, list[0]); diff != "" {
		t.Errorf("instance (-booted +listed):\n%s", diff)
	}
	began := time.Now()
	c = login(t, second, list[0])
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v until the guest was back", took)
	}
	if got := mustSh(t, c, "cat /kept; kill -0 $(cat /pid) && echo runs"); got != "kept\nruns" {
		t.Errorf("got %q", got)
	}

	// Without the note on disk List asks the engine.
	if err := os.Remove(second.state.NotePath(inst.ID)); err != nil {
		t.Fatal(err)
	}
	if list, err = second.List(t.Context()); err != nil || len(list) != 1 {
		t.Fatalf("list: got %v, error %v", list, err)
	}
	booted := inst
	// The engine does not know these.
	booted.Limits.Disk, booted.Limits.Sessions, booted.Limits.Connections = 0, 0, 0
	// Nor this one: it counts as an earlier revision.
	booted.Revision = ""
	if diff := cmp.Diff(booted, list[0],
		cmpopts.IgnoreFields(sandbox.Instance{}, "Image", "Notes")); diff != "" {
		t.Errorf("instance (-booted +reconstructed):\n%s", diff)
	}
	mustSh(t, login(t, second, list[0]), "true")

	// Without the keys no login works, but the sandbox is not reported as gone.
	if err := os.Remove(second.state.KeysPath(inst.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Dial(t.Context(), inst); err == nil || errors.Is(err, sandbox.ErrGone) ||
		!strings.Contains(err.Error(), "keys are missing") {
		t.Errorf("dial without keys: got error %v", err)
	}
	if err := second.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, second, inst.ID)
}

// An unreachable engine does not block access to a running sandbox.
func TestDialWithoutEngine(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	inst := boot(t, b, sandbox.Spec{})
	b.sockets.Shut(inst.ID) // as in a new daemon
	f.set(func(w http.ResponseWriter, _ *http.Request) bool { hangUp(w); return true })
	mustSh(t, login(t, b, inst), "true")

	// A hanging engine delays it only for a moment.
	b.sockets.Shut(inst.ID)
	f.set(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	began := time.Now()
	mustSh(t, login(t, b, inst), "true")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("with an engine that hangs it took %v", took)
	}

	// The same in a new daemon that has never reached its engine, and while its other calls wait
	// longer.
	b.Close()
	second, err := New(b.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	asked := make(chan struct{})
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case asked <- struct{}{}:
		case <-r.Context().Done():
		}
		<-r.Context().Done()
		return true
	})
	wg.Go(func() { _, _ = second.List(ctx) }) // it ends with ctx
	<-asked
	began = time.Now()
	mustSh(t, login(t, second, inst), "true")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("in another daemon it took %v", took)
	}
	f.set(nil)
	cancel()
	if err := second.Destroy(t.Context(), inst); err != nil {
		t.Error(err)
	}
}

// After a container was killed outside the daemon, Inspect reports how it ended, Dial returns
// ErrStopped, and Start restarts it.
func TestKilledFromOutside(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	c := login(t, b, inst)
	mustSh(t, c, "echo kept >/kept")
	if _, err := b.engine.api.ContainerKill(t.Context(), inst.Ref,
		client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if err := b.engine.waitEnded(t.Context(), inst.Ref, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	got, err := b.Inspect(t.Context(), inst)
	if err != nil || got.Running || got.ExitCode != 137 {
		t.Errorf("inspect: got %+v, %v; want exit code 137", got, err)
	}
	if _, err := b.Dial(t.Context(), inst); !errors.Is(err, sandbox.ErrStopped) {
		t.Errorf("dial: got error %v, want %v", err, sandbox.ErrStopped)
	}
	if inst, err = b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, login(t, b, inst), "cat /kept"); got != "kept" {
		t.Errorf("got %q", got)
	}
}

func TestOutOfMemory(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 64 << 20}})
	c := login(t, b, inst)
	if before, err := b.Inspect(t.Context(), inst); err != nil || before.OOMKilled {
		t.Fatalf("before: got %+v, %v", before, err)
	}
	if out, err := sh(t, c, "tail /dev/zero"); err == nil {
		t.Errorf("200 MB in 64: got %q and no error", out)
	}
	got, err := b.Inspect(t.Context(), inst)
	if err != nil || !got.Running || !got.OOMKilled {
		t.Errorf("got %+v, %v; want it to run, and to tell of a process that ran out of memory",
			got, err)
	}
	if u, err := b.Usage(t.Context(), inst); err != nil || u.OOMKills < 1 {
		t.Errorf("usage: got %+v, %v; want the process counted", u, err)
	}
	mustSh(t, c, "true")
}
