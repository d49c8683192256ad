package dockerfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// fake makes no sandboxes: it notes which layers a build wants.
type fake struct {
	configs map[string]sandbox.ImageConfig // of images, by name
	made    map[string]string              // names of layers, by what is below and their key
	layers  []string                       // that were made, in short
	last    sandbox.ImageConfig            // of the last layer that has one
	starts  []Start
}

// newFake has the images base, other, and trap, which has a trigger.
func newFake() *fake {
	f := &fake{configs: make(map[string]sandbox.ImageConfig), made: make(map[string]string)}
	base := sandbox.ImageConfig{}
	base.Env, base.Cmd, base.User = []string{"PATH=/bin", "A=base"}, []string{"sh"}, "root"
	trap := sandbox.ImageConfig{}
	trap.OnBuild = []string{"ADD http://169.254.169.254/ /x"}
	later := base
	later.OnBuild = []string{"COPY a /later", "RUN $A later"}
	many := base
	many.OnBuild = slices.Repeat([]string{"RUN true"}, maxSteps+1)
	ash := sandbox.ImageConfig{}
	ash.Shell = []string{"/bin/ash", "-c"}
	ours := base
	ours.Labels = map[string]string{"sandboxd.recipe": "x"}
	f.configs = map[string]sandbox.ImageConfig{"base": base,
		"ours": ours, "other": base, "trap": trap,
		"later": later, "ash": ash, "many": many, emptyImage: {}}
	return f
}

func (f *fake) Image(_ context.Context, ref string) (sandbox.Image, error) {
	config, ok := f.configs[ref]
	if strings.HasPrefix(ref, "layer") {
		return sandbox.Image{ID: ref}, nil
	}
	if !ok {
		return sandbox.Image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	return sandbox.Image{ID: "id of " + ref, Config: config}, nil
}

func (f *fake) Find(_ context.Context, s Start, l sandbox.Layer) (string, error) {
	return f.made[s.Image+l.Key], nil
}

func (f *fake) Make(_ context.Context, s Start, l sandbox.Layer, _ Do) (string, error) {
	f.starts = append(f.starts, s)
	name := fmt.Sprint("layer", len(f.made))
	f.made[s.Image+l.Key] = name
	var run struct {
		Run    []string
		Mounts []copying
		User   string
		Config string
	}
	var copies []copying
	what := "?"
	switch {
	case json.Unmarshal([]byte(l.Key), &copies) == nil:
		what = "copy"
		for _, c := range copies {
			what += " " + c.Source + ">" + c.Dest
			if c.Owner != "" {
				what += " of " + c.Owner
			}
			if c.From != "" {
				what += " from " + c.From
			}
		}
	case json.Unmarshal([]byte(l.Key), &run) == nil && run.Run != nil:
		what = "run " + strings.Join(run.Run, "|")
		for _, m := range run.Mounts {
			what += " with " + string(m.Mount) + " " + m.From + " " + m.Source + ">" + m.Dest
		}
	case run.Config != "":
		what = "config"
	}
	if l.Config != nil {
		f.last = *l.Config
	}
	f.layers = append(f.layers, s.Image+": "+what)
	return name, nil
}

func (f *fake) Visit(context.Context, Start, Do) error { return nil }

// directory makes and opens a directory with files.
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

func TestLayers(t *testing.T) {
	for name, tt := range map[string]struct {
		in   string
		want []string
	}{
		"a label of ours": {"FROM ours\n", nil},
		"nothing to do":   {"FROM base\n", nil},
		"a step":          {"FROM base\nRUN make \\\n  # why\n  all\n", []string{"base: run /bin/sh|-c|make   all"}},
		"no shell":        {"FROM base\nRUN [\"a\", \"b c\"]\n", []string{"base: run a|b c"}},
		"configuration":   {"FROM base\nCMD x\n", []string{"base: config"}},
		"copies before a step make one layer": {"FROM base\nWORKDIR /w\nCOPY a b/\nENV B=1\nADD a /x\nRUN one\nCOPY a .\n",
			[]string{"base: copy >/w of root a>/w/b a>/x", "layer0: run /bin/sh|-c|one",
				"layer1: copy a>/w", "layer2: config"}},
		"stages": {"FROM base AS One\nRUN one\nFROM other AS unused\nRUN no\nFROM scratch\nCOPY --from=one /a /b\nCOPY --from=0 /c /d\n",
			[]string{"base: run /bin/sh|-c|one", emptyImage + ": copy /a>/b from layer0 /c>/d from layer0"}},
		"stage on a stage": {"FROM base AS one\nRUN one\nUSER u\nFROM ONE\nWORKDIR /w\n",
			[]string{"base: run /bin/sh|-c|one", "layer0: copy >/w of u", "layer1: config"}},
		"mounts": {"FROM base AS b\nRUN one\nFROM base\nARG D=/d\nWORKDIR /w\n" +
			"RUN --mount=type=cache,target=$D/long,id=x,sharing=locked --mount=source=a,target=a --mount=from=b,target=/b --mount=type=tmpfs,target=/t x\n",
			[]string{"base: run /bin/sh|-c|one", "base: copy >/w of root",
				"layer1: run /bin/sh|-c|x with bind layer0 >/b with tmpfs  >/t with bind  a>/w/a with cache  >/d/long", "layer2: config"}},
		"a mount of a pattern": {"FROM base\nRUN --mount=source=[id],target=/x x\n",
			[]string{"base: run /bin/sh|-c|x with bind  \\[id]>/x"}},
		"copy of an image":   {"FROM base\nCOPY --chown=1 --from=other /a /b\n", []string{"base: copy /a>/b of 1 from id of other"}},
		"arguments of FROM":  {"ARG B=no\nARG T=oth${B}\nFROM $T\nRUN x\n", []string{"other: run /bin/sh|-c|x"}},
		"a here-document":    {"FROM base\nRUN <<EOF\necho \"a\"\n\techo $B \\\n\nEOF\nRUN x\n", []string{"base: run /bin/sh|-c|echo \"a\"\n\techo $B \\\n\n", "layer0: run /bin/sh|-c|x"}},
		"without tabs":       {"FROM base\nRUN <<-E\n\techo a\n\tE\n", []string{"base: run /bin/sh|-c|echo a\n"}},
		"for a program":      {"FROM base\nRUN python3 - <<'A' && cat <<B\nprint(1)\nA\nb\nB\n", []string{"base: run /bin/sh|-c|python3 - <<'A' && cat <<B\nprint(1)\nA\nb\nB"}},
		"shells":             {"FROM base\nSHELL [\"bash\", \"-ec\"]\nRUN a\n", []string{"base: run bash|-ec|a", "layer0: config"}},
		"shell of the image": {"FROM ash\nRUN a\n", []string{"ash: run /bin/ash|-c|a"}},
		"escape":             {"# escape=`\nFROM base\nRUN a `\n  \\b\n", []string{"base: run /bin/sh|-c|a   \\b"}},
		"platform":           {"FROM --platform=$BUILDPLATFORM base\nRUN a\n", []string{"base: run /bin/sh|-c|a"}},
		"triggers":           {"FROM later\nRUN x\n", []string{"later: copy a>/later", "layer0: run /bin/sh|-c|$A later", "layer1: run /bin/sh|-c|x", "layer2: config"}},
		"arguments of a stage": {"FROM base AS one\nARG V=1\nFROM one\nCOPY a /$V\n",
			[]string{"base: copy a>/1"}},
		"arguments of arguments": {"FROM base\nARG V=1 W=$V\nCOPY a /$W\n",
			[]string{"base: copy a>/1"}},
		"an argument without a value": {"ARG V\nFROM base\nARG V\nCOPY a /${V-none}\n",
			[]string{"base: copy a>/none"}},
		"a directory": {"FROM base\nCOPY a /d/.\n", []string{"base: copy a>/d"}},
		"an unknown platform, not needed": {"FROM --platform=linux/s390x base\nFROM base\nRUN a\n",
			[]string{"base: run /bin/sh|-c|a"}},
		"a variant": {"FROM --platform=linux/amd64/v2 base\nRUN a\n",
			[]string{"base: run /bin/sh|-c|a"}},
		"expanded":          {"FROM base\nENV D=/d\nCOPY a $D/${A:-no}\n", []string{"base: copy a>/d/base", "layer0: config"}},
		"files in the text": {"FROM base\nCOPY <<one <<two /d/\n1\none\n2\ntwo\n", []string{"base: copy one>/d two>/d"}},
	} {
		f := newFake()
		r := request(t, tt.in, map[string]string{"a": "1", "[id]": "2"})
		r.Args = []string{"B=er"}
		image, err := Build(t.Context(), r, f)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, f.layers); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		made := len(f.layers)
		again, err := Build(t.Context(), r, f)
		if err != nil || again != image || len(f.layers) != made {
			t.Errorf("%s: again: got %q, %v and layers %q; want %q", name, again, err,
				f.layers[made:], image)
		}
	}
}

// A change of a file, an argument or a variable repeats the steps that can see it.
func TestWhatStepsSee(t *testing.T) {
	const text = "FROM base\nARG V\nRUN first\nCOPY a /\nRUN --mount=source=c,target=/c second\nENV E=$W\nARG W\n"
	for name, tt := range map[string]struct {
		change func(r *Request)
		want   int // layers that are made again
	}{
		"nothing":              {func(*Request) {}, 0},
		"a file":               {func(r *Request) { r.Context = directory(t, map[string]string{"a": "2", "c": "1"}) }, 3},
		"a file of a mount":    {func(r *Request) { r.Context = directory(t, map[string]string{"a": "1", "c": "2"}) }, 2},
		"another file":         {func(r *Request) { r.Context = directory(t, map[string]string{"a": "1", "b": "2", "c": "1"}) }, 0},
		"an argument":          {func(r *Request) { r.Args = []string{"V=2"} }, 4},
		"an argument too late": {func(r *Request) { r.Args = []string{"V=1", "W=2"} }, 0},
		"a later instruction":  {func(r *Request) { r.Dockerfile = []byte(text + "CMD x\n") }, 1},
	} {
		f := newFake()
		r := request(t, text, map[string]string{"a": "1", "c": "1"})
		r.Args = []string{"V=1"}
		if _, err := Build(t.Context(), r, f); err != nil {
			t.Fatal(err)
		}
		before := len(f.layers)
		tt.change(&r)
		if _, err := Build(t.Context(), r, f); err != nil {
			t.Fatal(err)
		}
		if got := len(f.layers) - before; got != tt.want {
			t.Errorf("%s: made %q, want %d", name, f.layers[before:], tt.want)
		}
	}
}

func TestConfiguration(t *testing.T) {
	f := newFake()
	r := request(t, `ARG TOP=top
FROM base
ARG TOP
ARG OTHER=other
ARG GIVEN=no
ENV ONE=$TOP TWO="$OTHER $GIVEN" A=mine
LABEL a=b c="$A"
USER dev:staff
WORKDIR /w
WORKDIR sub
EXPOSE 80 53/udp
VOLUME /v
STOPSIGNAL SIGINT
HEALTHCHECK CMD true
ONBUILD RUN x
ONBUILD RUN <<E
y
E
MAINTAINER nobody
CMD ["run", "$A"]
ENTRYPOINT serve $A
RUN env
`, nil)
	r.Args = []string{"GIVEN=given", "https_proxy=p"}
	if _, err := Build(t.Context(), r, f); err != nil {
		t.Fatal(err)
	}
	want := sandbox.ImageConfig{}
	want.Env = []string{"PATH=/bin", "ONE=top", "TWO=other given", "A=mine"}
	want.Labels = map[string]string{"a": "b", "c": "mine"}
	want.User, want.WorkingDir, want.StopSignal = "dev:staff", "/w/sub", "SIGINT"
	want.ExposedPorts = map[string]struct{}{"80/tcp": {}, "53/udp": {}}
	want.Volumes = map[string]struct{}{"/v": {}}
	want.OnBuild = []string{"RUN x", "RUN <<E\ny\nE"}
	want.Cmd = []string{"run", "$A"}
	want.Entrypoint = []string{"/bin/sh", "-c", "serve $A"}
	got := f.last
	if h := got.Healthcheck; h == nil || !slices.Equal(h.Test, []string{"CMD-SHELL", "true"}) {
		t.Errorf("health check: %+v", h)
	}
	got.Healthcheck = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	var env []string
	for _, s := range f.starts {
		if s.Env != nil {
			env = s.Env
		}
	}
	if want := []string{"A=mine", "GIVEN=given", "ONE=top", "OTHER=other", "PATH=/bin", "TOP=top",
		"TWO=other given", "https_proxy=p"}; !slices.Equal(env, want) {
		t.Errorf("variables of the step: got %q, want %q", env, want)
	}
}

// Instructions that need no work are shown only when a later one does.
func TestProgress(t *testing.T) {
	var lines []string
	f := newFake()
	build := func(text string) []string {
		lines = nil
		r := request(t, text, nil)
		r.Progress = func(line string) { lines = append(lines, line) }
		if _, err := Build(t.Context(), r, f); err != nil {
			t.Fatal(err)
		}
		return lines
	}
	want := []string{"building the image of Dockerfile", "[1/2] Dockerfile:1: FROM base",
		"[2/2] Dockerfile:2: RUN a"}
	if got := build("FROM base\nRUN a"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := build("FROM base\nRUN a"),
		[]string{"found the image of Dockerfile"}; !slices.Equal(got, want) {
		t.Errorf("again: got %q, want %q", got, want)
	}
}

// An error of a caller's part is returned as it is.
func TestErrors(t *testing.T) {
	f := newFake()
	if _, err := Build(t.Context(), request(t, "FROM nothing", nil), f); !errors.Is(err,
		sandbox.ErrNoImage) {
		t.Errorf("got %v, want %v", err, sandbox.ErrNoImage)
	}
	r := request(t, "FROM base AS a\nFROM base", nil)
	r.Target = "b"
	if _, err := Build(t.Context(), r, f); err == nil || !strings.Contains(err.Error(),
		"Dockerfile: no stage b") {
		t.Errorf("got %v, want an error about the stage", err)
	}
}
