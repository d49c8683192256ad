package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// testRegistry is a registry. change, if not nil, may answer a request itself.
type testRegistry struct {
	host   string
	change func(w http.ResponseWriter, r *http.Request) bool
	blobs  atomic.Int32 // requests for layers
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	r := new(testRegistry)
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.blobs.Add(1)
		}
		if r.change == nil || req.Method != http.MethodGet || !r.change(w, req) {
			h.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

func (r *testRegistry) ref(t *testing.T, repo string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (r *testRegistry) push(t *testing.T, repo string, img ggcr.Image) (ref string) {
	t.Helper()
	if err := remote.Write(r.ref(t, repo), img); err != nil {
		t.Fatal(err)
	}
	return r.host + "/" + repo
}

// imageOf makes an image for linux/arch; each tar is a layer.
func imageOf(t *testing.T, arch string, tars ...[]byte) ggcr.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, data := range tars {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return withConfig(t, img, func(c *ggcr.ConfigFile) {
		c.OS, c.Architecture = "linux", arch
		c.Created = ggcr.Time{Time: time.Unix(1e9, 0)}
		c.Config = ggcr.Config{User: "u", Env: []string{"A=b"}, Cmd: []string{"sh"}}
	})
}

func withConfig(t *testing.T, img ggcr.Image, change func(*ggcr.ConfigFile)) ggcr.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	change(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPull(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	shared := tarOf(t, regular("shared", "1"))
	ref := r.push(t, "a:1", imageOf(t, "arm64", shared,
		tarOf(t, regular("x", "1"), regular("y", "2")),
		tarOf(t, regular(".wh.shared", ""), regular("d/.wh..wh..opq", ""), regular("d/z", "")),
		shared))
	var lines []string
	img, err := s.Pull(t.Context(), ref, "arm64", Anonymous, func(l string) {
		lines = append(lines, l)
	})
	if err != nil {
		t.Fatal(err)
	}
	if img.Ref != ref || img.Arch != "arm64" || img.Config.User != "u" || len(img.Layers) != 3 ||
		img.Created.Unix() != 1e9 || img.Size == 0 {
		t.Errorf("got %+v", img)
	}
	if len(lines) != 1 || lines[0] != "pulling "+ref {
		t.Errorf("got lines %q", lines)
	}
	wantCounts(t, s, [4]int{3, 1, 0, 0})
	// Layers that are there are not read again.
	r.blobs.Store(0)
	other := r.push(t, "b", imageOf(t, "arm64", shared))
	if _, err := s.Pull(t.Context(), other, "arm64", Anonymous, nil); err != nil {
		t.Fatal(err)
	}
	if n := r.blobs.Load(); n != 1 { // the configuration
		t.Errorf("got %d reads of blobs, want 1", n)
	}
	wantCounts(t, s, [4]int{3, 2, 0, 0})
	// By digest.
	d, err := remote.Head(r.ref(t, "b"))
	if err != nil {
		t.Fatal(err)
	}
	ref = r.host + "/b@" + d.Digest.String()
	if img, err := s.Pull(t.Context(), ref, "arm64", Anonymous, nil); err != nil || img.Ref != ref {
		t.Errorf("got %+v, %v", img, err)
	}
}

func TestPullPlatforms(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range []ggcr.Platform{{OS: "windows", Architecture: "amd64"},
		{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "s390x"},
		{OS: "unknown", Architecture: "unknown"}} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        imageOf(t, p.Architecture, tarOf(t, regular(p.Architecture, ""))),
			Descriptor: ggcr.Descriptor{Platform: &p}})
	}
	if err := remote.WriteIndex(r.ref(t, "many"), index); err != nil {
		t.Fatal(err)
	}
	img, err := s.Pull(t.Context(), r.host+"/many", "s390x", Anonymous, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(img.Layers[0], "s390x")); err != nil || img.Arch != "s390x" {
		t.Errorf("got %+v, %v", img, err)
	}
	one := r.push(t, "one", imageOf(t, "amd64", tarOf(t, regular("x", ""))))
	for ref, want := range map[string]string{
		r.host + "/many": "is for linux/amd64, linux/s390x, windows/amd64, not for linux/arm64",
		one:              "is for linux/amd64, not for linux/arm64",
	} {
		if _, err := s.Pull(t.Context(), ref, "arm64", Anonymous, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", ref, err, want)
		}
	}
}

// Only who asks for it uses the credentials of docker login.
func TestPullLogin(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	ref := r.push(t, "a", imageOf(t, "amd64", tarOf(t, regular("x", "1"))))
	r.change = func(w http.ResponseWriter, req *http.Request) bool {
		user, password, _ := req.BasicAuth()
		if user == "ann" && password == "swordfish" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	config := fmt.Sprintf(`{"auths":{%q:{"username":"ann","password":"swordfish"}}}`, r.host)
	at := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	if err := os.WriteFile(at, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), ref, "amd64", Anonymous, nil); err == nil ||
		!strings.Contains(err.Error(), "sandboxd images pull "+ref) {
		t.Errorf("anonymous: got error %v, want one that says how to log in", err)
	}
	if _, err := s.Pull(t.Context(), ref, "amd64", DockerLogin, nil); err != nil {
		t.Error(err)
	}
}

func TestPullErrors(t *testing.T) {
	x := tarOf(t, regular("x", strings.Repeat("hello", 1000)))
	escape := "\x1b[31mred\n"
	for _, tt := range []struct {
		name    string
		image   func(t *testing.T) ggcr.Image
		change  func(w http.ResponseWriter, r *http.Request) bool
		missing bool // the error is fs.ErrNotExist
		want    string
	}{
		{"unknown", nil, nil, true, "does not have it"},
		{"not found in plain text", nil, answer(404, "text/plain", "gone"+escape), true, "does not have it"},
		{"unauthorized", nil, answer(401, "application/json", `{"errors":[{"code":"UNAUTHORIZED","message":"who"}]}`), false, "docker login"},
		{"forbidden", nil, answer(403, "text/plain", "no"+escape), false, "docker login"},
		{"control characters", nil, answer(400, "text/plain", escape), false, "[31mred"},
		{"schema 1", nil, answer(200, string(types.DockerManifestSchema1Signed), `{"schemaVersion":1}`), false, "schema 1"},
		{"page", nil, answer(200, "text/html"+escape, "<html>"), false, "not a container image"},
		{"no manifest", nil, answer(200, string(types.OCIManifestSchema1), "[]"), false, ""},
		{"null", nil, answer(200, string(types.OCIManifestSchema1), "null"), false, ""},
		{"empty index", nil, answer(200, string(types.OCIImageIndex), "{}"), false, "is for"},
		{"negative size", nil, answer(200, string(types.OCIManifestSchema1), `{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":-1}}`), false, "-1 bytes"},
		{"large configuration", nil, answer(200, string(types.OCIManifestSchema1), `{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":99999999999}}`), false, "not a container image"},
		{"artifact", func(t *testing.T) ggcr.Image {
			return mutate.ConfigMediaType(imageOf(t, "amd64", x), "application/vnd.helm"+"\n")
		}, nil, false, "not a container image"},
		{"large labels", func(t *testing.T) ggcr.Image {
			return withConfig(t, imageOf(t, "amd64", x), func(c *ggcr.ConfigFile) {
				c.Config.Labels = map[string]string{"x": strings.Repeat("x", maxKept)}
			})
		}, nil, false, "environment, labels and commands"},
		{"no layers", func(t *testing.T) ggcr.Image { return imageOf(t, "amd64") }, nil, false, "0 layers"},
		{"windows", func(t *testing.T) ggcr.Image {
			return withConfig(t, imageOf(t, "amd64", x), func(c *ggcr.ConfigFile) {
				c.OS = "windows"
			})
		}, nil, false, `for "windows", not for Linux`},
		{"other diff ID", func(t *testing.T) ggcr.Image {
			return withConfig(t, imageOf(t, "amd64", x), func(c *ggcr.ConfigFile) {
				c.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
			})
		}, nil, false, "names another one"},
		{"too few diff IDs", func(t *testing.T) ggcr.Image {
			return withConfig(t, imageOf(t, "amd64", x, x), func(c *ggcr.ConfigFile) {
				c.RootFS.DiffIDs = c.RootFS.DiffIDs[:1]
			})
		}, nil, false, "2 layers, and a configuration for 1"},
		{"layer of other servers", func(t *testing.T) ggcr.Image {
			img, err := mutate.Append(imageOf(t, "amd64"), mutate.Addendum{
				Layer: static.NewLayer(x, types.DockerForeignLayer),
				URLs:  []string{"http://127.0.0.1:1/"}})
			if err != nil {
				t.Fatal(err)
			}
			return img
		}, nil, false, "not supported"},
		{"layer of another type", func(t *testing.T) ggcr.Image {
			img, err := mutate.AppendLayers(imageOf(t, "amd64"), static.NewLayer(x, "text/plain"))
			if err != nil {
				t.Fatal(err)
			}
			return img
		}, nil, false, "not supported"},
		{"layer is missing", func(t *testing.T) ggcr.Image { return imageOf(t, "amd64", x) },
			onLayer(answer(404, "text/plain", "gone")), false, "layer sha256:"},
		{"other bytes", func(t *testing.T) ggcr.Image { return imageOf(t, "amd64", x) },
			onLayer(answer(200, "", string(x))), false, "error verifying"},
		{"half of the bytes", func(t *testing.T) ggcr.Image { return imageOf(t, "amd64", x) },
			onLayer(func(w http.ResponseWriter, _ *http.Request) bool {
				w.Write([]byte("\x1f\x8b\x08\x00"))
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}), false, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, s := newRegistry(t), newStore(t)
			ref := r.host + "/a"
			if tt.image != nil {
				r.push(t, "a", tt.image(t))
			}
			if tt.change != nil {
				r.change = func(w http.ResponseWriter, req *http.Request) bool {
					return req.URL.Path != "/v2/" && tt.change(w, req)
				}
			}
			_, err := s.Pull(t.Context(), ref, "amd64", DockerLogin, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got error %v, want one with %q in it", err, tt.want)
			}
			if got := errors.Is(err, fs.ErrNotExist); got != tt.missing {
				t.Errorf("%v: is fs.ErrNotExist: got %v, want %v", err, got, tt.missing)
			}
			if strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("control characters in %q", err)
			}
			wantCounts(t, s, [4]int{})
		})
	}
}

func answer(code int, mediaType, body string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", strings.TrimSuffix(mediaType, "\x1b[31mred\n"))
		w.WriteHeader(code)
		io.WriteString(w, body)
		return true
	}
}

// onLayer applies change to the second blob that is read: the first is the configuration.
func onLayer(change func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter,
	*http.Request) bool {
	n := 0
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		n++
		return n > 1 && change(w, r)
	}
}

// TestPullEnds ends the context while a layer is read.
func TestPullEnds(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	l, err := random.Layer(1<<20, types.OCILayer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(imageOf(t, "amd64", tarOf(t, regular("x", "1"))), l)
	if err != nil {
		t.Fatal(err)
	}
	ref := r.push(t, "a", img)
	digest, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	r.change = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, digest.String()) {
			return false
		}
		data, err := l.Compressed()
		if err != nil {
			t.Error(err)
			return false
		}
		defer data.Close()
		io.CopyN(w, data, 100<<10)
		w.(http.Flusher).Flush()
		cancel(errStop)
		<-req.Context().Done()
		return true
	}
	if _, err := s.Pull(ctx, ref, "amd64", Anonymous, nil); !errors.Is(err, errStop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	wantCounts(t, s, [4]int{})
	if _, err := s.Pull(ctx, ref, "amd64", Anonymous, nil); !errors.Is(err, errStop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	r.change = nil
	if _, err := s.Pull(t.Context(), ref, "amd64", Anonymous, nil); err != nil {
		t.Error(err)
	}
}

// TestPullTwice pulls one image several times at the same time, while another process collects.
func TestPullTwice(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	img, err := random.Image(64<<10, 5)
	if err != nil {
		t.Fatal(err)
	}
	img = withConfig(t, img, func(c *ggcr.ConfigFile) { c.OS, c.Architecture = "linux", "amd64" })
	ref := r.push(t, "a", img)
	errs := make(chan error)
	for range 4 {
		go func() {
			s, err := Open(s.dir)
			if err == nil {
				_, err = s.Pull(t.Context(), ref, "amd64", Anonymous, nil)
			}
			errs <- err
		}()
	}
	for range 4 {
		collect(t, s)
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	collect(t, s)
	wantCounts(t, s, [4]int{5, 1, 0, 0})
	if _, err := s.Image(ref); err != nil {
		t.Error(err)
	}
}

func TestPullBadReference(t *testing.T) {
	s := newStore(t)
	for _, ref := range []string{"", "A", "a b", "a:", "http://x/y", "-x", "a\n",
		strings.Repeat("0", 64)} {
		if _, err := s.Pull(t.Context(), ref, "amd64", Anonymous, nil); err == nil {
			t.Errorf("%q: got no error", ref)
		}
	}
}

func TestPullMeter(t *testing.T) {
	start := time.Unix(0, 0)
	m := &pullMeter{ref: "debian:12", total: 50e6, at: start}
	for _, tt := range []struct {
		n     int64
		after time.Duration
		want  string
	}{
		{1e6, 3 * time.Second, ""},
		{9e6, time.Second, ""},
		{23e5, 3 * time.Second, "pulling debian:12: 12.3 MB of 50.0 MB"},
		{30e6, 4 * time.Second, ""},
		{0, 6 * time.Second, "pulling debian:12: 42.3 MB of 50.0 MB"},
		{0, time.Minute, ""},
	} {
		if got := m.add(tt.n, start.Add(tt.after)); got != tt.want {
			t.Errorf("%d after %v: got %q, want %q", tt.n, tt.after, got, tt.want)
		}
	}
	for n, want := range map[int64]string{999: "1.0 kB", 2e9: "2.0 GB"} {
		if got := formatSize(n); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLoad(t *testing.T) {
	s := newStore(t)
	x, y := tarOf(t, regular("x", "1")), tarOf(t, regular("y", "2"))
	path := filepath.Join(t.TempDir(), "a.tar")
	images := make(map[name.Tag]ggcr.Image)
	for ref, img := range map[string]ggcr.Image{"debian:12": imageOf(t, "arm64", x, y, x),
		"sandboxd/base:latest": imageOf(t, "amd64", y)} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		images[tag] = img
	}
	if err := tarball.MultiWriteToFile(path, images); err != nil {
		t.Fatal(err)
	}
	loaded, err := s.Load(t.Context(), path)
	if err != nil || len(loaded) != 2 {
		t.Fatalf("got %+v, %v", loaded, err)
	}
	debian, err := s.Image("debian:12")
	if err != nil || debian.Arch != "arm64" || len(debian.Layers) != 2 ||
		debian.Config.User != "u" {
		t.Fatalf("got %+v, %v", debian, err)
	}
	if _, err := os.Stat(filepath.Join(debian.Layers[1], "x")); err != nil {
		t.Error(err)
	}
	if _, err := s.Image("sandboxd/base"); err != nil {
		t.Error(err)
	}
	wantCounts(t, s, [4]int{2, 2, 0, 0})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if _, err := s.Load(ctx, path); !errors.Is(err, errStop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}

// TestLoadDocker loads what docker save writes: plain layers, a link for one that is there twice,
// and the whole of it compressed by the user.
func TestLoadDocker(t *testing.T) {
	x := tarOf(t, regular("x", "1"))
	img := imageOf(t, "amd64", x)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	manifest := `[{"Config":"c.json","RepoTags":["a:1","b:2"],"Layers":["one/layer.tar"]}]`
	good := []file{regular("c.json", string(config)), regular("two/layer.tar", string(x)),
		link('2', "one/layer.tar", "../two/layer.tar"), regular("manifest.json", manifest)}
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"good", tarOf(t, good...), ""},
		{"compressed", gzipped(t, tarOf(t, good...)), ""},
		{"other layer", tarOf(t, regular("c.json", string(config)), regular("one/layer.tar", string(tarOf(t, regular("x", "2")))), good[3]), "names another one"},
		{"no layer", tarOf(t, good[0], good[3]), "not found"},
		{"layer that is its own link", tarOf(t, good[0], link('2', "one/layer.tar", "layer.tar"), good[3]), "cycle"},
		{"no name", tarOf(t, good[0], good[1], good[2], regular("manifest.json", `[{"Config":"c.json"}]`)), "has no name"},
		{"no image", tarOf(t, regular("manifest.json", "[]")), "has no images"},
		{"no manifest", tarOf(t, good[0]), "not a file of docker save"},
		{"bad name", tarOf(t, good[0], good[1], good[2], regular("manifest.json", `[{"Config":"c.json","RepoTags":["A\u001b"]}]`)), "reference"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			path := filepath.Join(t.TempDir(), "a.tar")
			if err := os.WriteFile(path, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			images, err := s.Load(t.Context(), path)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) ||
					strings.ContainsFunc(err.Error(), unicode.IsControl) {
					t.Errorf("got error %q, want one with %q in it", err, tt.want)
				}
				wantCounts(t, s, [4]int{})
				return
			}
			if err != nil || fmt.Sprint(images[0].Ref, images[1].Ref) != "a:1b:2" {
				t.Fatalf("got %+v, %v", images, err)
			}
			wantCounts(t, s, [4]int{1, 2, 0, 0})
		})
	}
}
