package machine

import "testing"

func TestCovered(t *testing.T) {
	const program = GuestBin + "/guest-1"
	plain := []string{"/", "/proc", "/dev", "/dev/pts", GuestRun, program, "/srv/app",
		"/dev/.sandboxd2"}
	if err := covered(plain, program); err != nil {
		t.Errorf("mounts of a sandbox: %v", err)
	}
	for _, extra := range []string{"/", "/dev", GuestBin, program, GuestBin + "/other"} {
		if err := covered(append(plain[:len(plain):len(plain)], extra), program); err == nil {
			t.Errorf("no error with another mount at %s", extra)
		}
	}
	if err := covered([]string{"/", "/dev"}, program); err == nil {
		t.Error("no error without the program, as after a chroot")
	}
}
