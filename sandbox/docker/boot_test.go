package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

var stages = []sandbox.Stage{sandbox.StageValidate, sandbox.StageEngine, sandbox.StageImage,
	sandbox.StageKeys, sandbox.StageCreate, sandbox.StageAttach, sandbox.StageStart,
	sandbox.StageGuest}

// nothingLeft fails the test if a container, a directory or a socket of id exists.
func nothingLeft(t *testing.T, b *Backend, id string) {
	t.Helper()
	if c, err := b.engine.container(context.Background(), containerName(id)); !errors.Is(
		err, sandbox.ErrGone) {
		t.Errorf("container is left: %v, error %v", c.ID, err)
	}
	if _, err := b.engine.inspectImage(context.Background(), machine.ForkImage(id)); !errors.Is(
		err, sandbox.ErrNoImage) {
		t.Errorf("the image of a fork is left: %v", err)
	}
	if _, err := os.Lstat(b.state.Dir(id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory is left: %v", err)
	}
	if b.sockets.IsOpen(id) {
		t.Error("a socket is left")
	}
	if b.instances.Changing(id) {
		t.Error("left: it is locked")
	}
}

func wantStage(t *testing.T, err error, stage sandbox.Stage) *sandbox.BootError {
	t.Helper()
	var boot *sandbox.BootError
	if !errors.As(err, &boot) {
		t.Fatalf("got error %v, want a BootError", err)
	}
	if stage != "" && boot.Stage != stage {
		t.Errorf("got stage %s, want %s (%v)", boot.Stage, stage, err)
	}
	return boot
}

// A context that ends at any stage ends Boot there, and nothing of the sandbox is left.
func TestBootCancelled(t *testing.T) {
	b := testBackend(t)
	cause := errors.New("changed my mind")
	for _, stage := range stages {
		t.Run(string(stage), func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			b.at = func(s sandbox.Stage) {
				if s == stage {
					cancel(cause)
				}
			}
			defer func() { b.at = nil }()
			id := newID()
			_, err := b.Boot(ctx, sandbox.Spec{ID: id, Image: busybox})
			wantStage(t, err, stage)
			if !errors.Is(err, cause) {
				t.Errorf("got error %v, want %v", err, cause)
			}
			nothingLeft(t, b, id)
		})
	}
}

// engineCalls are all engine calls of a boot, with the stage that fails without an answer.
var engineCalls = []struct {
	call  string
	stage sandbox.Stage
}{
	{"GET /info", sandbox.StageEngine},
	{"GET /images/*/json", sandbox.StageImage},
	{"POST /containers/create", sandbox.StageCreate},
	{"POST /containers/*/attach", sandbox.StageAttach},
	{"POST /containers/*/start", sandbox.StageStart},
	{"GET /containers/*/json", sandbox.StageGuest},
}

// The engine denies a call, dies before or just after it has carried it out, or is abandoned while
// it works. Boot fails with the call's stage, and nothing is left once the engine is back.
func TestBootEngineFails(t *testing.T) {
	for _, tt := range engineCalls {
		for _, how := range []string{"refuses", "dies", "dies afterwards", "cancelled",
			"cancelled afterwards"} {
			t.Run(string(tt.stage)+" "+how, func(t *testing.T) {
				f := newFlaky(t)
				b := testBackend(t, f.use)
				if tt.stage != sandbox.StageEngine {
					factsFor(t, b) // its question whether files are shared is a creation, too
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var happened atomic.Bool
				f.set(func(w http.ResponseWriter, r *http.Request) bool {
					// Calls with an effect fail once, so that they can be undone. Calls that
					// net/http repeats immediately always fail.
					if !asks(r, tt.call) || happened.Swap(true) && r.Method != http.MethodGet {
						return false
					}
					switch how {
					case "refuses":
						refuse(w)
						return true
					case "dies":
						hangUp(w)
						return true
					case "dies afterwards":
						if tt.stage != sandbox.StageAttach { // an attachment ends with its engine
							forward(t, r)
						}
						hangUp(w)
						return true
					case "cancelled":
						cancel()
					case "cancelled afterwards":
						context.AfterFunc(r.Context(), cancel) // while the answer is on its way
					}
					return false
				})
				id := newID()
				inst, err := b.Boot(ctx, sandbox.Spec{ID: id, Image: busybox})
				f.set(nil)
				if err == nil {
					// The answer of the last call came before the end of the context.
					if how != "cancelled afterwards" {
						t.Fatal("Boot: got no error")
					}
					if err := b.Destroy(t.Context(), inst); err != nil {
						t.Error(err)
					}
					nothingLeft(t, b, id)
					return
				}
				stage := tt.stage
				if how == "cancelled" || how == "cancelled afterwards" {
					stage = "" // the next stage may have begun
				}
				boot := wantStage(t, err, stage)
				if strings.HasPrefix(how, "dies") &&
					(!errors.Is(err, sandbox.ErrEngine) || boot.Hint == "") {
					t.Errorf("got error %v, hint %q; want %v and what to do", err, boot.Hint,
						sandbox.ErrEngine)
				}
				// Of a failed attachment the client reports only the status.
				if how == "refuses" && !strings.Contains(err.Error(), "out of sorts") &&
					!strings.Contains(err.Error(), "received 500") {
					t.Errorf("got error %v, want what the engine said", err)
				}
				nothingLeft(t, b, id)
			})
		}
	}
}

// forward sends a request to the real engine.
func forward(t *testing.T, r *http.Request) {
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", "docker"
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dialEngine}}
	resp, err := direct.Do(r)
	if err != nil {
		t.Errorf("forward: %v", err)
		return
	}
	resp.Body.Close()
}

// An engine that stays away leaves its container behind. The error says so, and Destroy removes it
// later.
func TestBootEngineStaysAway(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	b.engine.limits.remove = 300 * time.Millisecond
	var away atomic.Bool
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if asks(r, "POST /containers/*/start") {
			away.Store(true)
		}
		if away.Load() {
			hangUp(w)
		}
		return away.Load()
	})
	id := newID()
	_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox})
	wantStage(t, err, sandbox.StageStart)
	if !strings.Contains(err.Error(), "left behind") {
		t.Errorf("got error %v, want it to say that a container is left", err)
	}
	f.set(nil)
	b.engine.limits = defaultLimits
	list, err := b.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Fatalf("list: got %v, error %v; want the one left behind", list, err)
	}
	if err := b.Destroy(t.Context(), list[0]); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, b, id)
}

func TestEngineDoesNotAnswer(t *testing.T) {
	t.Run("no socket", func(t *testing.T) {
		b, err := New(Options{Dir: t.TempDir(), GuestDir: t.TempDir(), DaemonID: "d",
			Guest: func(string) (string, error) { return "/bin/true", nil },
			Host:  "unix://" + filepath.Join(t.TempDir(), "none.sock")})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.Boot(t.Context(), sandbox.Spec{ID: "s1"})
		boot := wantStage(t, err, sandbox.StageEngine)
		if !errors.Is(err, sandbox.ErrEngine) || !strings.Contains(boot.Hint, "start the engine") {
			t.Errorf("got error %v, hint %q; want %v and how to start it", err, boot.Hint,
				sandbox.ErrEngine)
		}
		if _, err := b.List(t.Context()); !errors.Is(err, sandbox.ErrEngine) {
			t.Errorf(
				"List: got error %v, want %v: an engine that is away has not lost its containers",
				err, sandbox.ErrEngine)
		}
		if _, err := b.Inspect(t.Context(), sandbox.Instance{ID: "s1", Ref: "x"}); !errors.Is(
			err, sandbox.ErrEngine) {
			t.Errorf("Inspect: got error %v, want %v", err, sandbox.ErrEngine)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		f := newFlaky(t)
		b := testBackend(t, f.use)
		defer f.set(nil)
		b.engine.limits.quick = 50 * time.Millisecond
		defer func() { b.engine.limits = defaultLimits }()
		f.set(func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		})
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox})
		boot := wantStage(t, err, sandbox.StageEngine)
		if !errors.Is(err, sandbox.ErrEngine) || !strings.Contains(err.Error(), "within 50ms") ||
			boot.Hint == "" {
			t.Errorf("got error %v, hint %q; want %v within its time, and what to do", err,
				boot.Hint, sandbox.ErrEngine)
		}
	})
}

func TestImageMissing(t *testing.T) {
	t.Run("registry does not answer", func(t *testing.T) {
		b := testBackend(t)
		id, began := newID(), time.Now()
		var lines []string
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: "registry.invalid/none",
			Progress: func(s string) { lines = append(lines, s) }})
		boot := wantStage(t, err, sandbox.StageImage)
		if !errors.Is(err, sandbox.ErrNoImage) ||
			!strings.Contains(err.Error(), "registry.invalid/none:latest") || boot.Hint == "" {
			t.Errorf("got error %v, hint %q; want %v, its name and what to do", err, boot.Hint,
				sandbox.ErrNoImage)
		}
		if len(lines) == 0 || lines[0] != "pulling registry.invalid/none:latest" {
			t.Errorf("got progress %q, want it to begin with the pull", lines)
		}
		if took := time.Since(began); took > pullSilence+time.Minute {
			t.Errorf("took %v", took)
		}
		nothingLeft(t, b, id)
	})
	gone := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/images/"+sandbox.DefaultImage) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"message":"No such image"}`)
		return true
	}
	t.Run("default image", func(t *testing.T) {
		f := newFlaky(t)
		b := testBackend(t, f.use)
		f.set(func(w http.ResponseWriter, r *http.Request) bool {
			if asks(r, "POST /images/create") {
				t.Error("the default image was pulled: another party may own its name")
			}
			return gone(w, r)
		})
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID()})
		boot := wantStage(t, err, sandbox.StageImage)
		if !errors.Is(err, sandbox.ErrNoImage) ||
			!strings.Contains(boot.Hint, "images/base/build") {
			t.Errorf("got error %v, hint %q; want %v and how to build it", err, boot.Hint,
				sandbox.ErrNoImage)
		}
	})
	t.Run("default image is built", func(t *testing.T) {
		f := newFlaky(t)
		broken := errors.New("no mirror")
		b := testBackend(t, f.use, func(o *Options) {
			o.Build = func(_ context.Context, _ string, progress func(string)) error {
				progress("half of it")
				return broken
			}
		})
		f.set(gone)
		var lines []string
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Progress: func(s string) {
			lines = append(lines, s)
		}})
		wantStage(t, err, sandbox.StageImage)
		if !errors.Is(err, broken) || len(lines) != 2 || lines[1] != "half of it" {
			t.Errorf("got error %v, progress %q; want %v and the lines of the build", err, lines,
				broken)
		}
		b.images.Build = func(context.Context, string, func(string)) error {
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				// Stands for the image that was built: any other.
				r.URL.Path = strings.Replace(r.URL.Path, sandbox.DefaultImage, busybox, 1)
				return false
			})
			return nil
		}
		inst := boot(t, b, sandbox.Spec{ID: newID(), Image: sandbox.DefaultImage})
		mustSh(t, login(t, b, inst), "true")
	})
}

func TestPullProgress(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	pull := func(answer string) (lines []string, err error) {
		f.set(func(w http.ResponseWriter, r *http.Request) bool {
			if !asks(r, "POST /images/create") {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answer)
			return true
		})
		return lines, b.engine.pull(t.Context(), "a:b", func(s string) { lines = append(lines, s) })
	}
	lines, err := pull(`{"status":"Pulling from a","id":"b"}
{"status":"Downloading","progressDetail":{"current":1,"total":3},"id":"c0ffee"}
{"status":"Downloading","progressDetail":{"current":2,"total":3},"id":"c0ffee"}
{"status":"Pull complete","id":"c0ffee"}
{"status":"Status: Downloaded newer image for a:b"}
`)
	want := []string{"pulling a:b", "b: Pulling from a", "c0ffee: Downloading",
		"c0ffee: Pull complete", "Status: Downloaded newer image for a:b"}
	if err != nil || strings.Join(lines, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, error %v; want %q", lines, err, want)
	}
	if _, err := pull(
		`{"errorDetail":{"message":"manifest unknown"},"error":"manifest unknown"}`); !errors.Is(
		err, sandbox.ErrNoImage) || !strings.Contains(err.Error(), "manifest unknown") {
		t.Errorf("got error %v, want %v with what the registry said", err, sandbox.ErrNoImage)
	}
	if _, err := pull(`{"stat`); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("interrupted: got error %v, want %v", err, sandbox.ErrNoImage)
	}
}

func TestIsolationMissing(t *testing.T) {
	b := testBackend(t)
	id := newID()
	_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox, Isolation: "none-such"})
	boot := wantStage(t, err, sandbox.StageEngine)
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(
		err.Error(), "the engine has "+factsFor(t, b).runtimes[0]) || boot.Hint == "" {
		t.Errorf("got error %v, hint %q; want %v, what the engine has, and what to do", err,
			boot.Hint, sandbox.ErrUnsupported)
	}
	nothingLeft(t, b, id)
}

// A guest that cannot start, or ends, is an error that includes its last output.
func TestGuestDies(t *testing.T) {
	script := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(script, []byte(
		"#!/bin/sh\nread line; echo first; printf 'no\\033[31msuch device'; echo >&2; exit 3\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	noProgram := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(noProgram, []byte("\x7fELF no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, guest string
		stage       sandbox.Stage
		want        string
	}{
		{"exits", script, sandbox.StageGuest,
			"guest ended with exit code 3: first; no?[31msuch device"},
		// The engine or the container reports it, depending on the runtime.
		{"no program", noProgram, "", "exec format error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := testBackend(t, func(o *Options) {
				o.Guest = func(string) (string, error) { return tt.guest, nil }
			})
			id := newID()
			_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox})
			wantStage(t, err, tt.stage)
			if !strings.Contains(strings.ToLower(err.Error()), tt.want) {
				t.Errorf("got error %q, want %q in it", err, tt.want)
			}
			nothingLeft(t, b, id)
		})
	}
	t.Run("missing", func(t *testing.T) {
		missing := errors.New("was not built")
		b := testBackend(t, func(o *Options) {
			o.Guest = func(string) (string, error) { return "", missing }
		})
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox})
		wantStage(t, err, sandbox.StageEngine)
		if !errors.Is(err, missing) {
			t.Errorf("got error %v, want %v", err, missing)
		}
	})
}

// If the engine cannot raise the descriptor limit to ours, the container gets the engine's own,
// unless the spec asks for a limit.
func TestNoFileAboveTheEngine(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	var refused atomic.Bool
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !asks(r, "POST /containers/*/start") || refused.Swap(true) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(
			w,
			`{"message":"OCI runtime create failed: error setting rlimit type 7: operation not permitted: unknown"}`)
		return true
	})
	inst := boot(t, b, sandbox.Spec{})
	if got := mustSh(t, login(t, b, inst), "ulimit -n"); got != fmt.Sprint(inst.Limits.NoFile) {
		t.Errorf("got a limit of %s, the instance says %d", got, inst.Limits.NoFile)
	}
	refused.Store(false)
	_, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox,
		Limits: sandbox.Limits{NoFile: 1 << 20}})
	wantStage(t, err, sandbox.StageStart)
	if !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("asked for: got error %v, want %v", err, sandbox.ErrUnsupported)
	}
}

func TestBootsAtOnce(t *testing.T) {
	b := testBackend(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			inst, err := b.Boot(t.Context(), sandbox.Spec{ID: newID(), Image: busybox})
			if err != nil {
				t.Error(err)
				return
			}
			if err := b.Destroy(t.Context(), inst); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	// Of many callers with one ID, one wins and the others change nothing of it.
	id := newID()
	var mu sync.Mutex
	var won []sandbox.Instance
	for range 5 {
		wg.Go(func() {
			inst, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, inst)
			} else if !errors.Is(err, os.ErrExist) {
				t.Errorf("got error %v, want that it exists", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d boots of one ID succeeded, want 1", len(won))
	}
	mustSh(t, login(t, b, won[0]), "true")
}

// R5: List removes a container that the engine made after its Boot had been undone. It keeps one
// with keys, and one that has run.
func TestR5LateContainer(t *testing.T) {
	b := testBackend(t)
	for _, tt := range []struct {
		name      string
		keys, ran bool
		left      bool
	}{{"never started", false, false, false}, {"with keys", true, false, true},
		{"has run", false, true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			id := newID()
			c, err := b.engine.api.ContainerCreate(
				t.Context(), client.ContainerCreateOptions{Name: containerName(id),
					Config: &container.Config{Image: busybox,
						Cmd: []string{"true"},
						Labels: map[string]string{labelDaemon: b.opts.DaemonID,
							labelID: id}}})
			if err != nil {
				t.Fatal(err)
			}
			if tt.keys {
				if err := os.Mkdir(b.state.Dir(id), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if tt.ran {
				if _, err := b.engine.api.ContainerStart(t.Context(), c.ID,
					client.ContainerStartOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			list, err := b.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.ContainsFunc(
				list, func(i sandbox.Instance) bool { return i.ID == id }); got != tt.left {
				t.Errorf("listed: %v, want %v", got, tt.left)
			}
			if !tt.left {
				nothingLeft(t, b, id)
			}
		})
	}
}

// The revision of an instance equals the current one until the guest program changes. It includes
// the runtime that the spec asks for.
func TestRevision(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	now := func(spec sandbox.Spec) string {
		t.Helper()
		text, err := b.Revision(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if got := now(sandbox.Spec{}); got != inst.Revision || !strings.HasPrefix(got, "guest-") ||
		!strings.HasSuffix(got, " "+inst.Runtime) {
		t.Errorf("made with %q, and now with %q", inst.Revision, got)
	}
	if got := now(sandbox.Spec{Isolation: "other"}); !strings.HasSuffix(got, " other") {
		t.Errorf("with another runtime: %q", got)
	}
	other := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(other, []byte("newer"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.files = machine.NewFiles(b.opts.GuestDir, func(string) (string, error) { return other, nil },
		b.opts.CABundle)
	if got := now(sandbox.Spec{}); got == inst.Revision {
		t.Errorf("with another guest: %q", got)
	}
}
