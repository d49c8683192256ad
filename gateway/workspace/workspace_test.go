package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// read makes a directory with files and reads it.
func read(t *testing.T, files map[string]string) (Workspace, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w, err := Read(root, dir)
	return w, dir, err
}

func TestRead(t *testing.T) {
	ours :=
		"# ours\nimage: busybox\nnetwork: none\nlimits: {memory: 512m, cpus: 0.5, pids: 100, " +
			"disk: 2g}\nttl: 30m\nallow: [example.com, '*.example.org:443']\nuser: '1000'\nsudo: " +
			"true\nentrypoint: false\n" +
			"workdir: /tmp\nenv:\n  B: two words\n  A: 1\n"
	theirs :=
		"{ // comment\n\"name\": \"x\", \"image\": \"debian\", \"containerEnv\": {\"HERE\": " +
			"\"${localWorkspaceFolder}/x\",},\n" +
			"\"remoteUser\": \"dev\", \"workspaceFolder\": \"${containerWorkspaceFolder}\", " +
			"\"features\": {}, \"postCreateCommand\": \"make\", /* end */ }"
	for name, tt := range map[string]struct {
		files map[string]string
		want  func(dir string) Workspace
	}{
		"nothing": {nil, func(string) Workspace { return Workspace{} }},
		"empty":   {map[string]string{File: "# nothing yet\n"}, func(string) Workspace { return Workspace{File: File} }},
		"ours wins": {map[string]string{File: ours, devcontainer: theirs}, func(string) Workspace {
			return Workspace{File: File, Image: "busybox", Network: sandbox.NetworkNone,
				Limits: sandbox.Limits{Memory: 512 << 20, CPUs: 0.5, PIDs: 100, Disk: 2 << 30},
				Allow:  []string{"example.com", "*.example.org:443"}, TTL: 30 * time.Minute,
				User: "1000", Sudo: true, Entrypoint: sandbox.EntrypointOff, Workdir: "/tmp",
				Env: []string{"A=1", "B=two words"}}
		}},
		"devcontainer": {map[string]string{devcontainer: theirs}, func(dir string) Workspace {
			return Workspace{File: devcontainer, Image: "debian", User: "dev", Workdir: dir,
				Env:   []string{"HERE=" + dir + "/x"},
				Setup: []string{"make"},
				Notes: []string{"ignored in " + devcontainer + ": features"}}
		}},
		"built": {map[string]string{File: "dockerfile: docker/Dockerfile\nsetup: |\n  make " +
			"deps\n  make\n", "docker/Dockerfile": "FROM x"}, func(string) Workspace {
			return Workspace{File: File, Build: &Build{Dockerfile: "docker/Dockerfile",
				Context: "."}, Setup: []string{"make deps\nmake"}}
		}},
		"built in detail": {map[string]string{File: "dockerfile: {path: D, context: ./sub/, " +
			"args: {B: 2, A: 1}, target: t}\nsetup: [a, '', b]\n"}, func(string) Workspace {
			return Workspace{File: File, Build: &Build{Dockerfile: "D", Context: "sub",
				Args: []string{"A=1", "B=2"}, Target: "t"}, Setup: []string{"a", "b"}}
		}},
		"built by devcontainer": {map[string]string{devcontainer: `{"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"D": "${localWorkspaceFolder}"}, "cacheFrom": "x"},
			"postCreateCommand": ["sh", "-c", "echo ${X} ${containerWorkspaceFolder}"]}`}, func(dir string) Workspace {
			return Workspace{File: devcontainer,
				Build: &Build{Dockerfile: ".devcontainer/Dockerfile", Context: ".",
					Args: []string{"D=" + dir}},
				Setup: []string{"sh -c 'echo ${X} " + dir + "'"},
				Notes: []string{"ignored in " + devcontainer + ": build.cacheFrom"}}
		}},
		"built as of old": {map[string]string{".devcontainer.json": `{"dockerFile": "D", "context": "sub", "postCreateCommand": ""}`}, func(string) Workspace {
			return Workspace{File: ".devcontainer.json",
				Build: &Build{Dockerfile: "D", Context: "sub"}}
		}},
		"folder elsewhere": {map[string]string{".devcontainer.json": `{"workspaceFolder": "/workspaces/x"}`}, func(dir string) Workspace {
			return Workspace{File: ".devcontainer.json",
				Notes: []string{".devcontainer.json: workspaceFolder /workspaces/x: the " +
					"directory has the same path as on this machine, " + dir}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, dir, err := read(t, tt.files)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Recipe == "") != (got.File == "") {
				t.Errorf("recipe %q of file %q", got.Recipe, got.File)
			}
			got.Recipe = ""
			if diff := cmp.Diff(tt.want(dir), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadWrong(t *testing.T) {
	for text, want := range map[string]string{
		"imge: x":                   `.sandboxd.yaml:1: unknown key "imge"; known keys: image, `,
		"image: x\nimage: y":        ".sandboxd.yaml:2: image is given twice",
		"image: [x]":                ".sandboxd.yaml:1: image must be a single value",
		"image: {a: b":              ".sandboxd.yaml: line 1",
		"- x":                       ".sandboxd.yaml:1: the document must be a mapping",
		"just text":                 ".sandboxd.yaml:1: the document must be a mapping",
		"image: x\n---\nimage: y":   "more than one document",
		"network: lan":              `:1: network "lan": must be none`,
		"network: bridge":           "a file in a directory may not set it",
		"limits:\n  memory: much":   `:2: limits.memory "much" must be a size`,
		"limits:\n  cpus: .nan":     `:2: limits.cpus ".nan" must be a number above 0`,
		"limits:\n  pids: -1":       `:2: limits.pids "-1" must be a number above 0`,
		"limits:\n  ram: 1":         `:2: unknown key limits."ram"`,
		"allow: example.com":        ":1: allow must be a list of names",
		"allow: [10.0.0.1]":         `:1: allow "10.0.0.1": a file in a directory may allow only names`,
		"allow:\n- 10.0.0.0/8":      `:2: allow "10.0.0.0/8": a file in a directory may allow only names`,
		"allow: [\"[::1]:80\"]":     `a file in a directory may allow only names`,
		"allow: [127.0.0.1:22]":     `a file in a directory may allow only names`,
		"allow: [\"::1\"]":          `a file in a directory may allow only names`,
		"limits:\n  disk: big":      `:2: limits.disk "big" must be a size`,
		"ttl: soon":                 `:1: ttl "soon": must be a time above 0`,
		"sudo: perhaps":             `:1: sudo: "perhaps" must be true or false`,
		"setup: {a: b}":             ":1: setup must be a single value",
		"setup: [a, [b]]":           ":1: setup must be a single value",
		"ports: [80]":               ":1: ports is not supported",
		"dockerfile: [x]":           ":1: dockerfile must be a single value",
		"dockerfile: ../x":          `"../x" is not in the directory`,
		"dockerfile: /etc/x":        `"/etc/x" is not in the directory`,
		"dockerfile: {file: x}":     `:1: unknown key dockerfile."file"`,
		"dockerfile: {context: ..}": `".." is not in the directory`,
		"dockerfile: {args: [x]}":   "dockerfile.args must be a mapping",
		"image: x\ndockerfile: y":   "image and Dockerfile are mutually exclusive",
		"env: &a {x: *a}":           ".sandboxd.yaml",
		"env: [A=1]":                ":1: env must be a mapping",
		"workdir: here":             `"here" is not a clean absolute path`,
		"image: \"\\0\"":            "contains a NUL byte",
		strings.Repeat("#", 70_000): "is longer than 65536 bytes",
		"a: &x [1]\nb: [*x,*x]":     "unknown key",
		"image: \xff\xfe":           ".sandboxd.yaml",
		"? {a: b}\n: c":             "a key must be a plain word",
	} {
		_, _, err := read(t, map[string]string{File: text})
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || e.Code != wire.CodeUsage && e.Code != wire.CodeDenied ||
			!strings.Contains(e.Message, want) {
			t.Errorf("%.40q: got error %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"{":                                    "devcontainer.json: line 1",
		"[]":                                   "devcontainer.json",
		`{"image": 1}`:                         "image",
		`{"dockerComposeFile": "x"}`:           "dockerComposeFile is not supported",
		`{"build": {"context": "."}}`:          "build has no dockerfile",
		`{"build": "Dockerfile"}`:              "cannot unmarshal",
		`{"build": {"dockerfile": "../../x"}}`: `"../x" is not in the directory`,
		`{"build": {"dockerfile": "x", "args": {"T": "${localEnv:T}"}}}`: "build.args.T: the variable ${localEnv:T} is not supported",
		`{"postCreateCommand": {"a": "b"}}`: "parallel commands are " +
			"not supported",
		`{"postCreateCommand": "x ${localEnv:HOME}"}`: "the variable ${localEnv:…} is not supported",
		`{"containerEnv": {"A": "${localEnv:HOME}"}}`: "containerEnv.A: the " +
			"variable ${localEnv:HOME} is not supported",
	} {
		_, _, err := read(t, map[string]string{devcontainer: text})
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.CodeUsage ||
			!strings.Contains(e.Message, want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
}

func TestName(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	for dir, want := range map[string]string{"/home/u/My Project!": "my-project-", "/": "dir-",
		"/x/ÄÖ": "dir-", "/x/--": "dir-", "/x/.git": "git-",
		"/" + strings.Repeat("a", 200): strings.Repeat("a", 40) + "-"} {
		if got := Name(dir); !strings.HasPrefix(got, want) || !valid.MatchString(got) ||
			len(got) != len(want)+8 {
			t.Errorf("%s: got %s, want %s and a checksum", dir, got, want)
		}
	}
	if Name("/a/x") == Name("/b/x") {
		t.Error("two directories have one name")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"image: x\nlimits: {cpus: 1}", "{\"image\": \"x\", // y\n}",
		"a: &a [*a]", "env: {A: 1}", "---\n---"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parseYAML(File, text, "/d")
		_, _ = parseDevcontainer(devcontainer, text, "/d")
	})
}
