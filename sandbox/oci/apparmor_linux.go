package oci

import (
	"bytes"
	"fmt"
	"os"

	"github.com/moby/profiles/apparmor"

	"github.com/sandboxd/sandboxd/sandbox"
)

// profile is the name of the AppArmor profile of containers, whose rules are those of Docker's
// default.
const profile = "sandboxd-default"

// confine returns the AppArmor profile that a container gets, and loads it if the kernel does not
// have it. It is empty on a machine without AppArmor, and for a daemon of an ordinary user, who may
// not load one.
func (r *runtimes) confine() (string, error) {
	if r.byUser || !hasAppArmor() {
		return "", nil
	}
	loaded, err := apparmor.IsLoaded(profile)
	if err == nil && !loaded {
		err = apparmor.InstallDefault(profile)
	}
	if err != nil {
		return "", sandbox.Hint(fmt.Errorf("AppArmor profile %s: %w", profile, err),
			"install apparmor_parser: apt-get install apparmor")
	}
	return profile, nil
}

// hasAppArmor reports whether AppArmor works here, as runc finds out.
func hasAppArmor() bool {
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err != nil {
		return false
	}
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && bytes.HasPrefix(on, []byte("Y"))
}
