package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/moby/profiles/apparmor"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// profile is the name of the AppArmor profile of containers, whose rules are those of Docker's
// default.
const profile = "sandboxd-default"

// confine returns the AppArmor profile that a container gets. The first call loads it, and replaces
// that of an older daemon. It is empty on a machine without AppArmor, and for a daemon of an
// ordinary user, who may not load one.
func (r *runtimes) confine() (string, error) {
	if r.byUser || !hasAppArmor() {
		return "", nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded {
		if err := apparmor.InstallDefault(profile); err != nil {
			return "", sandbox.Hint(fmt.Errorf("AppArmor profile %s: %w", profile, err),
				"install apparmor_parser, if it is missing: apt-get install apparmor")
		}
		r.loaded = true
	}
	return profile, nil
}

// hasAppArmor reports whether the kernel uses AppArmor.
func hasAppArmor() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && bytes.HasPrefix(on, []byte("Y"))
}

// checkConfined returns an error if a process is not confined by the profile that it should have.
func (r *runtimes) checkConfined(pid int) error {
	want, err := r.confine()
	if err != nil || want == "" {
		return err
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/attr/"
	got, err := os.ReadFile(dir + "apparmor/current")
	if errors.Is(err, fs.ErrNotExist) { // before Linux 5.8
		got, err = os.ReadFile(dir + "current")
	}
	if err != nil {
		return fmt.Errorf("AppArmor profile: %w", err)
	}
	if name := strings.TrimRight(string(got), "\x00\n"); name != want+" (enforce)" {
		return fmt.Errorf("AppArmor profile: the container has %q instead of %s",
			text.Line(name, 80), want)
	}
	return nil
}
