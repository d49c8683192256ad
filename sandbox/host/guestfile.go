package host

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// guestPrefix begins the names of guest programs, which end with the architecture in Go's spelling.
const guestPrefix = "sandboxd-guest-linux-"

// Guests are the guest programs of one sandboxd, by architecture.
type Guests struct {
	dir  string // of sandboxd-guest-linux-ARCH; empty if there is none
	self string // the sandboxd that is the guest itself, if dir is empty
}

// GuestsIn returns the guests in a directory.
func GuestsIn(dir string) Guests { return Guests{dir: dir} }

// GuestsBeside finds the guests that make build and the packages place beside a program. ok is
// false if there are none.
func GuestsBeside(program string) (g Guests, ok bool) {
	if real, err := filepath.EvalSymlinks(program); err == nil {
		program = real
	}
	for _, dir := range []string{".", "../libexec/sandboxd", "../lib/sandboxd"} {
		dir = filepath.Join(filepath.Dir(program), dir)
		if found, _ := filepath.Glob(filepath.Join(dir, guestPrefix+"*")); len(found) > 0 {
			return GuestsIn(dir), true
		}
	}
	return Guests{}, false
}

// GuestItself makes a sandboxd its own guest. A program that needs a dynamic loader is an error: a
// guest runs in images and on machines without its C library.
func GuestItself(sandboxd string) (Guests, error) {
	real, err := filepath.EvalSymlinks(sandboxd)
	if err != nil {
		return Guests{}, err
	}
	return Guests{self: real}, checkStatic(real)
}

// Itself reports whether sandboxd itself is the guest.
func (g Guests) Itself() bool { return g.dir == "" }

// Path returns the guest for an architecture, in Go's spelling.
func (g Guests) Path(arch string) (string, error) {
	if g.Itself() {
		if arch != runtime.GOARCH {
			return "", fmt.Errorf("no guest binary for %s; sandboxd itself is for %s; "+
				"build one with make build, and set guest_dir to its directory", arch,
				runtime.GOARCH)
		}
		return g.self, nil
	}
	path := filepath.Join(g.dir, guestPrefix+arch)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("guest binary for %s: %w; build it with make build", arch, err)
	}
	return path, nil
}

var errDynamic = errors.New("not a static binary")

// checkStatic returns errDynamic for a program that needs a dynamic loader.
func checkStatic(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errDynamic
	}
	return nil
}
