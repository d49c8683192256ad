package machine

import (
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestCheckTargets(t *testing.T) {
	links := map[string]string{"/srv/app": "/dev", "/home": "data/home", "/data/home/ann": "../bob",
		"/loop": "/loop", "/run": "/.sandboxd/x", "/deep": "../../../..//proc/./sys"}
	readlink := func(path string) (string, error) { return links[path], nil }
	for target, led := range map[string]string{
		"/srv/data": "/srv/data", "/srv/app": "/dev", "/srv/app/.sandboxd": "/dev/.sandboxd",
		"/home/ann/x": "/data/bob/x", "/run/y": "/.sandboxd/x/y", "/deep/z": "/proc/sys/z",
	} {
		got, err := Follow(target, readlink)
		if err != nil || got != led {
			t.Errorf("%s leads to %q, %v; want %q", target, got, err, led)
		}
		bad := map[string]bool{"/dev": true, "/dev/.sandboxd": true, "/.sandboxd/x/y": true,
			"/proc/sys/z": true}[led]
		mounts := []sandbox.Mount{{Path: "/x", Target: target}}
		if err := CheckMounts(mounts, readlink); errors.Is(err, ErrLed) != bad {
			t.Errorf("%s: error %v", target, err)
		}
		if err := CheckNames([]string{target}, readlink); errors.Is(err, ErrLed) != bad {
			t.Errorf("the file %s: error %v", target, err)
		}
	}
	if err := CheckNames([]string{"/loop"}, readlink); err == nil {
		t.Error("a loop: no error")
	}
	for _, own := range []string{"/dev", "/.sandboxd", GuestTrust} {
		to := func(path string) (string, error) {
			if path == own {
				return "/srv", nil
			}
			return "", nil
		}
		if err := CheckMounts(nil, to); !errors.Is(err, ErrLed) {
			t.Errorf("%s is a link: error %v", own, err)
		}
	}
}
