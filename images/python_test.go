package images

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Images on top of another of our images install the packages of their list, and name the image
// below in one place.
func TestLayeredRecipes(t *testing.T) {
	for name, below := range map[string]string{"python": "base", "python-full": "python"} {
		dockerfile, list := read(t, name+"/Dockerfile"), read(t, name+"/packages")
		if got := find(t, dockerfile, `(?m)^FROM (\S+)$`); got != "sandboxd/"+below+":latest" {
			t.Errorf("%s begins with %s, not with %s", name, got, below)
		}
		for _, want := range []string{"COPY packages ", "sed 's/#.*//' /tmp/packages",
			"--no-install-recommends", "rm -rf /var/lib/apt/lists/* /tmp/packages"} {
			if !strings.Contains(dockerfile, want) {
				t.Errorf("%s/Dockerfile lacks %q", name, want)
			}
		}
		if !strings.Contains(read(t, name+"/build"), `/../layer" `+name+` "$@"`) {
			t.Errorf("%s/build does not run layer", name)
		}
		var names []string
		for line := range strings.Lines(list) {
			line, _, _ = strings.Cut(line, "#")
			names = append(names, strings.Fields(line)...)
		}
		sorted := slices.Compact(slices.Sorted(slices.Values(names)))
		if len(names) == 0 || len(sorted) != len(names) {
			t.Errorf("%s/packages: %d names, %d different ones", name, len(names), len(sorted))
		}
	}
}

// The checksum in the label of a layered image covers every file of its recipe, and the image
// below.
func TestLayerChecksumsTheWholeRecipe(t *testing.T) {
	script := read(t, "layer")
	if got := find(
		t, script, `\(cat (.*) && label "sandboxd/\$below:latest"\)`); got != "../layer ./*" {
		t.Errorf("layer checksums %q", got)
	}
}

// The embedded recipe makes the same image as the source folder.
func TestPythonImage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a container")
	}
	requireEngine(t)
	var out bytes.Buffer
	if err := Build(t.Context(), "", Python, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	const questions = `
		python3 -c 'import numpy, pandas, matplotlib, ipykernel, jupyter_server' || echo "imports fail"
		[ -d /mnt/data ] && [ "$(stat -c %a /mnt/data)" = 1777 ] || echo "no /mnt/data for everybody"
		[ -z "$(find / -xdev -name '*.deb' -print -quit)" ] || echo "packages left in a cache"
		ls /root/.cache/matplotlib/fontlist* >/dev/null || echo "no cache of fonts"
		exit 0`
	if got := docker(t, "run", "--rm", "--network", "none", "--label", "sandboxd.test=images",
		Python, "bash", "-c", questions); got != "" {
		t.Errorf("%s:\n%s", Python, got)
	}
	dir := t.TempDir()
	if err := extract(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "base", "packages")); err != nil {
		t.Errorf("the recipe of the image below is not there: %v", err)
	}
}
