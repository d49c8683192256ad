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
	packagesWithin = 20 * time.Second // Python imports its own library first
	maxPackages    = 1000             // of one kind that are named
	maxPackageText = 256 << 10        // bytes of answer
	maxPackageName = 100              // characters
)

// Packages are what is installed in a sandbox by one means. All of it is what the sandbox says.
type Packages struct {
	By    string    `json:"by"`             // dpkg, apk, rpm, pacman; or python, for what code can import something of
	Count int       `json:"count"`          // as far as it answered
	List  []Package `json:"list,omitempty"` // of python alone: systems have hundreds that nobody asks for
	Cut   bool      `json:"cut,omitempty"`  // there are more than List has
}

// Package is one of them.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// packageScript prints a line "manager=count" for the system's packages, and a line
// python=["name","version"] for each distribution of Python's. Modules are not those of the
// directory that it runs in.
const packageScript = `if command -v dpkg-query >/dev/null; then echo "dpkg=$(dpkg-query -W -f '${db:Status-Abbrev}\n' | grep -c '^.i')"
elif command -v apk >/dev/null; then echo "apk=$(apk info | grep -c .)"
elif command -v rpm >/dev/null; then echo "rpm=$(rpm -qa | grep -c .)"
elif command -v pacman >/dev/null; then echo "pacman=$(pacman -Qq | grep -c .)"
fi 2>/dev/null
command -v python3 >/dev/null && exec python3 -c 'import sys; sys.path = [p for p in sys.path if p]
import importlib.metadata as m, json
for d in sorted(m.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()): print("python=" + json.dumps([d.metadata["Name"], d.version]))' 2>/dev/null
:`

// DescribePackages is Describe with the packages of a sandbox that runs, which takes a second:
// programs are started in it. One that does not answer is
// described without them, and a note says so.
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
		d.Notes = append(d.Notes, "its packages are not known, or not all: "+oneLine(reg.Public(sb.Reach(err)).Message, 200))
	case last >= 0 && d.Packages[last].List != nil:
		d.Packages[last].Cut = true
	default:
		d.Notes = append(d.Notes, "its packages are not known, or not all: its programs say more than is read")
	}
	return d, nil
}

// parsePackages reads what packageScript printed, or whatever the sandbox did instead.
func parsePackages(out string) []Packages {
	var system, python *Packages
	for line := range strings.Lines(out) {
		by, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch by {
		case "dpkg", "apk", "rpm", "pacman":
			if n, err := strconv.ParseUint(said, 10, 31); err == nil && n > 0 && system == nil { // busybox has an rpm, for no packages
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
			python.List = append(python.List, Package{Name: oneLine(words[0], maxPackageName), Version: oneLine(words[1], maxPackageName)})
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
