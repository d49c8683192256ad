package workspace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// The plain fields of a devcontainer.json (containers.dev/implementors/json_reference) that mean something here.
type devcontainerFile struct {
	Image           string            `json:"image"`
	ContainerEnv    map[string]string `json:"containerEnv"`
	RemoteUser      string            `json:"remoteUser"`
	WorkspaceFolder string            `json:"workspaceFolder"`
}

// harmless fields are of editors, or say nothing that a sandbox could do.
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
		case key == "image", key == "containerEnv", key == "remoteUser", key == "workspaceFolder", slices.Contains(harmless, key):
		case key == "build", key == "dockerFile", key == "dockerComposeFile":
			return w, wrong("%s: %s: not in this version: build the image and name it as image", name, key)
		default:
			ignored = append(ignored, key)
		}
	}
	if len(ignored) > 0 {
		w.Notes = append(w.Notes, "left out of "+name+": "+strings.Join(ignored, ", "))
	}
	w.Image, w.User = f.Image, f.RemoteUser
	for key, value := range f.ContainerEnv {
		if f.ContainerEnv[key], err = substitute(value, dir); err != nil {
			return w, wrong("%s: containerEnv.%s: %v", name, key, err)
		}
	}
	w.Env = environment(f.ContainerEnv)
	folder, err := substitute(f.WorkspaceFolder, dir)
	switch {
	case err != nil:
		return w, wrong("%s: workspaceFolder: %v", name, err)
	case folder == "":
	case folder == dir || strings.HasPrefix(folder, dir+"/") && path.Clean(folder) == folder:
		w.Workdir = folder
	default:
		w.Notes = append(w.Notes, fmt.Sprintf("%s: workspaceFolder %s: the directory is at its own path, %s", name, folder, dir))
	}
	return w, nil
}

// substitute puts the directory in for its variables. Others are of the machine, or of an editor.
func substitute(s, dir string) (string, error) {
	s = strings.NewReplacer("${localWorkspaceFolder}", dir, "${containerWorkspaceFolder}", dir,
		"${localWorkspaceFolderBasename}", path.Base(dir), "${containerWorkspaceFolderBasename}", path.Base(dir)).Replace(s)
	if _, rest, ok := strings.Cut(s, "${"); ok {
		variable, _, _ := strings.Cut(rest, "}")
		return "", fmt.Errorf("the variable ${%.60s} is not known here", variable)
	}
	return s, nil
}
