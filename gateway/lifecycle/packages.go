package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	packagesWithin = 20 * time.Second // Python imports its library first
	maxPackages    = 1000             // of one kind that are listed
	maxPackageText = 256 << 10        // bytes of the answer
	maxPackageName = 100              // characters
)

// Packages are the installed packages of one package manager. All of it is reported by the sandbox,
// and untrusted.
type Packages struct {
	// Dpkg, apk, rpm, pacman, or python for importable distributions.
	By    string    `json:"by"`
	Count int       `json:"count"`          // as far as reported
	List  []Package `json:"list,omitempty"` // only for python
	Cut   bool      `json:"cut,omitempty"`  // there are more than List has
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// packageScript prints a line "manager=count" for the system's packages, and a line
// python=["name","version"] for each Python distribution. It ignores modules in the current
// directory.
const packageScript = `if command -v dpkg-query >/dev/null; then echo "dpkg=$(dpkg-query -W -f '${db:Status-Abbrev}\n' | grep -c '^.i')"
elif command -v apk >/dev/null; then echo "apk=$(apk info | grep -c .)"
elif command -v rpm >/dev/null; then echo "rpm=$(rpm -qa | grep -c .)"
elif command -v pacman >/dev/null; then echo "pacman=$(pacman -Qq | grep -c .)"
fi 2>/dev/null
command -v python3 >/dev/null && exec python3 -c 'import sys; sys.path = [p for p in sys.path if p]
import importlib.metadata as m, json
for d in sorted(m.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()): print("python=" + json.dumps([d.metadata["Name"], d.version]))' 2>/dev/null
:`

// DescribePackages is Describe with the installed packages of a running sandbox. It runs programs
// there, which takes about a second. If they give no answer, a note says so.
func (sb *Sandbox) DescribePackages(ctx context.Context) (Description, error) {
	reg := sb.reg
	d, err := sb.Describe(ctx)
	if err != nil || d.State != Running {
		return d, err
	}
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	within := cmp.Or(reg.options.packagesWithin, packagesWithin)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
	defer cancel()
	out, err := runInside(ctx, sb, sb.get().Instance, packageScript, maxPackageText)
	d.Packages = parsePackages(string(out))
	last := len(d.Packages) - 1
	switch {
	case len(out) < maxPackageText && err == nil:
	case len(out) < maxPackageText:
		d.Notes = append(d.Notes, "packages unknown or incomplete: "+
			oneLine(reg.Public(sb.Reach(err)).Message, 200))
	case last >= 0 && d.Packages[last].List != nil:
		d.Packages[last].Cut = true
	default:
		d.Notes = append(d.Notes, "packages unknown or incomplete: the output is too long")
	}
	return d, nil
}

// parsePackages parses the output of packageScript. The sandbox may print anything.
func parsePackages(out string) []Packages {
	var system, python *Packages
	for line := range strings.Lines(out) {
		by, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch by {
		case "dpkg", "apk", "rpm", "pacman":
			// Busybox's rpm knows no packages.
			if n, err := strconv.ParseUint(said, 10, 31); err == nil && n > 0 && system == nil {
				system = &Packages{By: by, Count: int(n)} //nolint:gosec // which has 31 bits
			}
		case "python":
			var words []string
			if json.Unmarshal([]byte(said), &words) != nil || len(words) != 2 || words[0] == "" {
				continue
			}
			if python == nil {
				python = &Packages{By: by}
			}
			python.Count++
			if len(python.List) == maxPackages {
				python.Cut = true
				continue
			}
			python.List = append(python.List, Package{Name: oneLine(words[0], maxPackageName),
				Version: oneLine(words[1], maxPackageName)})
		}
	}
	var all []Packages
	for _, p := range []*Packages{system, python} {
		if p != nil {
			all = append(all, *p)
		}
	}
	return all
}
