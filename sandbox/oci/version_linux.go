package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Runtime returns the name and the version of the runtime that sandboxes of this machine get. The
// error says what is missing on this machine, with a hint.
func Runtime(ctx context.Context) (name, version string, err error) {
	if os.Geteuid() != 0 {
		if err := mayEnter(ctx); err != nil {
			return "", "", err
		}
	}
	if os.Geteuid() != 0 || byUser() {
		if err := checkManager(groupsRoot, os.Getenv("XDG_RUNTIME_DIR")); err != nil {
			return "", "", err
		}
	}
	// A unit of systemd has this for the daemon. Programs of sandboxes would inherit it, with the
	// other restrictions of the unit.
	none, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || none != 0 {
		return "", "", sandbox.Hint(errors.New("the daemon runs without new privileges, as in the "+
			"systemd unit sandboxd"), "use the unit sandboxd-oci: docs/how-to/without-docker.md")
	}
	if name, err = new(runtimes).find(""); err != nil {
		return "", "", err
	}
	if _, err := exec.LookPath("apparmor_parser"); err != nil && hasAppArmor() && !byUser() &&
		os.Geteuid() == 0 {
		return "", "", sandbox.Hint(errors.New("this machine has AppArmor, and apparmor_parser is "+
			"not installed"), "install it: apt-get install apparmor")
	}
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("%s --version: %w", name, err)
	}
	// As "runc version 1.1.5+ds1".
	line, _, _ := strings.Cut(string(out), "\n")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", "", fmt.Errorf("%s --version: it printed nothing", name)
	}
	return name, text.Line(fields[len(fields)-1], 40), nil
}
