package workspace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// The supported fields of a devcontainer.json (containers.dev/implementors/json_reference).
type devcontainerFile struct {
	Image           string             `json:"image"`
	ContainerEnv    map[string]string  `json:"containerEnv"`
	RemoteUser      string             `json:"remoteUser"`
	WorkspaceFolder string             `json:"workspaceFolder"`
	Build           *devcontainerBuild `json:"build"`
	DockerFile      string             `json:"dockerFile"` // the older form of build
	Context         string             `json:"context"`
	PostCreate      json.RawMessage    `json:"postCreateCommand"`
}

type devcontainerBuild struct {
	Dockerfile string            `json:"dockerfile"`
	Context    string            `json:"context"`
	Args       map[string]string `json:"args"`
	Target     string            `json:"target"`
}

// Supported fields, and those of build.
var (
	plainFields = []string{"image", "containerEnv", "remoteUser", "workspaceFolder", "build",
		"dockerFile", "context", "postCreateCommand"}
	buildFields = []string{"dockerfile", "context", "args", "target"}
)

// harmless fields are for editors, or have no effect on a sandbox.
var harmless = []string{"$schema", "name", "customizations"}

func parseDevcontainer(name string, text []byte, dir string) (Workspace, error) {
	var w Workspace
	plain, err := hujson.Standardize(text)
	if err != nil {
		return w, wrong("%s: %s", name, strings.TrimPrefix(err.Error(), "hujson: "))
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(plain, &fields); err != nil {
		return w, wrong("%s: %v", name, err)
	}
	var f devcontainerFile
	if err := json.NewDecoder(bytes.NewReader(plain)).Decode(&f); err != nil {
		return w, wrong("%s: %v", name, err)
	}
	var ignored []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case slices.Contains(plainFields, key), slices.Contains(harmless, key):
		case key == "dockerComposeFile":
			return w, wrong("%s: %s is not supported: set an image or a Dockerfile", name, key)
		default:
			ignored = append(ignored, key)
		}
	}
	if len(ignored) > 0 {
		w.Notes = append(w.Notes, "ignored in "+name+": "+strings.Join(ignored, ", "))
	}
	w.Image, w.User = f.Image, f.RemoteUser
	for key, value := range f.ContainerEnv {
		if f.ContainerEnv[key], err = substitute(value, dir); err != nil {
			return w, wrong("%s: containerEnv.%s: %v", name, key, err)
		}
	}
	w.Env = environment(f.ContainerEnv)
	if err := f.setBuild(&w, name, dir, fields["build"]); err != nil {
		return w, err
	}
	if w.Setup, err = f.setup(dir); err != nil {
		return w, wrong("%s: postCreateCommand: %v", name, err)
	}
	folder, err := substitute(f.WorkspaceFolder, dir)
	switch {
	case err != nil:
		return w, wrong("%s: workspaceFolder: %v", name, err)
	case folder == "":
	case folder == dir || strings.HasPrefix(folder, dir+"/") && path.Clean(folder) == folder:
		w.Workdir = folder
	default:
		w.Notes = append(w.Notes, fmt.Sprintf(
			"%s: workspaceFolder %s: the directory has the same path as on this machine, %s", name,
			folder, dir))
	}
	return w, nil
}

// setBuild reads which Dockerfile makes the image. Its paths are relative to the file.
func (f devcontainerFile) setBuild(w *Workspace, name, dir string, said json.RawMessage) error {
	b := f.Build
	if f.DockerFile != "" && b == nil {
		b = &devcontainerBuild{Dockerfile: f.DockerFile, Context: f.Context}
	}
	if b == nil {
		return nil
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(said, &fields) // an object, or invalid before
	var ignored []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(buildFields, key) {
			ignored = append(ignored, "build."+key)
		}
	}
	if len(ignored) > 0 {
		w.Notes = append(w.Notes, "ignored in "+name+": "+strings.Join(ignored, ", "))
	}
	if b.Dockerfile == "" {
		return wrong("%s: build has no dockerfile", name)
	}
	for key, value := range b.Args {
		var err error
		if b.Args[key], err = substitute(value, dir); err != nil {
			return wrong("%s: build.args.%s: %v", name, key, err)
		}
	}
	at := path.Dir(name)
	w.Build = &Build{Dockerfile: path.Join(at, b.Dockerfile), Context: path.Join(at, b.Context),
		Args: environment(b.Args), Target: b.Target}
	return nil
}

// setup returns the command to run in a new sandbox: one for a shell, or a program with its
// arguments.
func (f devcontainerFile) setup(dir string) ([]string, error) {
	var command string
	var argv []string
	switch {
	case len(f.PostCreate) == 0 || string(f.PostCreate) == "null":
		return nil, nil
	case json.Unmarshal(f.PostCreate, &command) == nil:
	case json.Unmarshal(f.PostCreate, &argv) == nil:
		command = text.Quote(argv...)
	default:
		return nil,
			errors.New("must be a command or a list of words; parallel commands are not supported")
	}
	if strings.TrimSpace(command) == "" {
		return nil, nil
	}
	for _, theirs := range []string{"${localEnv:", "${containerEnv:", "${devcontainerId"} {
		if strings.Contains(command, theirs) {
			return nil, fmt.Errorf("the variable %s…} is not supported", theirs)
		}
	}
	return []string{folders(command, dir)}, nil // the shell expands the rest of ${}
}

// substitute replaces the variables of the directory. Other variables belong to the machine, or to
// an editor.
func substitute(s, dir string) (string, error) {
	s = folders(s, dir)
	if _, rest, ok := strings.Cut(s, "${"); ok {
		variable, _, _ := strings.Cut(rest, "}")
		return "", fmt.Errorf("the variable ${%.60s} is not supported", variable)
	}
	return s, nil
}

// folders replaces the variables of the directory.
func folders(s, dir string) string {
	return strings.NewReplacer("${localWorkspaceFolder}", dir, "${containerWorkspaceFolder}", dir,
		"${localWorkspaceFolderBasename}", path.Base(dir), "${containerWorkspaceFolderBasename}",
		path.Base(dir)).Replace(s)
}
