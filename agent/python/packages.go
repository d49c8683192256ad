package python

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Package is an installed Python package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

const (
	maxPackages = 1000
	maxListed   = 256 << 10 // bytes
)

// lister prints a line of JSON for each distribution. It ignores modules in its working directory.
const lister = `import sys; sys.path = [p for p in sys.path if p]
import importlib.metadata as m, json
for d in sorted(m.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()): print(json.dumps({"name": d.metadata["Name"], "version": d.version}))`

// Packages returns the installed Python packages, sorted by name, at most 1,000.
func (in *Interpreter) Packages(ctx context.Context) ([]Package, error) {
	out := &text.Head{Limit: maxListed}
	exit, err := in.exec(
		ctx,
		"listing its packages",
		agent.Cmd{Command: "exec python3 -", Stdin: strings.NewReader(lister), Stdout: out},
	)
	if err != nil {
		return nil, err
	}
	if exit.Code != 0 {
		return nil, fmt.Errorf(
			"packages of %s: python3 ended with %d",
			in.client.Sandbox(),
			exit.Code,
		)
	}
	list := []Package{}
	for line := range strings.Lines(out.String()) {
		var p Package
		if json.Unmarshal([]byte(line), &p) == nil && p.Name != "" && len(list) < maxPackages {
			list = append(list, Package{Name: short(p.Name), Version: short(p.Version)})
		}
	}
	return list, nil
}
