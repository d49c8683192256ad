package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/guest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// guestPrefix begins the names of the guest's files below dir, one for each architecture.
const guestPrefix = "sandboxd-guest-linux-"

// runsAsGuest reports whether this process is the guest of a sandbox, and with which arguments.
// It is where sandboxd itself was mounted into a container or copied to a host, as guest-SUM;
// then the children of that guest are named guest.Name; and as sandboxd guest.
func runsAsGuest(args []string) (guestArgs []string, ok bool) {
	name := filepath.Base(args[0])
	switch {
	case name == guest.Name, strings.HasPrefix(name, "guest-"):
		return args, true
	case len(args) > 1 && args[1] == "guest":
		return slices.Concat([]string{guest.Name}, args[2:]), true
	}
	return nil, false
}

// guests are the guest programs that sandboxes and hosts get.
type guests struct {
	dir  string // of sandboxd-guest-linux-ARCH; empty where there is none
	self string // the program that is the guest then: this one
}

// findGuests looks for guests in the directory that is configured, else where an installed or a
// built sandboxd has them. Where there are none this program is the guest, if it is static: it has
// to run in images without a C library.
func findGuests(configured string) (guests, error) {
	if configured != "" {
		return guests{dir: configured}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return guests{}, fmt.Errorf("guest binaries: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	here := filepath.Dir(self)
	for _, dir := range []string{".", "../libexec/sandboxd", "../lib/sandboxd"} {
		dir = filepath.Join(here, dir)
		if found, _ := filepath.Glob(filepath.Join(dir, guestPrefix+"*")); len(found) > 0 {
			return guests{dir: dir}, nil
		}
	}
	if err := checkStatic(self); err != nil {
		return guests{}, &wire.Error{
			Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("there are no guest binaries beside %s, which cannot be the guest: %v",
				self, err),
			Hint: "build a static one: CGO_ENABLED=0 go install " +
				"github.com/sandboxd/sandboxd/cmd/sandboxd@latest; " +
				"or build guests with make build, and name their directory: guest_dir",
		}
	}
	return guests{self: self}, nil
}

// path returns the guest for an architecture, in the words of Go.
func (g guests) path(arch string) (string, error) {
	if g.dir == "" {
		if arch != runtime.GOARCH {
			return "", fmt.Errorf("there is no guest binary for %s, and sandboxd itself is of %s; "+
				"build one with make build, and name its directory: guest_dir", arch, runtime.GOARCH)
		}
		return g.self, nil
	}
	path := filepath.Join(g.dir, guestPrefix+arch)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("guest binary for %s: %w; build it with make build", arch, err)
	}
	return path, nil
}

var errDynamic = errors.New("it is not static")

// checkStatic returns errDynamic for a program that a dynamic loader has to load.
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
